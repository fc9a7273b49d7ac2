"""The comparison of tables: splits that differ, pairs that belong together, and a verdict that can be no."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from bayesbinn import data
from tests.helpers.places import ROOT


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    path = ROOT / "benchmarks" / "tables_command.py"
    spec = importlib.util.spec_from_file_location("tables_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def cell(ours: float, theirs: float, nll: float = 0.1, balanced: float = 50.0) -> dict[str, Any]:
    mine = {"accuracy": ours, "balanced": balanced, "nll": nll}
    return {"ours": mine, "theirs": {"accuracy": theirs, "balanced": 90.0, "nll": 0.1}, "seconds": 1.0}


@pytest.mark.parametrize(
    ("cells", "holds"),
    [
        ([cell(96.0, 96.9), cell(96.0, 96.9)], True),
        ([cell(96.0, 97.1), cell(96.0, 97.1)], False),
        ([cell(90.0, 97.0), cell(98.0, 97.0)], True),
        ([cell(97.0, 97.0, nll=0.129), cell(97.0, 97.0, nll=0.129)], True),
        ([cell(97.0, 97.0, nll=0.131), cell(97.0, 97.0, nll=0.131)], False),
    ],
    ids=["within a point", "beyond a point", "within two errors", "nll within", "nll beyond"],
)
def test_a_row_holds_by_points_or_errors_and_by_nll(
    cells: list[dict[str, Any]], holds: bool, tables: ModuleType
) -> None:
    row = tables.compare(tables.TABLES["wine"], cells)
    assert row.holds is holds
    assert f"| {'yes' if holds else 'no'} |" in tables.report([row], [])


def test_unequal_classes_are_judged_by_balanced_accuracy(tables: ModuleType) -> None:
    row = tables.compare(tables.TABLES["rare-class"], [cell(99.0, 99.0), cell(99.0, 99.0)])
    assert (row.ours, row.theirs, row.holds) == (50.0, 90.0, False)
    y = tables.rare_class()[1]
    assert len(y) == 10_000 and 0.005 < np.mean(y) < 0.015


def test_every_split_tests_other_rows_of_the_same_table(tables: ModuleType, tmp_path: Path) -> None:
    parts = [data.load(tables.write_split(tables.TABLES["wine"], split, tmp_path), label="y") for split in (0, 1)]
    assert [len(part.test_inputs) for part in parts] == [36, 36] and parts[0].classes == parts[1].classes
    assert not torch.equal(parts[0].test_inputs, parts[1].test_inputs)
    wholes = [torch.cat([part.train_inputs, part.test_inputs]).sum(0) for part in parts]
    torch.testing.assert_close(*wholes)


def test_scores_of_known_probabilities(tables: ModuleType) -> None:
    scores = tables.score(np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]), np.array([0, 0, 1]))
    assert scores == pytest.approx({"accuracy": 200 / 3, "balanced": 50.0, "nll": -np.log([0.9, 0.8, 0.4]).mean()})
