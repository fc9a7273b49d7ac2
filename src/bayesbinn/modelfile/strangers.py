"""Counts the cells of a table that are unlike the training rows, so that a user hears of a column that has changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bayesbinn.modelfile.columns import CategoryColumn, Column, DateColumn, Scale

MANY = 0.1
"""The share of a column's cells above which they are worth a note."""
MAX_NAMED = 5


class Strangers:
    """Cells outside the training range, categories that training did not have, and missing cells where none were."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._there, self._odd, self._missing = (np.zeros(len(columns), np.int64) for _ in range(3))

    def add(self, index: int, numbers: NDArray[np.float64]) -> None:
        """Count some cells of a column, read as numbers: NaN is missing, and a category is its place in the list."""
        column, lost = self._columns[index], np.isnan(numbers)
        there = numbers[~lost]
        self._there[index] += len(there)
        self._missing[index] += int(lost.sum())
        if isinstance(column, Scale):
            low, high = column.range
            self._odd[index] += int(((there < low) | (there > high)).sum())
        elif isinstance(column, CategoryColumn):
            self._odd[index] += int(((there < 0) | (there >= len(column.categories))).sum())

    def notes(self, where: str) -> list[str]:
        """One line about the columns of which many cells are unlike the training rows, if there are any."""
        found = [text for index, column in enumerate(self._columns) if (text := self._described(index, column))]
        more = f" and {len(found) - MAX_NAMED} more columns" if len(found) > MAX_NAMED else ""
        return [f"{where}: unlike the training rows: {'; '.join(found[:MAX_NAMED])}{more}"] if found else []

    def _described(self, index: int, column: Column) -> str:
        there, odd, missing = (int(counts[index]) for counts in (self._there, self._odd, self._missing))
        if not column.missing and missing > MANY * (there + missing):
            return f"{column.name!r} ({missing} of {there + missing} cells are missing, none in training)"
        rare = isinstance(column, CategoryColumn) and column.other
        # Training had rare categories, which a file does not list: perhaps in most rows, but not in all.
        if odd <= MANY * there or (rare and odd < max(there, 3)):
            return ""
        if isinstance(column, CategoryColumn):
            return f"{column.name!r} ({odd} of {there} cells are categories that were {'rare or ' * rare}not there)"
        low, high = (_shown(column, bound) for bound in column.range) if isinstance(column, Scale) else ("", "")
        return f"{column.name!r} ({odd} of {there} cells are outside {low} to {high})"


def _shown(column: Column, bound: float) -> str:
    """
    >>> _shown(DateColumn("joined", range=(0.0, 86400.0), knots=(0.0, 86400.0)), 86400.0)
    '1970-01-02'
    """
    if isinstance(column, DateColumn):
        text = str(np.datetime64(int(bound), "s"))
        return text[:10] if text.endswith("T00:00:00") else text[:16]
    return f"{bound:.10g}"
