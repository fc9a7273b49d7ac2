"""Which epoch is the best."""

from __future__ import annotations

import math

import pytest

from bayesbinn.runs.best_epoch import best_epoch


@pytest.mark.parametrize(("key", "better", "worse"), [("validation_rmse", 2.0, 3.0), ("validation_accuracy", 0.9, 0.8)])
def test_nan_is_never_the_best(key: str, better: float, worse: float) -> None:
    values = [math.nan, worse, math.nan, better, math.nan]
    rows = [{"epoch": number, key: value} for number, value in enumerate(values, 1)]
    found = best_epoch(rows)
    assert found is not None and found["epoch"] == 4
    assert best_epoch(rows[:1]) is None
