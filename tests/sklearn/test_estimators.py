"""What a scikit-learn user expects beyond scikit-learn's checks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesbinn import runtime
from bayesbinn.errors import BayesbinnError
from bayesbinn.methods import METHODS
from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor

IRIS, SPECIES = load_iris(return_X_y=True)


def people(rows: int = 200, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Text, true and false, dates, missing cells, an outlier, and a column that is always the same."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(18, 90, rows)
    job = rng.choice(["nurse", "cook", "clerk"], rows)
    table = pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, age),
            'income, "net"': np.where(np.arange(rows) == 7, 1e9, rng.lognormal(7, 1, rows)),
            "job": pd.Categorical(job),
            "member": rng.random(rows) < 0.5,
            "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, rows), "D"),
            "city": np.where(rng.random(rows) < 0.2, None, rng.choice(["Bonn", "Kiel"], rows)),
            "constant": 1,
        }
    )
    answer = np.where((age > 50) ^ (job == "nurse"), "yes", "no")
    return table, pd.Series(answer)


@pytest.fixture(scope="module")
def of_people() -> BinaryNetworkClassifier:
    return BinaryNetworkClassifier(random_state=0).fit(*people())


def test_a_real_table_is_learned(of_people: BinaryNetworkClassifier) -> None:
    table, answer = people(seed=1)
    assert of_people.score(table, answer) > 0.8
    assert of_people.classes_.tolist() == ["no", "yes"]
    assert of_people.feature_names_in_.tolist() == list(table.columns)
    assert "constant" in of_people.encoding_.ignored


def test_unseen_categories_and_missing_cells_have_a_place(of_people: BinaryNetworkClassifier) -> None:
    table = people()[0].head(3).astype({"job": object})
    table["job"] = ["pilot", None, "cook"]
    table.loc[:, "age"] = np.nan
    probabilities = of_people.predict_proba(table)
    assert np.allclose(probabilities.sum(axis=1), 1)


def test_polars_gives_the_same_bits_as_pandas() -> None:
    table, answer = people()
    names = ["age", "job", "member", "city"]
    one = BinaryNetworkClassifier(random_state=0, epochs=3).fit(table[names], answer)
    other = pl.DataFrame({name: table[name].astype(object).where(table[name].notna(), None).tolist() for name in names})
    two = BinaryNetworkClassifier(random_state=0, epochs=3).fit(other, answer.tolist())
    assert two.feature_names_in_.tolist() == names
    assert np.array_equal(one.predict_proba(table[names]), two.predict_proba(other))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_file_gives_the_estimators_probabilities(
    of_people: BinaryNetworkClassifier, tmp_path: Path, backend: Any
) -> None:
    table, _ = people(50, seed=2)
    model = runtime.load(of_people.save(tmp_path / "model.safetensors"), backend=backend)
    rows = [
        {key: None if pd.isna(cell) else cell for key, cell in row.items()}
        for row in table.astype(object).to_dict("records")
    ]
    found = model.predict_rows(rows)
    assert np.abs(found - of_people.predict_proba(table)).max() <= 1e-6
    assert model.labels == ("no", "yes")
    assert {"calibration", "conformal", "unfamiliarity"} == set(model.sections)


def test_a_regressors_file_gives_its_predictions(tmp_path: Path) -> None:
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    model = BinaryNetworkRegressor(random_state=0, epochs=5).fit(x, y)
    loaded = runtime.load(model.save(tmp_path / "model.safetensors"))
    found = loaded.predict_rows(x.head(20).to_dict("records"))
    assert np.abs(found[:, 0] - model.predict(x.head(20))).max() <= 1e-6 * np.abs(y).max()
    mean, std = model.predict(x, return_std=True)
    assert (std > 0).all() and abs(np.mean(((y - mean) / std) ** 2) - 1) < 0.5


def test_the_order_of_rows_and_repetition_change_no_bit() -> None:
    order = np.random.default_rng(0).permutation(len(IRIS))
    counts = np.random.default_rng(1).integers(0, 3, len(IRIS))
    plain = BinaryNetworkClassifier(random_state=0, epochs=3).fit(IRIS, SPECIES, sample_weight=counts)
    repeated, targets = IRIS[order].repeat(counts[order], axis=0), SPECIES[order].repeat(counts[order])
    other = BinaryNetworkClassifier(random_state=0, epochs=3).fit(repeated, targets)
    assert np.array_equal(plain.predict_proba(IRIS), other.predict_proba(IRIS))
    assert np.array_equal(plain.predict_set(IRIS, 0.8), other.predict_set(IRIS, 0.8))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str) -> None:
    model = BinaryNetworkClassifier(method=method, networks=1, random_state=0).fit(IRIS, SPECIES)
    assert model.score(IRIS, SPECIES) > 0.85, method


def test_class_weights_move_the_answers() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 2)), (rng.random(300) < 0.2).astype(int)
    shares = [
        BinaryNetworkClassifier(class_weight=weight, random_state=0).fit(x, y).predict(x).mean()
        for weight in (None, "balanced", {0: 1.0, 1: 100.0})
    ]
    assert shares[0] < 0.2 < shares[1] < shares[2] and shares[2] > 0.9


def test_early_stopping_ends_before_the_last_epoch() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    model = BinaryNetworkClassifier(early_stopping=True, patience=2, epochs=60, random_state=0).fit(x, y)
    assert model.n_iter_ < 60 and len(model.loss_curve_) == model.n_iter_


def test_a_warm_start_goes_on() -> None:
    model = BinaryNetworkClassifier(warm_start=True, epochs=2, random_state=0)
    first = model.fit(IRIS, SPECIES).loss_curve_
    again = model.fit(IRIS, SPECIES).loss_curve_
    assert len(again) == 4 and again[:2] == first and again[-1] < first[0]


def test_pickle_clone_search_and_routing() -> None:
    model = BinaryNetworkClassifier(random_state=0, epochs=2).fit(IRIS, SPECIES)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(IRIS), model.predict_proba(IRIS))
    assert clone(model).get_params() == model.get_params()
    search = GridSearchCV(model, {"hidden": [8, (16, 16)]}, cv=2, error_score="raise").fit(IRIS, SPECIES)
    assert search.best_params_["hidden"] in (8, (16, 16))
    with config_context(enable_metadata_routing=True):
        asking = clone(model).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        routed = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), asking)
        weights = np.ones(len(IRIS))
        assert len(cross_val_score(routed, IRIS, SPECIES, params={"sample_weight": weights}, cv=2)) == 2
    importance = permutation_importance(model, IRIS, SPECIES, n_repeats=2, random_state=0)
    assert importance.importances_mean.argmax() in (2, 3)  # petals tell the species apart
    assert "BinaryNetworkClassifier" in model._repr_html_()


def test_uncertainty_adds_up() -> None:
    model = BinaryNetworkClassifier(random_state=0, epochs=5).fit(IRIS, SPECIES)
    found = model.predict_uncertainty(IRIS)
    assert np.allclose(found.entropy, found.aleatoric + found.mutual_information, atol=1e-5)
    assert (found.mutual_information >= 0).all() and found.mutual_information.max() > 1e-3


def test_few_rows_give_sets_of_everything() -> None:
    model = BinaryNetworkClassifier(random_state=0, epochs=1).fit(IRIS[::2], SPECIES[::2])  # 7 conformal rows
    assert model.predict_set(IRIS).all()
    assert not model.predict_set(IRIS, coverage=0.5).all()
    regressor = BinaryNetworkRegressor(random_state=0, epochs=1).fit(IRIS[::2], IRIS[::2, 0])
    assert np.isinf(regressor.predict_set(IRIS)).all()


def test_strange_rows_are_unfamiliar() -> None:
    model = BinaryNetworkClassifier(random_state=0, epochs=1).fit(IRIS, SPECIES)
    assert np.mean(model.unfamiliarity(IRIS) < 1) > 0.85
    assert (model.unfamiliarity(IRIS * [4, 1, 1, 4]) > 1).mean() > 0.9


def test_a_progress_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    BinaryNetworkClassifier(random_state=0, epochs=2, verbose=True).fit(IRIS, SPECIES)
    assert "loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "bayesbin"}, "there is no method 'bayesbin'. Did you mean 'bayesbinn'?"),
        ({"epochs": 0}, "epochs=0: it must be a whole number from 1"),
        ({"hidden": (8, -1)}, "hidden=-1: it must be a whole number from 1"),
        ({"buffer": -1}, "buffer=-1: it must be a whole number from 0"),
        ({"conformal_fraction": 1.5}, "conformal_fraction=1.5: it must be a number from 0 to below 1"),
        ({"conformal_fraction": 0.9, "calibration_fraction": 0.09}, "add up to 0.99; leave 5 % or more to train on"),
    ],
)
def test_wrong_parameters_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BayesbinnError) as error:
        BinaryNetworkClassifier(**settings).fit(IRIS, SPECIES)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_wrong_tables_are_one_line(of_people: BinaryNetworkClassifier) -> None:
    table, answer = people()
    with pytest.raises(BayesbinnError, match="one class, 'yes'"):
        BinaryNetworkClassifier().fit(table, ["yes"] * len(table))
    with pytest.raises(BayesbinnError, match="'age' is infinite in row 1"):
        BinaryNetworkClassifier().fit(table.assign(age=np.inf), answer)
    with pytest.raises(BayesbinnError, match="'age' holds complex128: numbers, text, true/false or dates are needed"):
        BinaryNetworkClassifier().fit(table.assign(age=1j), answer)
    with pytest.raises(BayesbinnError, match="'age' holds complex128"):
        of_people.predict(table.assign(age=1j))
    with pytest.raises(ValueError, match="feature names"):
        of_people.predict(table.drop(columns=["age"]))
    with pytest.raises(BayesbinnError, match="'age' holds 'old' in row 1: a number is needed"):
        of_people.predict(table.assign(age="old"))
