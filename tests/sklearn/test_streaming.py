"""Learning from batches: what was learned stays, and the memory is bounded."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from bayesbinn.errors import BayesbinnError
from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor
from bayesbinn.sklearn.canonical import Rows
from bayesbinn.sklearn.streaming import Reservoir

IRIS, SPECIES = load_iris(return_X_y=True)
BATCHES = 20


def rows(values: Any) -> Rows:
    return Rows({"x": np.array(values, dtype=float)}, np.zeros(len(values)), np.ones(len(values)))


def test_a_reservoir_keeps_every_row_with_the_same_chance() -> None:
    kept = np.zeros(60)
    for seed in range(600):
        reservoir, rng = Reservoir(10), np.random.default_rng(seed)
        for batch in np.arange(60).reshape(6, 10):
            reservoir.add(rows(batch), rng)
        assert reservoir.rows is not None and len(reservoir.rows) == 10
        kept[reservoir.rows.columns["x"].astype(int)] += 1
    assert abs(kept / 600 - 1 / 6).max() < 0.06  # four standard errors
    found = reservoir.standing_for_all()
    assert found is not None and found.weights.sum() == 60


def streamed(model: Any, x: Any, y: Any, order: Any, batches: int) -> Any:
    for index in np.array_split(order, batches):
        model.partial_fit(x[index], y[index], classes=np.unique(y))
    return model


def test_sorted_classes_are_not_forgotten() -> None:
    order = np.argsort(SPECIES, kind="stable")
    model = streamed(BinaryNetworkClassifier(random_state=0, buffer=60), IRIS, SPECIES, order, 6)
    assert model.score(IRIS, SPECIES) > 0.85
    held = sum(len(each.rows or ()) for each in model._stream.memory.values())
    assert 0 < held <= 60
    assert set(model.predict(IRIS)) == {0, 1, 2}


def test_no_buffer_keeps_no_row_and_makes_the_posterior_the_prior() -> None:
    order = np.random.default_rng(0).permutation(len(IRIS))
    model = streamed(BinaryNetworkClassifier(random_state=0, buffer=0), IRIS, SPECIES, order, 3)
    assert all(each.rows is None for each in model._stream.memory.values())
    states = model._fitted.trainer.optimizer.state.values()
    assert all(bool((state["prior"] == state["natural"]).all()) for state in states)
    assert model.score(IRIS, SPECIES) > 0.7


def test_a_stream_goes_on_after_pickling() -> None:
    half = len(IRIS) // 2
    order = np.random.default_rng(0).permutation(len(IRIS))
    one = BinaryNetworkClassifier(random_state=0, epochs=2).partial_fit(
        IRIS[order[:half]], SPECIES[order[:half]], classes=[0, 1, 2]
    )
    two = pickle.loads(pickle.dumps(one))
    for model in (one, two):
        model.partial_fit(IRIS[order[half:]], SPECIES[order[half:]])
    assert np.array_equal(one.predict_proba(IRIS), two.predict_proba(IRIS))


def test_a_regressor_learns_from_batches() -> None:
    x, y = IRIS[:, :3], IRIS[:, 3]
    model = BinaryNetworkRegressor(random_state=0)
    for index in np.array_split(np.random.default_rng(0).permutation(len(y)), 3):
        model.partial_fit(x[index], y[index])
    assert model.score(x, y) > 0.85


def test_classes_must_be_announced() -> None:
    with pytest.raises(BayesbinnError, match="the first call to partial_fit needs classes"):
        BinaryNetworkClassifier().partial_fit(IRIS, SPECIES)
    with pytest.raises(BayesbinnError, match="class 2 is not among the classes of the first call"):
        BinaryNetworkClassifier().partial_fit(IRIS, SPECIES, classes=[0, 1])
    model = BinaryNetworkClassifier(epochs=1).partial_fit(IRIS, SPECIES, classes=[0, 1, 2])
    with pytest.raises(BayesbinnError, match="differ from those of the first call"):
        model.partial_fit(IRIS, SPECIES, classes=[0, 1, 2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "made up"])
def test_twenty_batches_end_close_to_fit(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Shuffled: within 2 points of `fit`. Sorted by class: at least 80 % of its accuracy, beside scikit-learn's."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
    else:
        x, y = make_classification(2400, 20, n_informative=12, n_classes=5, class_sep=1.5, random_state=7)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=0)
    whole = BinaryNetworkClassifier(random_state=0).fit(x, y).score(x_test, y_test)
    found = {"fit": whole}
    scaler = StandardScaler().fit(x)
    orders = {"shuffled": np.random.default_rng(0).permutation(len(y)), "sorted": np.argsort(y, kind="stable")}
    for way, order in orders.items():
        for buffer in (1000, 0):
            model = streamed(BinaryNetworkClassifier(random_state=0, buffer=buffer), x, y, order, BATCHES)
            found[f"{way}, buffer {buffer}"] = model.score(x_test, y_test)
        for other in (SGDClassifier(random_state=0), MLPClassifier(random_state=0)):
            streamed(other, scaler.transform(x), y, order, BATCHES)
            found[f"{way}, {type(other).__name__}"] = other.score(scaler.transform(x_test), y_test)
    with capsys.disabled():
        print(f"\n{name}: " + ", ".join(f"{key} {100 * value:.2f} %" for key, value in found.items()))
    assert found["shuffled, buffer 1000"] >= whole - 0.02
    assert found["sorted, buffer 1000"] >= 0.8 * whole
