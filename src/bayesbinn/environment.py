"""What this installation runs on: versions, processor, kernels and installed optional packages."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from typing import Any

import bayesbinn
from bayesbinn.errors import MissingDependency, how_to_install


def need(module: str, purpose: str, extra: str = "train") -> Any:
    """Import an optional module, or raise one line that says what to install: `extra` is the extra that provides it.

    >>> need("json", "reading JSON").loads("[1]")
    [1]
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingDependency(f"{purpose} needs {package}: {how_to_install(extra)}") from error


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, str | int]:
    """The facts that a bug report or a benchmark needs."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and the runtime does not need it

    facts: dict[str, str | int] = {
        "bayesbinn": bayesbinn.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count() or 1,
    }
    for package in ("torch", "numpy", "safetensors"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    if facts["torch"] != "not installed":
        import torch

        from bayesbinn.kernels import native

        facts["threads"] = torch.get_num_threads()
        facts["kernels"] = f"native, {native.isa()}" if native.available else "torch reference"
        facts["why"] = native.reason or f"built at installation for this machine; use {native.threading()}"
    return facts


def processor() -> str:
    """The processor's name as the vendor writes it, if the system reports it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
