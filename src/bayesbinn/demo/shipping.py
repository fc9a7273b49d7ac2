"""The end of the demo: a trained network as a file, compared with the network it came from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from bayesbinn.packing.packer import pack
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.runtime.model import Activations, load

_ROUNDS, _CALLS = 30, 20
_MODES: tuple[Activations, ...] = ("exact", "int8")


@dataclass(frozen=True)
class Shipped:
    """A packed network: its size, its time for one input on one thread, and how often it agrees with torch."""

    float32_bytes: int
    file_bytes: int
    backend: str
    microseconds: dict[str, float]
    """By "torch", "exact" and "int8"."""
    agreement: dict[str, float]
    """Agreement with torch, in percent of the inputs."""


def ship(model: nn.Module, posterior: BernoulliPosterior, inputs: Tensor) -> Shipped:
    """Pack the posterior's mode, load the file, and measure it against torch, alternating."""
    posterior.apply(model)
    model.eval()
    x = inputs.numpy()
    with TemporaryDirectory() as folder, torch.inference_mode():
        path = Path(folder) / "digits.safetensors"
        pack(model, path, posterior)
        size = path.stat().st_size
        loaded = {mode: load(path, mode, threads=1) for mode in _MODES}
        expected = model(inputs).argmax(1).numpy()
        one, row = inputs[:1], x[:1]
        calls: dict[str, Callable[[], Any]] = {"torch": lambda: model(one)}
        calls |= {mode: partial(loaded[mode].predict, row) for mode in _MODES}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(_CALLS):
                    call()
                times[name].append(1e6 * (time.perf_counter() - start) / _CALLS)
        return Shipped(
            float32_bytes=sum(4 * tensor.numel() for tensor in model.state_dict().values()),
            file_bytes=size,
            backend=loaded["int8"].backend,
            microseconds={name: median(each) for name, each in times.items()},
            agreement={mode: 100 * float((m.predict(x).argmax(1) == expected).mean()) for mode, m in loaded.items()},
        )


def show(console: Console, title: str, shipped: Shipped) -> None:
    """Print a table and the next steps."""
    table = Table(title=f"{title} as a file that runs without PyTorch ({shipped.backend} kernels, 1 thread)")
    for column in ("", "bytes", "one digit, µs", "faster", "same class as torch"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("PyTorch, float32", f"{shipped.float32_bytes:,}", f"{shipped.microseconds['torch']:.0f}", "", "")
    for mode in _MODES:
        table.add_row(
            f"model file, {mode}",
            f"{shipped.file_bytes:,}",
            f"{shipped.microseconds[mode]:.0f}",
            f"{shipped.microseconds['torch'] / shipped.microseconds[mode]:.1f} ×",
            f"{shipped.agreement[mode]:.1f} %",
        )
    console.print(table)
    console.print(
        f"{shipped.float32_bytes / shipped.file_bytes:.1f} times smaller, including BatchNorm and header (32 times for "
        "the weights only; a larger network comes close to that).\n"
        "Next: bayesbinn train digits; bayesbinn pack runs/digits-bayesbinn-0; bayesbinn inspect …/model.safetensors"
    )
