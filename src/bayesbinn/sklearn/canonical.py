"""Rows in canonical form, so that nothing in `fit` depends on the order of rows or on how a repeated row is written.

A row of weight 2 means the same as two equal rows of weight 1. So rows of weight 0 are dropped, equal rows (same
cells, same target) become one row whose weight is the sum of theirs, and rows are sorted. The split into parts, the
batches, the statistics of BatchNorm, the encoding and the calibration are functions of this form and of the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.modelfile.cells import is_missing

Column = NDArray[Any]
Columns = dict[str, Column]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MAX_UNITS = 20_000_000
"""Whole-number weights are split into units up to this sum."""


@dataclass(frozen=True)
class Rows:
    """Columns by name, and a target and a weight for every row."""

    columns: Columns
    targets: NDArray[Any]
    weights: Floats

    def __len__(self) -> int:
        return len(self.weights)

    def take(self, indices: Indices, weights: Floats | None = None) -> Rows:
        """Some of the rows, with new weights if they are given."""
        columns = {name: column[indices] for name, column in self.columns.items()}
        return Rows(columns, self.targets[indices], self.weights[indices] if weights is None else weights)


def canonical(columns: Mapping[str, Column], targets: NDArray[Any], weights: Floats) -> Rows:
    """The canonical form.

    >>> rows = canonical({"a": np.array([2.0, 1.0, 2.0, 5.0])}, np.array([0, 1, 0, 1]), np.array([1.0, 1.0, 2.0, 0.0]))
    >>> rows.columns["a"], rows.targets, rows.weights
    (array([1., 2.]), array([1, 0]), array([1., 3.]))
    """
    kept = np.flatnonzero(weights > 0)
    plain = {name: column + 0.0 if column.dtype.kind == "f" else column for name, column in columns.items()}
    rows = Rows(plain, targets, weights).take(kept)  # -0.0 became 0.0
    keys = [_sortable(column) for column in (*rows.columns.values(), rows.targets)]
    order = np.lexsort(keys[::-1])
    changes = np.zeros(len(order), dtype=bool)
    changes[:1] = True
    for key in keys:
        ordered = key[order]
        changes[1:] |= ordered[1:] != ordered[:-1]
    first = np.flatnonzero(changes)
    # Sorted before they are added, so that the sum has the same bits for any order of the rows.
    group = np.cumsum(changes) - 1
    by_weight = np.lexsort((rows.weights[order], group))
    totals = np.add.reduceat(rows.weights[order][by_weight], first) if len(first) else rows.weights
    return rows.take(order[first], totals)


def _sortable(column: Column) -> NDArray[Any]:
    """A key that orders and compares like the cells do; missing cells come first and equal each other."""
    if column.dtype.kind == "M":
        return column.astype("datetime64[us]").astype(np.int64)  # NaT is the smallest
    if column.dtype.kind in "fiub":
        key = column.astype(np.float64)
        missing = np.isnan(key)
        if missing.any():
            codes = np.unique(key[~missing], return_inverse=True)[1]
            key = np.full(len(column), -1.0)
            key[~missing] = codes
        return key
    names = ["" if is_missing(cell) else f"{type(cell).__name__} {cell}" for cell in column]
    places = {name: place for place, name in enumerate(sorted(set(names)))}
    return np.array([places[name] for name in names], dtype=np.int64)


def concatenated(first: Rows, second: Rows) -> Rows:
    """The rows of both, in this order."""
    columns = {name: np.concatenate([column, second.columns[name]]) for name, column in first.columns.items()}
    return Rows(
        columns,
        np.concatenate([first.targets, second.targets]),
        np.concatenate([first.weights, second.weights]),
    )


@dataclass(frozen=True)
class Parts:
    """The rows for each purpose; no row serves two."""

    training: Rows
    validation: Rows
    """For early stopping; empty without it."""
    calibration: Rows
    conformal: Rows


def split(
    rows: Rows, shares: Mapping[str, float], rng: np.random.Generator, *, stratify: bool, max_rows: int = 5000
) -> Parts:
    """Split rows at random. `shares` says which fraction goes to each named part; the rest is for training.

    If all weights are whole numbers, and not all the same, a weight w counts as w equal rows, which may end up in
    different parts. Only the training part may have more than `max_rows`.
    """
    index, unit = _units(rows)
    order = rng.permutation(len(index))
    if stratify:
        order = _spread_classes(rows.targets[index], order)
    taken: dict[str, Rows] = {}
    start = 0
    for name, share in shares.items():
        count = min(int(share * len(index)), max_rows)
        taken[name] = _gathered(rows, index[order[start : start + count]], unit)
        start += count
    return Parts(_gathered(rows, index[order[start:]], unit), **taken)


def _units(rows: Rows) -> tuple[Indices, Floats]:
    """The row of every unit, and the weight of one unit of each row."""
    if counted_in_units(rows.weights):
        return np.repeat(np.arange(len(rows)), rows.weights.astype(np.int64)), np.ones(len(rows))
    return np.arange(len(rows)), rows.weights


def counted_in_units(weights: Floats) -> bool:
    """Whether weights say how often a row occurs: whole numbers, not too many, and not all the same."""
    whole = bool((weights == np.rint(weights)).all()) and weights.sum() <= MAX_UNITS
    return whole and bool((weights != weights[:1]).any())


def _spread_classes(targets: NDArray[Any], order: Indices) -> Indices:
    """The same units, reordered so that every stretch has about the same proportions of classes.

    Class k's units are at the positions (i + ½)/n_k of the whole, so that a rare class is not lost by chance.
    """
    classes = targets[order]
    place = np.empty(len(order))
    for value in np.unique(classes):
        own = np.flatnonzero(classes == value)
        place[own] = (np.arange(len(own)) + 0.5) / len(own)
    result: Indices = order[np.argsort(place, kind="stable")]
    return result


def _gathered(rows: Rows, index: Indices, unit: Floats) -> Rows:
    """Merge units into rows again, in canonical order."""
    found, counts = np.unique(index, return_counts=True)
    return rows.take(found, unit[found] * counts)
