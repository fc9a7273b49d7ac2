"""Which examples are kept aside: for validation as the paper's authors do it, for testing by class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bayesbinn.errors import InvalidInput

Rows = npt.NDArray[np.int64]


def validation_rows(count: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(training, validation): the first `fraction` of a seeded NumPy shuffle is for validation.

    This is the authors' split, example by example: NumPy has promised never to change this shuffle.

    >>> validation_rows(10, 0.2, seed=1)
    (array([6, 4, 0, 3, 1, 7, 8, 5]), array([2, 9]))
    """
    if not 0 <= fraction < 1:
        raise InvalidInput(f"validation={fraction}: a share of the training set is needed, from 0 to less than 1")
    if not 0 <= seed < 2**32:
        raise InvalidInput(f"seed={seed}: the split needs a seed from 0 to {2**32 - 1}")
    rows = np.arange(count)
    np.random.RandomState(seed).shuffle(rows)
    kept = int(fraction * count)
    return rows[kept:], rows[:kept]


def stratified_rows(classes: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(training, validation) as `validation_rows` gives them, as many, but from every class in proportion.

    Each class gives its first rows in the order of the same shuffle. A class stays in training as a whole if its
    share is below half an example.

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
    """(training, test), both in the order of the data, for data that come without a test part.

    With `classes`, every class gives the same share; a class of one example stays in training.

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
