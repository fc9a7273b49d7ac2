"""Runs an encoding: columns of cells in, codes out. Prepared once, so that a single row takes only microseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.cells import (
    NotOfItsKind,
    boolean_of,
    category_of,
    number_of,
    seconds_of_array,
    seconds_reader,
    without_zeros,
)
from bayesbinn.modelfile.columns import BooleanColumn, CategoryColumn, Column, DateColumn, NumberColumn
from bayesbinn.modelfile.formulas import formula_of
from bayesbinn.modelfile.strangers import Strangers

Codes = NDArray[np.float32]
Numbers = NDArray[np.float64]
_STRIP = 1 << 14
"""How many rows are encoded at a time, in float64."""


class InvalidCell(InvalidInput):
    """A cell that does not fit its column."""

    def __init__(self, what: str, row: int, needed: str, column: str = "") -> None:
        self.what, self.row, self.needed, self.column = what, row, needed, column
        super().__init__(self.in_row(row))

    def in_row(self, row: int) -> str:
        """The message for a row, counted from 0, of the larger table that these rows come from."""
        return f"{self.what} in row {row + 1}: {self.needed}"

    def anywhere(self) -> str:
        """The message without a row, for rows whose order is not the user's."""
        return f"{self.what}: {self.needed}"


class Encoder:
    """Turns columns of cells into codes.

    Many rows are encoded column by column in NumPy, a single row in plain Python, which has less overhead. Both compute
    the same expressions in float64, so the codes are identical bit for bit.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self.width = sum(column.width for column in columns)
        self._readers = [_reader(column) for column in columns]
        self._formulas = [formula_of(column) for column in columns]
        self._starts = [0, *np.cumsum([column.width for column in columns])[:-1].tolist()]

    def __reduce__(self) -> tuple[type[Encoder], tuple[Sequence[Column]]]:
        return Encoder, (self._columns,)  # its readers are functions within functions, which cannot be pickled

    def encode(
        self, cells: Iterable[Any], odd: list[InvalidCell] | None = None, strangers: Strangers | None = None
    ) -> Codes:
        """Encode columns of cells, read one after the other, as [rows, width].

        With a list `odd`, cells that do not fit their column count as missing and are added to it. `strangers` counts
        those unlike the training rows.
        """
        codes: Codes | None = None
        for index, values in enumerate(cells):
            numbers, start = self._read(index, values, odd), self._starts[index]
            if strangers is not None:
                strangers.add(index, numbers)
            if codes is None:
                codes = np.zeros((len(numbers), self.width), np.float32)
            count = len(codes)
            if len(numbers) != count:
                raise InvalidInput(f"columns of {count} and of {len(numbers)} cells: all must have the same length")
            own = codes[:, start : start + self._columns[index].width]
            for first in range(0, count, _STRIP):
                self._fill(index, numbers[first : first + _STRIP], own[first : first + _STRIP])
        assert codes is not None  # an encoding has at least one column
        return codes

    def _fill(self, index: int, numbers: Numbers, codes: Codes) -> None:
        column = self._columns[index]
        lost = np.isnan(numbers)
        if lost.any():
            there = ~lost
            some = np.zeros((int(there.sum()), column.value_codes), np.float32)
            self._formulas[index].many(numbers[there], some)
            codes[there, : column.value_codes] = some
            if column.missing:
                codes[lost, column.value_codes] = column.height
        else:
            self._formulas[index].many(numbers, codes)

    def encode_one(self, cells: Sequence[Any]) -> Codes:
        """Encode the cells of a single row as [1, width]; the numbers are those of `encode`."""
        codes: list[float] = []
        for column, reader, formula, cell in zip(self._columns, self._readers, self._formulas, cells, strict=True):
            try:
                number = reader(cell)
            except NotOfItsKind as error:
                raise _misplaced(column, cell, 0, error) from None
            if number == number:
                codes += formula.one(number)
                if column.missing:
                    codes.append(0.0)
            else:
                codes += formula.nothing
                if column.missing:
                    codes.append(column.height)
        return np.array([codes], np.float32)

    def _read(self, index: int, values: Any, odd: list[InvalidCell] | None) -> Numbers:
        """Read a column of cells as numbers. NaN means missing; a category is its index, or -1 if it has none."""
        column, reader = self._columns[index], self._readers[index]
        if isinstance(values, np.ma.MaskedArray):
            values = np.ma.filled(values.astype(object), None)
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
        known: dict[Any, float] = {}  # cells repeat, so results are cached
        for row, cell in enumerate(array):
            try:
                found = known.get(cell) if type(cell) is str else None
                if found is None:
                    found = reader(cell)
                    if type(cell) is str:
                        known[cell] = found
            except NotOfItsKind as error:
                misplaced = _misplaced(column, cell, row, error)
                if odd is None:
                    raise misplaced from None
                odd.append(misplaced)
                found = np.nan
            numbers[row] = found
        return numbers


def _finite(column: Column, numbers: Numbers) -> Numbers:
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(infinite.argmax())
        raise _misplaced(column, float(numbers[row]), row, NotOfItsKind("a finite number is needed"))
    return numbers


def _misplaced(column: Column, cell: Any, row: int, reason: Exception) -> InvalidCell:
    return InvalidCell(f"column {column.name!r} holds {_shown(cell)}", row, str(reason), column.name)


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
        if name is None:
            return np.nan
        place = places.get(name)
        # pandas writes a column of whole numbers with missing cells as 101.0 and so on.
        return place if place is not None else places.get(without_zeros(name), unseen)

    return place_of
