"""How fast a model file runs here, in both modes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bayesbinn.modelfile.container import read
from bayesbinn.runtime.memory import DEFAULT_MEMORY
from bayesbinn.runtime.model import Activations, Model

MODES: tuple[Activations, ...] = ("exact", "int8")
_ROUNDS = 15
_SECONDS = 0.02


def measure(
    path: Path, batches: Sequence[int], threads: Sequence[int], max_memory: int = DEFAULT_MEMORY
) -> Iterator[dict[str, Any]]:
    """Median time per batch for each thread count and batch size; the modes take turns."""
    file = read(path, max_memory)
    random = np.random.default_rng(0)
    for count in threads:
        models = {mode: Model(file, mode, count, max_memory=max_memory) for mode in MODES}
        for batch in batches:
            x = random.standard_normal((batch, *file.graph.input_shape)).astype(np.float32)
            seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
            repeats = {mode: _repeats(model, x) for mode, model in models.items()}
            for _ in range(_ROUNDS):
                for mode, model in models.items():
                    seconds[mode].append(_seconds(model, x, repeats[mode]))
            row: dict[str, Any] = {"threads": count, "batch": batch, "backend": models["exact"].backend}
            for mode in MODES:
                each = median(seconds[mode])
                row |= {f"{mode}_ms": 1e3 * each, f"{mode}_per_second": batch / each}
            yield row


def _seconds(model: Model, x: Any, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        model.outputs(x)
    return (time.perf_counter() - start) / repeats


def _repeats(model: Model, x: Any) -> int:
    """How many calls take about 20 ms; the first call does not count."""
    _seconds(model, x, 1)
    return max(1, round(_SECONDS / max(_seconds(model, x, 1), 1e-7)))
