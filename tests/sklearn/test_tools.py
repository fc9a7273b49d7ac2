"""The tools of scikit-learn that take an estimator take these."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_iris
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import cross_val_predict, cross_validate, learning_curve
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier

from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor

X, Y = load_iris(return_X_y=True, as_frame=True)
SMALL: dict[str, Any] = {"hidden": 16, "networks": 1, "epochs": 10, "random_state": 0}
MODEL = BinaryNetworkClassifier(**SMALL)

META: dict[str, Any] = {
    "voting": VotingClassifier([("a", MODEL), ("b", BinaryNetworkClassifier(**SMALL, method="ste"))], voting="soft"),
    "stacking": StackingClassifier([("a", MODEL)], cv=2),
    "bagging": BaggingClassifier(MODEL, n_estimators=2, random_state=0),
    "boosting": AdaBoostClassifier(MODEL, n_estimators=2, random_state=0),
    "one versus rest": OneVsRestClassifier(MODEL),
    "calibrated": CalibratedClassifierCV(MODEL, cv=2),
}


@pytest.fixture(scope="module")
def fitted() -> Any:
    return BinaryNetworkClassifier(**SMALL).fit(X, Y)


@pytest.mark.parametrize("name", META)
def test_meta_estimators(name: str) -> None:
    assert clone(META[name]).fit(X, Y).score(X, Y) > 0.6


def test_a_frozen_model_is_calibrated(fitted: Any) -> None:
    assert CalibratedClassifierCV(FrozenEstimator(fitted)).fit(X, Y).score(X, Y) > 0.6


def test_several_targets() -> None:
    both = np.column_stack([Y, Y > 1])
    assert MultiOutputClassifier(MODEL).fit(X, both).predict(X).shape == both.shape


def test_a_transformed_target() -> None:
    model = TransformedTargetRegressor(BinaryNetworkRegressor(**SMALL), func=np.log, inverse_func=np.exp)
    assert (model.fit(X, np.exp(Y)).predict(X) > 0).all()


def test_model_selection() -> None:
    scores = cross_validate(MODEL, X, Y, cv=2, scoring=["neg_log_loss", "roc_auc_ovr"], error_score="raise")
    assert scores["test_roc_auc_ovr"].mean() > 0.7
    assert cross_val_predict(MODEL, X, Y, cv=2, method="predict_log_proba").shape == (150, 3)
    sizes, _, tested = learning_curve(
        MODEL, X, Y, cv=2, train_sizes=[0.5, 1.0], shuffle=True, exploit_incremental_learning=True, error_score="raise"
    )
    assert sizes.tolist() == [37, 75] and tested[-1].mean() > 0.6


def test_inspection(fitted: Any) -> None:
    importance = permutation_importance(fitted, X, Y, n_repeats=3, random_state=0).importances_mean
    assert importance.argmax() in (2, 3), "the petals tell the species apart"
    assert partial_dependence(fitted, X, [2], grid_resolution=5)["average"].shape == (3, 5)


def test_copies(fitted: Any, tmp_path: Path) -> None:
    joblib.dump(fitted, tmp_path / "model.joblib")
    for other in (copy.deepcopy(fitted), joblib.load(tmp_path / "model.joblib")):
        assert np.array_equal(other.predict_proba(X), fitted.predict_proba(X))


def test_threads_change_no_bit(fitted: Any) -> None:
    two = BinaryNetworkClassifier(**SMALL, n_jobs=2).fit(X, Y)
    assert np.array_equal(two.predict_proba(X), fitted.predict_proba(X))
    together = joblib.Parallel(2, prefer="threads")(joblib.delayed(fitted.predict)(X) for _ in range(4))
    assert all(np.array_equal(each, fitted.predict(X)) for each in together)


def test_arrays_and_frames_follow_each_other_by_position(fitted: Any) -> None:
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert np.array_equal(fitted.predict(X.to_numpy()), fitted.predict(X))
    plain = BinaryNetworkClassifier(**SMALL).fit(X.to_numpy(), Y)
    with pytest.warns(UserWarning, match="fitted without feature names"):
        assert np.array_equal(plain.predict(X), plain.predict(X.to_numpy()))
    with pytest.raises(ValueError, match="collect"):
        plain.predict(pl.DataFrame(X.to_numpy()).lazy())


def test_a_model_of_text_and_dates_can_be_pickled() -> None:
    import pickle

    import pandas as pd

    rng = np.random.default_rng(0)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, 60), "D")
    x = pd.DataFrame({"job": rng.choice(["nurse", "cook"], 60), "joined": days})
    model = BinaryNetworkClassifier(random_state=0, epochs=2).fit(x, x["job"] == "cook")
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(x), model.predict_proba(x))
