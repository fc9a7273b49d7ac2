"""What this installation runs on: versions, processor, kernels."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import bayesbinn


def describe() -> dict[str, str | int]:
    """The facts that a bug report or a benchmark needs."""
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
        facts["why"] = native.reason or f"built at installation for this machine; they run on {native.threading()}"
    return facts


def processor() -> str:
    """The processor's name as its maker writes it, where the system tells."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
