"""Random networks: native against reference in both modes, and exports to C and ONNX against the reference."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import OPERATIONS
from tests.export import test_c as test_export_c
from tests.helpers.random_graphs import models
from tests.runtime import test_runtime
from tests.storms.cases import SEED, count, record, run_cases

BATCH = 48
"""Models per C program: starting the compiler takes longer than any of them."""
QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True)


def drawn(strategy: Any, wanted: int, name: str, use: Callable[[Any], object], phases: Iterable[Phase] = Phase) -> None:
    """Pass `wanted` random examples to `use`; hypothesis shows the smallest that fails."""

    @seed(f"{SEED} {name}")
    @settings(QUIET, max_examples=wanted, phases=tuple(phases))
    @given(strategy)
    def each(example: Any) -> None:
        use(example)

    each()


def test_native_and_reference_agree() -> None:
    """Each graph is checked as in tests/runtime/test_runtime.py."""
    pytest.importorskip("bayesbinn.runtime._native", reason="the package was built without native kernels")
    agree: Any = test_runtime.test_native_and_reference_agree_on_random_graphs
    tried, failures, started = 0, 1, time.monotonic()

    def compare(example: Any) -> None:
        nonlocal tried
        tried += 1
        agree.hypothesis.inner_test(example)

    try:
        drawn(models(), count("graphs"), "graphs", compare)
        failures = 0
    finally:
        record("graphs", "random graphs", tried, failures, time.monotonic() - started)
    assert tried >= count("graphs")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_exports_agree_with_the_reference(tmp_path: Path) -> None:
    """The checks are those of the export tests; a batch is one C program and one ONNX file per model."""
    with_onnx = find_spec("onnx") is not None and find_spec("onnxruntime") is not None
    wanted = count("exports")

    def one(case: int, random: Random) -> int:
        found: list[ModelFile] = []
        op, size = random.choice(sorted(OPERATIONS)), min(BATCH, wanted)
        kinds = [
            test_export_c.cases.models((op,)),
            test_export_c.cases.models(steps=7, task="classification"),
            test_export_c.cases.models(steps=7),
        ]
        for index, kind in enumerate(kinds):
            drawn(kind, size // 3, f"{case} {index}", found.append, [Phase.generate])
        for answer in test_export_c.program(tmp_path / f"c{case}", found, ["gcc", "-O0"], []):
            test_export_c.check(answer)
        if with_onnx:
            from tests.export import test_onnx

            for model in found:
                test_onnx.check(model, tmp_path / "model.onnx")
        shutil.rmtree(tmp_path / f"c{case}")
        return len(found)

    run_cases("exports", "networks as C and ONNX" if with_onnx else "networks as C", one)
