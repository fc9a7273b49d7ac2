"""How fast a network runs here: a short measurement in which the contestants take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bayesbinn.environment import processor
from bayesbinn.errors import BayesbinnError
from bayesbinn.modelfile.container import read
from bayesbinn.packing.packer import pack
from bayesbinn.prediction.functional import evaluating
from bayesbinn.report.blocks import Missing, Section, Table, Text
from bayesbinn.runs.trained import Trained
from bayesbinn.runtime.measure import MODES
from bayesbinn.runtime.model import load

ROUNDS = 15
SECONDS = 0.01
"""A turn lasts about this long."""


@dataclass(frozen=True)
class Speed:
    """Median seconds for one input, by contestant, the slowest reference first."""

    seconds: Mapping[str, float]
    backend: str


def of_run(trained: Trained) -> Speed:
    """A run's network in PyTorch as float32, and packed, on one thread."""
    x = trained.card.example(1)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        pack(trained.model, path, trained.posterior, example_input=trained.card.example())
        runtime, backend = _packed(path, x.numpy())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(), evaluating(trained.model):
            return Speed(_measured({"PyTorch, float32": partial(trained.model, x)} | runtime), backend)
    finally:
        torch.set_num_threads(threads)


def of_model(path: Path) -> Speed:
    """A model file in both modes, on one thread."""
    shape = read(path).graph.input_shape
    x = np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32)
    runtime, backend = _packed(path, x)
    return Speed(_measured(runtime), backend)


def _packed(path: Path, x: Any) -> tuple[dict[str, Callable[[], Any]], str]:
    models = {mode: load(path, mode, threads=1) for mode in MODES}
    calls: dict[str, Callable[[], Any]] = {f"model file, {mode}": partial(m.outputs, x) for mode, m in models.items()}
    return calls, models["int8"].backend


def _measured(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    repeats = {name: _repeats(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(_seconds(call, repeats[name]))
    return {name: median(each) for name, each in times.items()}


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _repeats(call: Callable[[], Any]) -> int:
    """How many calls make a turn; the first call does not count."""
    _seconds(call, 1)
    return max(1, round(SECONDS / max(_seconds(call, 1), 1e-7)))


def section(measure: Callable[[], Speed], wanted: bool) -> Section:
    """A table, or why there is none."""
    if not wanted:
        return Section("Speed", [Missing("it was not measured (--no-speed)")])
    try:
        speed = measure()
    except BayesbinnError as error:
        return Section("Speed", [Missing(str(error))])
    slowest = next(iter(speed.seconds.values()))
    rows = [[name, f"{1e6 * each:,.1f}", f"{slowest / each:.1f} ×"] for name, each in speed.seconds.items()]
    said = (
        f"Measured while this page was made, in {ROUNDS} turns, on {processor()}. Other programs may have run at the "
        "same time; bayesbinn bench inference measures with more care."
    )
    caption = f"One input on one thread, median ({speed.backend} kernels)"
    return Section("Speed", [Table(caption, ["runs in", "µs", "faster"], rows), Text(said)])
