"""What prediction sets are made of: the scores of conformal rows, which are used for nothing else."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import BayesbinnWarning
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.encoder import InvalidCell
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.sections import Section
from bayesbinn.runtime.conformal import class_scores
from bayesbinn.runtime.model import Model
from bayesbinn.sklearn.canonical import Floats, Rows, counted_in_units

CONFORMAL_RULE = "split conformal"
MAX_SCORES = 1000
"""How many scores a file keeps; more would hardly change a threshold."""


def conformal_section(file: ModelFile, encoding: TableEncoding, rows: Rows) -> Section:
    """Ascending scores of rows that were used for nothing else, and how often each counts."""
    scores, counts = np.zeros(0), np.zeros(0)
    if len(rows):
        model, codes = Model(file, threads=1), _codes(encoding, rows)
        if file.graph.task == "classification":
            scores = class_scores(model.predict_proba(codes))[np.arange(len(rows)), rows.targets]
        else:
            mean, std = mean_and_std(model, codes)
            scores = np.abs(rows.targets - mean) / std
        share = rows.weights / rows.weights.max()
        counts = share * (share.sum() / (share**2).sum())  # Kish's effective number of rows
        if counted_in_units(rows.weights):
            counts = rows.weights  # how often a row occurred
        order = np.argsort(scores, kind="stable")
        scores, counts = thinned(scores[order], counts[order], MAX_SCORES)
    tensors = {"scores": scores.astype(np.float32), "counts": counts.astype(np.float32)}
    return Section(CONFORMAL_RULE, {}, tensors)


def _codes(encoding: TableEncoding, rows: Rows) -> NDArray[np.float32]:
    """The codes of conformal rows. A cell that does not fit, such as a word among numbers, counts as missing."""
    odd: list[InvalidCell] = []
    codes = encoding.encode(rows.columns, odd)
    if odd:
        warnings.warn(
            f"{odd[0].what}, unlike every training row: {odd[0].needed}. It counts as missing here, and predict "
            "rejects it; correct such cells, or turn the whole column into text",
            BayesbinnWarning,
            stacklevel=2,
        )
    return codes


def thinned(scores: Floats, counts: Floats, most: int) -> tuple[Floats, Floats]:
    """At most `most` of the ascending scores: the largest of each group replaces the group, so sets never shrink.

    >>> thinned(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.ones(5), 3)
    (array([2., 4., 5.]), array([2., 2., 1.]))
    """
    step = -(-len(scores) // most) or 1
    first = np.arange(0, len(scores), step)
    last = np.minimum(first + step, len(scores)) - 1
    return scores[last], np.add.reduceat(counts, first) if len(first) else counts


def mean_and_std(model: Model, codes: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """[rows] each: the mean of a quantity, and the standard deviation of what is predicted."""
    return model.mean_and_std(codes)
