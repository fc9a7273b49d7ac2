"""Tables that break things: what cannot be learned is refused, and what can is learned, never quietly wrong."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bayesbinn import runtime
from bayesbinn.errors import BayesbinnError, BayesbinnWarning
from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor

RNG = np.random.default_rng(0)
ROWS = 120
X = RNG.normal(size=(ROWS, 3))
Y = (X[:, 0] > 0).astype(int)
FEW: dict[str, Any] = {"epochs": 2, "networks": 1, "hidden": 16, "random_state": 0}


def classifier(**settings: Any) -> BinaryNetworkClassifier:
    return BinaryNetworkClassifier(**{**FEW, **settings})


# ---- labels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        np.array([False, True]),
        np.array(["01", "1"]),
        np.array([-5, 2**62]),
        np.array(["", "b"]),
        np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"),
    ],
    ids=lambda names: str(names.dtype),
)
def test_labels_of_any_type_come_back(names: Any, tmp_path: Path) -> None:
    labels = pd.Series(names)[Y].reset_index(drop=True)
    model = classifier().fit(X, labels)
    assert set(model.predict(X)) <= set(model.classes_)
    assert np.array_equal(model.classes_, np.unique(labels.to_numpy()))
    loaded = runtime.load(model.save(tmp_path / "model.safetensors"))
    assert loaded.classes == tuple(map(str, model.classes_))
    found = loaded.predict_rows({f"x{place}": column for place, column in enumerate(X.T)})
    assert np.abs(found - model.predict_proba(X)).max() < 1e-6


def test_five_hundred_classes() -> None:
    labels = np.arange(1500) % 500
    model = classifier(epochs=1).fit(np.column_stack([labels, labels % 7]), labels)
    assert model.predict_proba([[3.0, 3.0]]).shape == (1, 500)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: -1.0, 1: 1.0}, "finite numbers from 0"),
        ({0: np.nan, 1: 1.0}, "finite numbers from 0"),
        ("even", "balanced"),
    ],
)
def test_wrong_class_weights(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        classifier(class_weight=weights).fit(X, Y)
    assert "\n" not in str(error.value)


def test_a_rare_class_is_found_with_balanced_weights() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 2))
    y = (np.arange(1000) % 100 == 0).astype(int)  # 99:1
    x[y == 1] += 2
    plain, balanced = (
        BinaryNetworkClassifier(class_weight=weight, epochs=6, networks=2, random_state=0).fit(x, y)
        for weight in (None, "balanced")
    )
    assert balanced.predict(x)[y == 1].mean() >= max(0.7, plain.predict(x)[y == 1].mean())
    assert balanced.predict(x)[y == 0].mean() < 0.3


# ---- weights -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1e-300, 1e-3, 1e300])
def test_the_unit_of_weights_does_not_matter(unit: float) -> None:
    weights = RNG.random(ROWS) + 0.5
    one, other = (classifier().fit(X, Y, sample_weight=scale * weights) for scale in (1.0, unit))
    assert np.allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-3)
    assert np.array_equal(one.predict_set(X, 0.8), other.predict_set(X, 0.8))


def test_one_row_may_outweigh_all_others() -> None:
    weights = np.ones(ROWS)
    weights[0] = 1e12
    assert np.isfinite(classifier().fit(X, Y, sample_weight=weights).unfamiliarity(X)).all()


def test_rows_of_weight_zero_are_not_there() -> None:
    half = np.arange(ROWS) % 2
    odd = np.where(half[:, None] == 1, X, np.nan)
    one = classifier().fit(odd, np.where(half == 1, Y, 7), sample_weight=half)
    other = classifier().fit(X[half == 1], Y[half == 1])
    assert np.array_equal(one.predict_proba(X), other.predict_proba(X)) and one.classes_.tolist() == [0, 1]


def test_equal_weights_do_not_multiply_conformal_rows() -> None:
    """Nine conformal rows are needed for 90 %: four that weigh 100 each are still four."""
    one, other = (classifier().fit(X[:40], Y[:40], sample_weight=np.full(40, w)) for w in (1.0, 100.0))
    assert one.predict_set(X).all() and other.predict_set(X).all()


# ---- cells ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (X[:, 0].astype(np.float16), "number"),
        ([f"{v:.3f}" for v in X[:, 0]], "number"),
        (np.array([f"{v:.3f}" for v in X[:, 0]], "S"), "number"),
        ([2**70 + i * 10**15 for i in range(ROWS)], "number"),
        (pd.to_timedelta(np.arange(ROWS), "D"), "number"),
        (pd.array([True, None] * (ROWS // 2), dtype="boolean"), "boolean"),
        ([date(2020, 1, 1 + i % 28) for i in range(ROWS)], "date"),
        ([f"{1 + i % 28} Mar {1900 + i} {1 + i % 12}:30 PM" for i in range(ROWS)], "date"),
        (pd.date_range("2020", periods=ROWS, tz="Europe/Berlin"), "date"),
        (pd.Categorical(np.arange(ROWS) % 3), "category"),
        (["x" * 3000, "y"] * (ROWS // 2), "category"),
    ],
    ids=lambda value: str(getattr(value, "dtype", value if isinstance(value, str) else type(value[0]).__name__)),
)
def test_cells_of_many_types(cells: Any, kind: str) -> None:
    table = pd.DataFrame({"cells": cells, "x": X[:, 1]})
    model = classifier(epochs=1).fit(table, Y)
    assert model.encoding_.columns[0].kind == kind and model.encoding_.columns[0].name == "cells"
    assert np.isfinite(model.predict_proba(table)).all()


@pytest.mark.parametrize("cells", [[None], [1.0]])
def test_a_table_that_says_nothing_predicts_how_frequent_classes_are(cells: list[Any]) -> None:
    table = pd.DataFrame({"a": cells * ROWS})
    answers = np.arange(ROWS) % 4 == 0
    found = classifier(epochs=150).fit(table, answers).predict_proba(table.head(1))
    assert 0.1 < found[0, 1] < 0.4


def test_sparse_input_is_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(X)
    with pytest.raises(TypeError, match="dense data is required"):
        classifier().fit(sparse, Y)


@pytest.mark.parametrize("rows", [2, 3, 8, 20])
def test_tiny_tables(rows: int) -> None:
    labels = np.arange(rows) % 2
    found = classifier().fit(X[:rows], labels)
    with pytest.warns(BayesbinnWarning, match="every set contains everything: coverage=0.9 needs at least 9 conformal"):
        assert found.predict_set(X).all()
    assert np.allclose(found.predict_proba(X).sum(axis=1), 1)
    mean, std = BinaryNetworkRegressor(**FEW).fit(X[:rows], X[:rows, 0]).predict(X, return_std=True)
    assert (std > 0).all() and np.abs(mean).max() < 10


def test_repeated_rows_count_as_often_as_they_come() -> None:
    few, labels = np.repeat(X[:4], 40, axis=0), np.repeat([0, 1, 0, 1], 40)
    assert classifier(epochs=60).fit(few, labels).score(few, labels) == 1.0


# ---- quantities ----------------------------------------------------------------------------------------


def test_quantities_beyond_float32_are_refused_or_named() -> None:
    for scale, message in ((1e300, "use a larger unit"), (1e-300, "use a smaller unit")):
        with pytest.raises(BayesbinnError, match=message):
            BinaryNetworkRegressor(**FEW).fit(X, scale * X[:, 0])
    with pytest.warns(BayesbinnWarning, match="subtract its mean to keep its precision"):
        BinaryNetworkRegressor(**FEW).fit(X, 1e9 + X[:, 0])
    constant = BinaryNetworkRegressor(**FEW).fit(X, np.full(ROWS, 7.0))
    assert np.allclose(constant.predict(X), 7.0)


# ---- going on ------------------------------------------------------------------------------------------


def test_a_warm_start_refuses_other_columns_classes_and_cells() -> None:
    table = pd.DataFrame(X, columns=list("abc"))
    model = classifier(warm_start=True).fit(table, Y)
    for other, labels, message in (
        (table.assign(d=1.0), Y, "'d' is in only one of the tables"),
        (table, np.array(["u", "v"])[Y], "the classes of the last fit, 0, 1, but y has 'u', 'v'"),
        (table.assign(a="word"), Y, "column 'a' holds 'word': a number is needed"),
    ):
        with pytest.raises(BayesbinnError, match=message):
            model.fit(other, labels)


def test_a_refused_batch_leaves_no_trace() -> None:
    table = pd.DataFrame(X, columns=list("abc"))
    model, other = (classifier(buffer=0).partial_fit(table, Y, classes=[0, 1]) for _ in range(2))
    with pytest.raises(BayesbinnError, match="column 'a' holds 'word': a number is needed"):
        model.partial_fit(table.assign(a="word"), Y)
    assert np.array_equal(
        model.partial_fit(table, Y).predict_proba(table), other.partial_fit(table, Y).predict_proba(table)
    )


@pytest.mark.parametrize("cell", ["word", "2024-02-31"])
def test_a_single_odd_cell_does_not_change_the_kind_of_a_column(cell: str) -> None:
    """With kept rows, the networks would start anew with every number or date as a category."""
    days = [f"2024-01-{1 + day % 28:02}" for day in range(ROWS)]
    table = pd.DataFrame({"a": np.arange(ROWS) % 25 if cell == "word" else days, "b": X[:, 0]})
    model, other = (classifier().partial_fit(table, Y, classes=[0, 1]) for _ in range(2))
    wrong = table.astype({"a": object})
    wrong.loc[7, "a"] = cell
    with pytest.raises(BayesbinnError, match=f"column 'a' holds '{cell}': a (number|date) is needed"):
        model.partial_fit(wrong, Y)
    assert np.array_equal(
        model.partial_fit(table, Y).predict_proba(table), other.partial_fit(table, Y).predict_proba(table)
    )


def test_a_row_of_odd_cells_is_as_much_a_mistake_as_one() -> None:
    table = pd.DataFrame({name: np.arange(ROWS) % 25 + place for place, name in enumerate("abcdefgh")})
    model = classifier().partial_fit(table, Y, classes=[0, 1])
    wrong = table.astype(object)
    wrong.loc[7] = "n.d."
    with pytest.raises(BayesbinnError, match=r"holds 'n\.d\.': a number is needed"):
        model.partial_fit(wrong, Y)


def test_a_batch_of_words_changes_a_column_however_long_the_stream_was() -> None:
    table = pd.DataFrame({"a": np.arange(ROWS) % 25, "b": X[:, 0]})
    model = classifier(buffer=50)
    for _ in range(4):
        model.partial_fit(table, Y, classes=[0, 1])
    with pytest.warns(BayesbinnWarning, match="columns now read in another way: 'a'"):
        model.partial_fit(table[:8].assign(a=["low", "high"] * 4), Y[:8])
    assert model.encoding_.columns[0].kind == "category"


def test_dates_may_show_later_that_the_month_comes_first() -> None:
    days = [f"{1 + i % 12:02}/{1 + i % 11:02}/2020" for i in range(ROWS)]
    table = pd.DataFrame({"a": days, "b": X[:, 0]})
    with pytest.warns(BayesbinnWarning, match="no date shows whether the day or the month comes first"):
        model = classifier().partial_fit(table, Y, classes=[0, 1])
    later = table.copy()
    later.loc[:1, "a"] = "12/31/2020"
    with pytest.warns(BayesbinnWarning, match="columns now read in another way: 'a'"):
        model.partial_fit(later, Y)
    assert model.encoding_.columns[0].order == "mdy"


def test_a_column_may_become_text_where_rows_are_kept_and_says_so() -> None:
    table = pd.DataFrame({"a": np.arange(ROWS) % 5, "b": X[:, 0]})
    model = classifier().partial_fit(table, Y, classes=[0, 1])
    with pytest.warns(BayesbinnWarning, match="'high', unlike the rows before; columns now read in another way: 'a'"):
        model.partial_fit(table.assign(a=np.where(Y == 1, "high", "low")), Y)
    assert model.encoding_.columns[0].kind == "category" and model.score(table.assign(a="low"), Y) > 0.3


def test_balanced_weights_of_sorted_batches_follow_all_rows_so_far() -> None:
    model = classifier(class_weight="balanced", epochs=5)
    for rows in np.array_split(np.argsort(Y, kind="stable"), 4):
        model.partial_fit(X[rows], Y[rows], classes=[0, 1])
    assert model.score(X, Y) > 0.9
