"""Conformal rows serve nothing but prediction sets: whatever they hold, the model stays the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris

from bayesbinn.errors import BayesbinnWarning
from bayesbinn.modelfile.container import ModelFile, to_bytes
from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor, fitting
from bayesbinn.sklearn.canonical import Parts, Rows, canonical, split
from bayesbinn.sklearn.fitting import fit_parts
from bayesbinn.sklearn.sets import thinned

SHARES = {"validation": 0.1, "calibration": 0.1, "conformal": 0.2}


def without_sets(file: ModelFile) -> bytes:
    """The file but for its conformal section."""
    sections = {name: section for name, section in file.sections.items() if name != "conformal"}
    return bytes(to_bytes(replace(file, sections=sections)))


def scores_of(file: ModelFile) -> list[float]:
    found: list[float] = file.sections["conformal"].tensors["scores"].tolist()
    return found


def iris() -> Rows:
    x, y = load_iris(return_X_y=True)
    columns = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2].astype(object), "kind": np.array(["u", "v"], object)[y % 2]}
    return canonical(columns, y, np.ones(len(y)))


def other_labels(rows: Rows) -> Rows:
    return replace(rows, targets=(rows.targets + 1) % 3)


def other_numbers(rows: Rows) -> Rows:
    return replace(rows, columns={**rows.columns, "a": rows.columns["a"] * 1000})


def a_word_among_numbers(rows: Rows) -> Rows:
    odd = rows.columns["c"].copy()
    odd[0] = "unknown"
    return replace(rows, columns={**rows.columns, "c": odd})


def new_categories_and_missing_cells(rows: Rows) -> Rows:
    cells = rows.columns["kind"].copy()
    cells[::2], cells[1::2] = "w", None
    return replace(rows, columns={**rows.columns, "kind": cells})


@pytest.mark.filterwarnings("ignore::bayesbinn.errors.BayesbinnWarning")
@pytest.mark.parametrize(
    "change", [other_labels, other_numbers, a_word_among_numbers, new_categories_and_missing_cells]
)
@pytest.mark.parametrize("weigh", [None, "balanced"])
def test_what_conformal_rows_hold_changes_only_the_sets(change: Callable[[Rows], Rows], weigh: str | None) -> None:
    model = BinaryNetworkClassifier(random_state=0, early_stopping=True, epochs=2, class_weight=weigh)
    model.classes_ = np.arange(3)
    parts = split(iris(), SHARES, np.random.default_rng(0), stratify=True)
    changed = replace(parts, conformal=change(parts.conformal))
    one, other = (fit_parts(each, model._plan(), 3, model._weight_of_class) for each in (parts, changed))
    assert without_sets(one.file) == without_sets(other.file)
    assert scores_of(one.file) != scores_of(other.file)


def test_other_targets_of_conformal_rows_change_no_prediction_of_a_regressor(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = load_diabetes(return_X_y=True)
    kept: list[Parts] = []

    def watched(rows: Rows, *arguments: Any, **named: Any) -> Parts:
        kept.append(split(rows, *arguments, **named))
        return kept[-1]

    monkeypatch.setattr(fitting, "split", watched)
    settings: dict[str, Any] = {"epochs": 2, "conformal_fraction": 0.2, "random_state": 0}
    one = BinaryNetworkRegressor(**settings).fit(x, y)
    conformal = np.array(list(kept[0].conformal.columns.values())).T
    chosen = (x[:, None] == conformal[None]).all(axis=2).any(axis=1)
    assert chosen.sum() == len(conformal) == 88
    other = BinaryNetworkRegressor(**settings).fit(x, np.where(chosen, y + 500, y))
    assert np.array_equal(one.predict(x, return_std=True), other.predict(x, return_std=True))
    assert np.array_equal(one.unfamiliarity(x), other.unfamiliarity(x))
    widths = [np.diff(model.predict_set(x)).mean() for model in (one, other)]
    assert widths[1] > 2 * widths[0]


def test_a_word_that_only_a_conformal_row_has_is_named() -> None:
    parts = split(iris(), SHARES, np.random.default_rng(0), stratify=True)
    changed = replace(parts, conformal=a_word_among_numbers(parts.conformal))
    with pytest.warns(BayesbinnWarning, match="'c' holds 'unknown', unlike every training row: a number is needed"):
        fitted = fit_parts(changed, BinaryNetworkClassifier(random_state=0, epochs=1)._plan(), 3)
    assert fitted.encoding.columns[2].kind == "number"


def test_many_scores_are_thinned_without_shrinking_a_set() -> None:
    scores, counts = np.sort(np.random.default_rng(0).random(4321)), np.ones(4321)
    fewer, weights = thinned(scores, counts, 1000)
    assert len(fewer) <= 1000 and weights.sum() == 4321 and fewer[-1] == scores[-1]
    for place in (0, 17, 3889, 4320):
        assert fewer[np.searchsorted(np.cumsum(weights), place + 1)] >= scores[place]
    assert np.array_equal(thinned(scores[:9], counts[:9], 1000)[0], scores[:9])
