"""Prediction sets and intervals hold the truth as often as they promise, over random splits of real tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split

from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor

Load = Callable[..., Any]
SMALL: dict[str, Any] = {"hidden": 8, "networks": 1, "epochs": 2}


def hits(load: Load, splits: int, **settings: Any) -> tuple[float, int]:
    """The mean coverage at 90 % and the number of conformal rows."""
    x, y = load(return_X_y=True)
    found = []
    for split in range(splits):
        x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.3, random_state=split)
        if load is load_diabetes:
            model: Any = BinaryNetworkRegressor(random_state=split, **settings).fit(x_train, y_train)
            low, high = model.predict_set(x_test, coverage=0.9).T
            found.append(np.mean((low <= y_test) & (y_test <= high)))
        else:
            model = BinaryNetworkClassifier(random_state=split, **settings).fit(x_train, y_train)
            sets = model.predict_set(x_test, coverage=0.9)
            found.append(np.mean(sets[np.arange(len(y_test)), np.searchsorted(model.classes_, y_test)]))
    rows = int(model._packed.file.sections["conformal"].tensors["counts"].sum())
    return float(np.mean(found)), rows


@pytest.mark.parametrize("load", [load_breast_cancer, load_diabetes])
def test_the_mean_coverage_of_some_splits(load: Load) -> None:
    """The standard error of 12 splits of some 150 test rows is about 0.012."""
    mean, rows = hits(load, 12, conformal_fraction=0.25, **SMALL)
    assert rows >= 50
    assert 0.865 <= mean <= 0.9 + 1 / (rows + 1) + 0.04


@pytest.mark.slow
@pytest.mark.parametrize("load", [load_breast_cancer, load_digits, load_diabetes])
def test_the_mean_coverage_of_100_splits(load: Load) -> None:
    settings: dict[str, Any] = {"conformal_fraction": 0.2, "epochs": 5}
    mean, rows = hits(load, 100, **settings)
    assert rows >= 50
    assert mean >= 0.885
    if load is load_diabetes:
        assert mean <= 0.9 + 1 / (rows + 1) + 0.015
