"""How unlike the training data a row is, from its codes, in NumPy.

Codes of the training rows have a mean and a few main directions. A new row is far away if its distance along these
directions, in their standard deviations, is large, or if its distance from them is large: the squares of both are
added. The score is divided by the value that 95 % of the training rows stay below, each scored with the statistics of
other rows, so that 1 is unusual and 2 is suspicious.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.modelfile.sections import Section

RULE = "principal components of the codes"
MAX_DIRECTIONS = 8
USUAL = 0.95
"""The share of usual rows whose score is below 1."""
_MAX_ROWS = 5000
_FOLDS, _ROWS_OF_A_FOLD = 4, 5

Floats = NDArray[np.float64]


def learn(codes: NDArray[np.float32], weights: Floats) -> Section:
    """The statistics of training rows; most rows, scored with the statistics of others, stay below the unit."""
    step = max(1, -(-len(codes) // _MAX_ROWS))
    x, w = codes[::step].astype(np.float64), weights[::step]
    found = _statistics(x, w)
    unit = float(np.quantile(_scores_as_new_rows(x, w), USUAL, method="higher"))
    return Section(RULE, {**found.numbers, "unit": unit or 1.0}, found.tensors)


def _statistics(x: Floats, weights: Floats) -> Section:
    """Mean and main directions, with the unit 1."""
    share = weights / weights.sum()
    mean = share @ x
    centred = (x - mean) * np.sqrt(share)[:, None]
    values, vectors = _main_directions(centred)
    spread = float((centred**2).sum())
    rest = max(spread - float(values.sum()), 1e-3 * spread, 1e-9)
    tensors = {
        "mean": mean.astype(np.float16),
        "directions": (vectors / np.sqrt(values)[:, None]).astype(np.float32).astype(np.float16),
    }
    return Section(RULE, {"deviations": tuple(np.sqrt(values).tolist()), "rest": rest, "unit": 1.0}, tensors)


def _scores_as_new_rows(x: Floats, weights: Floats) -> Floats:
    """Score every row with the statistics of other folds, as if it were new; very few rows, with their own."""
    if len(x) < _FOLDS * _ROWS_OF_A_FOLD:
        return score(_statistics(x, weights), x.astype(np.float32))
    fold, scores = np.arange(len(x)) % _FOLDS, np.empty(len(x))
    for each in range(_FOLDS):
        own = fold == each
        scores[own] = score(_statistics(x[~own], weights[~own]), x[own].astype(np.float32))
    return scores


def _main_directions(centred: Floats) -> tuple[Floats, Floats]:
    """The largest variances and their unit vectors, with signs that do not depend on the solver."""
    wide = centred.shape[1] > centred.shape[0]
    gram = centred @ centred.T if wide else centred.T @ centred
    values, vectors = np.linalg.eigh(gram)
    # Smaller ones, divided by their deviation, would exceed float16.
    count = min(MAX_DIRECTIONS, int((values > max(1e-6 * float(values[-1]), 1e-8)).sum()))
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count].T
    if wide:
        vectors = vectors @ centred / np.sqrt(values)[:, None]
    largest = np.abs(vectors).argmax(axis=1)
    signs = np.sign(vectors[np.arange(len(vectors)), largest]) if len(vectors) else np.ones(0)
    return values, vectors * signs[:, None]


def score(section: Section, codes: NDArray[np.float32]) -> Floats:
    """[rows]: how unlike the training rows each row is. A row's score does not depend on the other rows."""
    mean, scaled = (section.tensors[name].astype(np.float64) for name in ("mean", "directions"))
    numbers: Any = section.numbers
    deviations = np.array(numbers["deviations"])
    away = codes.astype(np.float64) - mean
    # A matrix product may round a row differently among others; a sum along the last axis does not.
    along = np.stack([(away * direction).sum(axis=1) for direction in scaled], axis=1) if len(scaled) else away[:, :0]
    off = np.maximum((away**2).sum(axis=1) - ((along * deviations) ** 2).sum(axis=1), 0.0)
    distances: Floats = np.sqrt((along**2).sum(axis=1) + off / numbers["rest"])
    scores: Floats = distances / numbers["unit"]
    return scores
