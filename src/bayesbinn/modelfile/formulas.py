"""Turns the number of a cell into its codes. Each formula exists twice, for an array of numbers and for one number.

Both compute the same differences, quotients and limits in float64, so they round alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import floor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bayesbinn.modelfile.columns import CYCLES, BooleanColumn, CategoryColumn, Column, DateColumn, Scale

Numbers = NDArray[np.float64]
STEP = 2.0**-1000
"""Half the width of a line that acts as a step: every nonzero difference exceeds it."""


class Formula(Protocol):
    """The codes of a column for cells that are not missing."""

    nothing: list[float]
    """The codes of a missing cell."""

    def one(self, number: float) -> list[float]:
        """The codes of one number."""

    def many(self, numbers: Numbers, codes: NDArray[np.float32]) -> None:
        """Write the codes of many numbers into the first columns of `codes`, which are 0."""


class _Line:
    """clip((x − middle)/half, −1, 1)·height"""

    def __init__(self, low: float, high: float, height: float) -> None:
        self._middle, self._half, self._height = low / 2 + high / 2, (high - low) / 2 or STEP, height

    def one(self, x: float) -> float:
        return min(max((x - self._middle) / self._half, -1.0), 1.0) * self._height

    def many(self, x: Numbers) -> Numbers:
        y = (x - self._middle) / self._half
        np.maximum(y, -1.0, out=y)
        np.minimum(y, 1.0, out=y)
        y *= self._height
        return y


class _Rank:
    """((j + clip((x − kⱼ)/(kⱼ₊₁ − kⱼ), 0, 1))·2/n − 1)·height, where knot j of n + 1 is the last one up to x."""

    def __init__(self, knots: Sequence[float], height: float) -> None:
        self._inner, self._height = list(knots[1:-1]), height
        self._low, self._width = list(knots[:-1]), [high - low for low, high in pairwise(knots)]
        self._arrays = [np.array(each, np.float64) for each in (self._inner, self._low, self._width)]
        self._step = 2.0 / len(self._width)

    def one(self, x: float) -> float:
        j = bisect_right(self._inner, x)
        share = min(max((x - self._low[j]) / self._width[j], 0.0), 1.0)
        return ((j + share) * self._step - 1.0) * self._height

    def many(self, x: Numbers) -> Numbers:
        inner, low, width = self._arrays
        j = np.searchsorted(inner, x, side="right")
        share = (x - low[j]) / width[j]
        np.maximum(share, 0.0, out=share)
        np.minimum(share, 1.0, out=share)
        result: Numbers = ((j + share) * self._step - 1.0) * self._height
        return result


class _Wave:
    """(|phase − ½|·4 − 1)·height; the phase is the fractional part of x/period + shift."""

    def __init__(self, period: float, shift: float, height: float) -> None:
        self._period, self._shift, self._height = period, shift, height

    def one(self, x: float) -> float:
        phase = x / self._period + self._shift
        return (abs(phase - floor(phase) - 0.5) * 4.0 - 1.0) * self._height

    def many(self, x: Numbers) -> Numbers:
        phase = x / self._period + self._shift
        result: Numbers = (np.abs(phase - np.floor(phase) - 0.5) * 4.0 - 1.0) * self._height
        return result


class _Codes:
    """Several formulas of one number, in order."""

    def __init__(self, parts: list[Any]) -> None:
        self._each = [part.one for part in parts]
        self._many = [part.many for part in parts]
        self.nothing = [0.0] * len(parts)

    def one(self, number: float) -> list[float]:
        return [formula(number) for formula in self._each]

    def many(self, numbers: Numbers, codes: NDArray[np.float32]) -> None:
        with np.errstate(over="ignore"):  # every line limits it
            for place, formula in enumerate(self._many):
                codes[:, place] = formula(numbers)


class _Places:
    """`height` at the index of a category, 0 elsewhere; a category without an index is -1."""

    def __init__(self, count: int, height: float) -> None:
        self.nothing = [0.0] * count
        self._height = height

    def one(self, number: float) -> list[float]:
        codes = self.nothing.copy()
        if number >= 0:
            codes[int(number)] = self._height
        return codes

    def many(self, numbers: Numbers, codes: NDArray[np.float32]) -> None:
        rows = np.flatnonzero(numbers >= 0)
        codes[rows, numbers[rows].astype(np.intp)] = self._height


def formula_of(column: Column) -> Formula:
    """How a column's cells become codes."""
    if isinstance(column, CategoryColumn):
        return _Places(column.value_codes, column.height)
    if isinstance(column, BooleanColumn):
        return _Codes([_Line(0.0, 1.0, column.height)])
    assert isinstance(column, Scale)
    parts: list[Any] = []
    for code in column.codes:
        if code == "line":
            parts.append(_Line(column.knots[0], column.knots[-1], column.height))
        elif code == "rank":
            parts.append(_Rank(column.knots, column.height))
        else:
            parts += [_Line(low, high, column.height) for low, high in pairwise(column.knots)]
    if isinstance(column, DateColumn):
        parts += [_Wave(CYCLES[cycle], shift, column.height) for cycle in column.cycles for shift in (0.0, 0.25)]
    return _Codes(parts)
