"""Prediction sets and intervals by split-conformal prediction, in NumPy.

Rows that were used for nothing else give scores: how surprising the true answer was to the model. For a new row from
the same source, the probability that its score is at most the ⌈(n + 1)·coverage⌉-th smallest of n is at least
`coverage`. With too few rows there is no such score; then only the set of everything has that coverage, and that is
what is returned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidInput

Floats = NDArray[np.float64]


def threshold(scores: Floats, counts: Floats, coverage: float) -> float:
    """The score that a new row does not exceed with the probability `coverage`; infinite with too few rows.

    `scores` are ascending; `counts` says how often each counts.

    >>> scores = np.arange(1.0, 10.0)
    >>> threshold(scores, np.ones(9), 0.9), threshold(scores, np.ones(9), 0.5), threshold(scores[:8], np.ones(8), 0.9)
    (9.0, 5.0, inf)
    """
    if not (isinstance(coverage, (int, float, np.number)) and 0 < coverage < 1):
        raise InvalidInput(f"coverage={coverage!r}: it must be a number between 0 and 1, such as 0.9")
    sums = np.cumsum(counts)
    total = sums[-1] if len(sums) else 0.0
    needed = coverage * (total + 1)
    place = int(np.searchsorted(sums, needed - 1e-9 * (total + 1)))
    return float(scores[place]) if place < len(scores) else float("inf")


def class_scores(probabilities: NDArray[Any]) -> Floats:
    """1 − p for every class: the score of a row is that of its true class."""
    return 1.0 - probabilities.astype(np.float64)


def class_sets(probabilities: NDArray[Any], limit: float) -> NDArray[np.bool_]:
    """[rows, classes]: whether a class is in the set. The likeliest class always is, so no set is empty."""
    sets: NDArray[np.bool_] = class_scores(probabilities) <= limit
    sets[np.arange(len(sets)), probabilities.argmax(axis=1)] = True
    return sets


def intervals(mean: NDArray[Any], std: NDArray[Any], limit: float) -> Floats:
    """[rows, 2]: lower and upper bound; the score of a row is |y − mean|/std."""
    half = limit * std.astype(np.float64) if np.isfinite(limit) else np.full(len(mean), np.inf)
    return np.column_stack([mean - half, mean + half])
