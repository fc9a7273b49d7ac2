"""Which examples to hold out: for validation as the paper's authors do, for testing by class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bayesbinn.errors import InvalidInput

Rows = npt.NDArray[np.int64]


def validation_rows(count: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(training, validation): the first `fraction` of a seeded NumPy shuffle is used for validation.

    This is exactly the authors' split: NumPy guarantees that this shuffle never changes.

    >>> validation_rows(10, 0.2, seed=1)
    (array([6, 4, 0, 3, 1, 7, 8, 5]), array([2, 9]))
    """
    if not 0 <= fraction < 1:
        raise InvalidInput(f"validation={fraction}: must be a fraction of the training set, from 0 to less than 1")
    if not 0 <= seed < 2**32:
        raise InvalidInput(f"seed={seed}: must be from 0 to {2**32 - 1}")
    rows = np.arange(count)
    np.random.RandomState(seed).shuffle(rows)
    kept = int(fraction * count)
    return rows[kept:], rows[:kept]


def stratified_rows(classes: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(training, validation) of the same sizes as in `validation_rows`, but stratified by class.

    Each class contributes its first rows in the order of the same shuffle. A class whose share is below half an example
    stays entirely in training.

    >>> stratified_rows(np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1]), 0.5, seed=1)[1].tolist()
    [2, 6, 9, 4, 0]
    """
    train, held = validation_rows(len(classes), fraction, seed)
    rows = np.concatenate([held, train])
    shuffled = classes[rows]
    place = np.empty(len(rows))
    for each in np.unique(classes):
        members = np.flatnonzero(shuffled == each)
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    rows = rows[np.argsort(place, kind="stable")]
    return rows[len(held) :], rows[: len(held)]


def holdout_rows(classes: Rows | None, count: int, fraction: float = 0.2, seed: int = 0) -> tuple[Rows, Rows]:
    """(training, test), both in data order, for data without a test part.

    With `classes`, every class contributes the same fraction; a class with one example stays in training.

    >>> holdout_rows(np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1]), 10)[1].tolist()
    [2, 5]
    """
    random = np.random.RandomState(seed)
    groups = [np.arange(count)] if classes is None else [np.flatnonzero(classes == c) for c in np.unique(classes)]
    taken = np.zeros(count, bool)
    for group in groups:
        size = min(max(round(fraction * len(group)), 1), len(group) - 1)
        taken[random.permutation(group)[:size]] = True
    return np.flatnonzero(~taken), np.flatnonzero(taken)
