"""Runs an encoding: columns of cells in, codes out. Prepared once, so that a single row takes some microseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.cells import NotOfItsKind, boolean_of, category_of, number_of, seconds_of_array, seconds_reader
from bayesbinn.modelfile.columns import CYCLES, BooleanColumn, CategoryColumn, Column, DateColumn, NumberColumn

Codes = NDArray[np.float32]
Numbers = NDArray[np.float64]
_STEP = 2.0**-1000
"""Half the width of a ramp that is a step: every difference but 0 is beyond it."""
_CELLS = 1 << 18
"""Codes that are computed at once, in float64."""


@dataclass(frozen=True)
class _Ramps:
    """Codes clip((x − middle)/half, −1, 1)·height, all at once: which column each is of, and where it stands."""

    column: NDArray[np.intp]
    middle: Numbers
    half: Numbers
    height: Numbers
    place: NDArray[np.intp]

    def codes(self, numbers: Numbers) -> Numbers:
        x = numbers[:, self.column]
        x -= self.middle
        x /= self.half
        np.maximum(x, -1.0, out=x)
        np.minimum(x, 1.0, out=x)
        x *= self.height
        return x


@dataclass(frozen=True)
class _Waves:
    """Codes (|phase − ½|·4 − 1)·height of a triangle wave; phase is the rest of x/period + shift."""

    column: NDArray[np.intp]
    period: Numbers
    shift: Numbers
    height: Numbers
    place: NDArray[np.intp]

    def codes(self, numbers: Numbers) -> Numbers:
        phase = numbers[:, self.column] / self.period + self.shift
        phase -= np.floor(phase)
        waves: Numbers = (np.abs(phase - 0.5) * 4.0 - 1.0) * self.height
        return waves


class InvalidCell(InvalidInput):
    """A cell that is not what its column holds."""

    def __init__(self, what: str, row: int, needed: str) -> None:
        self.what, self.row, self.needed = what, row, needed
        super().__init__(self.in_row(row))

    def in_row(self, row: int) -> str:
        """The message for a row, counted from 0, of a larger table that these rows were taken from."""
        return f"{self.what} in row {row + 1}: {self.needed}"


class Encoder:
    """Cells of columns to codes."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self.width = sum(column.width for column in columns)
        self._readers = [_reader(column) for column in columns]
        self._missing: list[int | None] = []
        # Of a category: for each number that its reader gives, where its code stands.
        self._starts: dict[int, int] = {}
        ramps: list[tuple[int, float, float, float, int]] = []
        waves: list[tuple[int, float, float, float, int]] = []
        start = 0
        for index, column in enumerate(columns):
            if isinstance(column, CategoryColumn):
                self._starts[index] = start
            elif isinstance(column, BooleanColumn):
                ramps.append((index, 0.5, 0.5, column.height, start))
            elif isinstance(column, (NumberColumn, DateColumn)):
                ramps += [(index, *ramp, column.height, start + i) for i, ramp in enumerate(_ramps_of(column.knots))]
            if isinstance(column, DateColumn):
                first = start + column.ramps
                for i, cycle in enumerate(column.cycles):
                    waves += [(index, CYCLES[cycle], s / 4, column.height, first + 2 * i + s) for s in (0, 1)]
            self._missing.append(start + column.value_codes if column.missing else None)
            start += column.width
        self._ramps = _Ramps(*_arrays(ramps)) if ramps else None
        self._waves = _Waves(*_arrays(waves)) if waves else None

    def encode(self, cells: Sequence[Any]) -> Codes:
        """[rows, width] of columns of cells."""
        numbers = [self._read(index, values) for index, values in enumerate(cells)]
        lengths = {len(values) for values in numbers}
        if len(lengths) > 1:
            raise InvalidInput(f"columns of {min(lengths)} and of {max(lengths)} cells: all must have the same length")
        count = lengths.pop()
        codes = np.zeros((count, self.width), np.float32)
        strip = max(1, _CELLS // self.width)
        for first in range(0, count, strip):
            some = np.column_stack([values[first : first + strip] for values in numbers])
            self._fill(codes[first : first + strip], some)
        return codes

    def encode_one(self, cells: Sequence[Any]) -> Codes:
        """[1, width] of the cells of a single row: the same numbers."""
        codes = np.zeros((1, self.width), np.float32)
        numbers = []
        for index, cell in enumerate(cells):
            try:
                numbers.append(self._readers[index](cell))
            except NotOfItsKind as error:
                raise _misplaced(self._columns[index], cell, 0, error) from None
        self._fill(codes, np.array([numbers], np.float64))
        return codes

    def _fill(self, codes: Codes, numbers: Numbers) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            for group in (self._ramps, self._waves):
                if group is not None:
                    codes[:, group.place] = group.codes(numbers)
        lost = np.isnan(numbers)
        if lost.any():
            codes[np.isnan(codes)] = 0.0
            for index, place in enumerate(self._missing):
                if place is not None:
                    codes[lost[:, index], place] = self._columns[index].height
        if len(codes) == 1:
            for index, start in self._starts.items():
                chosen = numbers[0, index]
                if chosen >= 0:
                    codes[0, start + int(chosen)] = self._columns[index].height
            return
        for index, start in self._starts.items():
            rows = np.flatnonzero(numbers[:, index] >= 0)
            codes[rows, start + numbers[rows, index].astype(np.intp)] = self._columns[index].height

    def _read(self, index: int, values: Any) -> Numbers:
        """A column of cells as numbers: NaN is missing; of a category its place, -1 if it has none."""
        column, reader = self._columns[index], self._readers[index]
        if isinstance(values, np.ma.MaskedArray):
            values = values.astype(object).filled(None)
        array = values if isinstance(values, (list, tuple)) else np.asarray(values)
        if isinstance(array, np.ndarray):
            if array.ndim != 1:
                raise InvalidInput(
                    f"column {column.name!r} has the shape {array.shape}: one cell for each row is needed"
                )
            if array.dtype.kind in "fiub" and isinstance(column, NumberColumn):
                return _finite(column, array.astype(np.float64))
            if array.dtype.kind == "b" and isinstance(column, BooleanColumn):
                return array.astype(np.float64)
            if array.dtype.kind == "M" and isinstance(column, DateColumn):
                return seconds_of_array(array).astype(np.float64)
            array = array.tolist() if array.dtype.kind in "biufOUS" else list(array)
        numbers = np.empty(len(array), np.float64)
        known: dict[Any, float] = {}  # cells repeat: what was read is looked up
        for row, cell in enumerate(array):
            try:
                found = known.get(cell) if type(cell) is str else None
                if found is None:
                    found = reader(cell)
                    if type(cell) is str:
                        known[cell] = found
            except NotOfItsKind as error:
                raise _misplaced(column, cell, row, error) from None
            numbers[row] = found
        return numbers


def _finite(column: Column, numbers: Numbers) -> Numbers:
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(infinite.argmax())
        raise _misplaced(column, float(numbers[row]), row, NotOfItsKind("a finite number is needed"))
    return numbers


def _misplaced(column: Column, cell: Any, row: int, reason: Exception) -> InvalidCell:
    return InvalidCell(f"column {column.name!r} holds {_shown(cell)}", row, str(reason))


def _shown(cell: Any) -> str:
    text = repr(cell)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _reader(column: Column) -> Callable[[Any], float]:
    if isinstance(column, NumberColumn):
        return number_of
    if isinstance(column, BooleanColumn):
        return boolean_of
    if isinstance(column, DateColumn):
        return seconds_reader(column.order)
    assert isinstance(column, CategoryColumn)
    places = {name: float(place) for place, name in enumerate(column.categories)}
    unseen = float(len(column.categories)) if column.other else -1.0

    def place_of(cell: Any) -> float:
        name = category_of(cell)
        return np.nan if name is None else places.get(name, unseen)

    return place_of


def _ramps_of(knots: tuple[float, ...]) -> list[tuple[float, float]]:
    """Middle and half the width of every ramp."""
    if len(knots) == 1:
        return [(knots[0], _STEP)]
    return [(low / 2 + high / 2, (high - low) / 2) for low, high in pairwise(knots)]


def _arrays(entries: list[tuple[int, float, float, float, int]]) -> tuple[Any, ...]:
    column, first, second, height, place = zip(*entries, strict=True)
    return (
        np.array(column, np.intp),
        *(np.array(each, np.float64) for each in (first, second, height)),
        np.array(place, np.intp),
    )
