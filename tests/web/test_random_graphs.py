"""Random networks of every operation: Node against the NumPy reference and the native kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from bayesbinn.errors import InvalidInput, InvalidUse
from bayesbinn.modelfile.container import ModelFile, to_bytes
from bayesbinn.runtime import load
from tests.helpers.random_graphs import models
from tests.helpers.web import close, job, node, run_jobs, same_bits

EXACT_OPERATIONS = {"linear", "conv2d", "affine", "relu", "hardtanh", "max_pool2d", "adaptive_max_pool2d", "reshape"}
"""With these, int8 is integer sums and single roundings: the same bits on every machine."""


def drawn(count: int, start: int) -> list[tuple[ModelFile, Any]]:
    found: list[tuple[ModelFile, Any]] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(models())
    def collect(made: tuple[ModelFile, Any]) -> None:
        found.append(made)

    collect()
    return found


def predicted(path: Path, activations: Any, x: Any, backend: Any) -> Any:
    """Logits, or None if the outputs are not finite or no classes."""
    try:
        return load(path, activations, 1, backend=backend).predict(x)
    except (InvalidInput, InvalidUse):
        return None


def compare(count: int, start: int, folder: Path) -> None:
    node()
    cases, jobs = drawn(count, start), []
    for index, (model, x) in enumerate(cases):
        path = folder / f"{index}.safetensors"
        path.write_bytes(bytes(to_bytes(model)))
        jobs += [job(folder, str(index), path, mode, x) for mode in ("exact", "int8")]
    ran = 0
    for index, (one, said) in enumerate(zip(jobs, run_jobs(jobs, folder), strict=True)):
        model, x = cases[index // 2]
        what = f"{one['activations']}: {[node.op for node in model.graph.nodes]}"
        native = predicted(Path(one["model"]), one["activations"], x, "auto")
        if native is None:
            assert said["verdict"] == "InvalidInput", (what, said)
            continue
        assert said["verdict"] == "runs", (what, said)
        ran += 1
        exact = {node.op for node in model.graph.nodes} <= EXACT_OPERATIONS and model.graph.networks == 1
        if one["activations"] == "int8" and exact:
            assert same_bits(said["y"], native), what
        assert close(said["y"], native.reshape(-1)), what
        if one["activations"] == "exact":
            # Sums that cancel out keep the rounding of their parts, and the reference adds in another order.
            reference = predicted(Path(one["model"]), "exact", x, "reference")
            limit = np.abs(native - reference).max() + 1e-5 * np.abs(reference).max()
            assert np.abs(said["y"].reshape(reference.shape) - reference).max() <= limit, what
    assert ran > len(jobs) / 3


def test_node_computes_random_networks_as_python_does(tmp_path: Path) -> None:
    compare(40, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1, 6))
def test_node_computes_many_random_networks_as_python_does(start: int, tmp_path: Path) -> None:
    compare(200, start, tmp_path)


def test_many_examples_are_computed_in_strips(tmp_path: Path) -> None:
    """More inputs than are copied at once: each example's result is as if it were alone."""
    model, x = next(case for case in drawn(60, 9) if case[0].graph.networks == 3 and case[1][0].size > 30)
    rows = np.concatenate([x] * (2_200_000 // x[0].size // len(x)))
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(to_bytes(model)))
    jobs = [job(tmp_path, "one", path, "int8", x), job(tmp_path, "many", path, "int8", rows)]
    one, many = run_jobs(jobs, tmp_path)
    assert many["verdict"] == one["verdict"] == "runs", (one, many)
    assert same_bits(many["y"], np.tile(one["y"], len(rows) // len(x)))
