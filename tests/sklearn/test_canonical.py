"""Rows in canonical form: order, repetition and weights are one and the same thing."""

from __future__ import annotations

import numpy as np
import pytest

from bayesbinn.sklearn.canonical import Rows, canonical, split


def table(order: list[int], weights: list[float]) -> Rows:
    """Rows of a table with numbers, text, dates and missing cells, in some order."""
    columns = {
        "number": np.array([1.5, np.nan, -0.0, 1.5, np.nan, 0.0])[order],
        "text": np.array(["b", None, "a", "b", None, "a"], dtype=object)[order],
        "date": np.array(["2024-01-02", "NaT", "2024-01-01", "2024-01-02", "NaT", "2024-01-01"], "datetime64[D]")[
            order
        ],
    }
    return canonical(columns, np.array([0, 1, 2, 0, 1, 2])[order], np.array(weights))


def same(one: Rows, other: Rows) -> bool:
    def text(rows: Rows) -> list[str]:
        return [repr(column.tolist()) for column in (*rows.columns.values(), rows.targets, rows.weights)]

    return text(one) == text(other)


def test_order_and_repetition_do_not_matter() -> None:
    rows = table([0, 1, 2, 3, 4, 5], [1.0] * 6)
    assert len(rows) == 3 and rows.weights.tolist() == [2.0, 2.0, 2.0]
    assert same(rows, table([5, 3, 1, 0, 4, 2], [1.0] * 6))
    assert same(rows, table([0, 1, 2, 3, 4, 5], [2.0, 2.0, 2.0, 0.0, 0.0, 0.0]))


def test_weights_add_up_to_the_same_bits_in_any_order() -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(1000)
    ones = {"x": np.ones(1000)}
    order = rng.permutation(1000)
    found = [canonical(ones, np.zeros(1000), each).weights[0] for each in (weights, weights[order])]
    assert found[0] == found[1]


def test_the_same_cells_with_another_target_stay_apart() -> None:
    rows = canonical({"x": np.zeros(3)}, np.array([1, 0, 1]), np.ones(3))
    assert rows.targets.tolist() == [0, 1] and rows.weights.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_parts_share_no_row_and_lose_none(scale: float) -> None:
    rows = canonical({"x": np.arange(100.0)}, np.arange(100) % 4, np.full(100, scale))
    shares = {"validation": 0.1, "calibration": 0.2, "conformal": 0.1}
    parts = split(rows, shares, np.random.default_rng(0), stratify=True)
    found = [part.columns["x"] for part in (parts.training, parts.validation, parts.calibration, parts.conformal)]
    assert [len(each) for each in found] == [60, 10, 20, 10]
    assert sorted(np.concatenate(found)) == list(range(100))
    assert abs(np.bincount(parts.calibration.targets) - 5).max() <= 1


def test_a_whole_number_is_split_like_as_many_rows() -> None:
    rows = canonical({"x": np.zeros(2)}, np.array([0, 1]), np.array([80.0, 20.0]))
    parts = split(
        rows, {"validation": 0.0, "calibration": 0.1, "conformal": 0.1}, np.random.default_rng(0), stratify=True
    )
    assert parts.training.weights.tolist() == [64.0, 16.0]
    assert parts.conformal.weights.tolist() == [8.0, 2.0]


def test_other_weights_keep_a_row_in_one_piece() -> None:
    rows = canonical({"x": np.arange(10.0)}, np.zeros(10), np.linspace(0.37, 3.1, 10))
    parts = split(
        rows, {"validation": 0.0, "calibration": 0.2, "conformal": 0.2}, np.random.default_rng(0), stratify=False
    )
    total = sum(part.weights.sum() for part in (parts.training, parts.calibration, parts.conformal))
    assert total == pytest.approx(rows.weights.sum())
    assert [len(parts.training), len(parts.calibration), len(parts.conformal)] == [6, 2, 2]
