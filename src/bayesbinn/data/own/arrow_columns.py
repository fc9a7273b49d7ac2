"""The columns of an Arrow table in the form that an encoding takes, converted one at a time, on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.environment import need
from bayesbinn.errors import InvalidFile
from bayesbinn.modelfile.cells import MISSING

_LEADING_ZERO = r"^[+-]?0[0-9]"  # 007 is a name: as a number it would lose its zeros


class ArrowColumns(Mapping[str, Any]):
    """Some rows of some columns: numbers as float64 with NaN, dates as datetime64, everything else as a list."""

    def __init__(self, path: Path, table: Any, names: list[str], rows: NDArray[np.int64]) -> None:
        self._path, self._table, self._names, self._rows = path, table, names, rows
        self._read: dict[str, Any] = {}

    def at(self, rows: NDArray[np.int64]) -> ArrowColumns:
        """Other rows of the same columns; text is not read again."""
        other = ArrowColumns(self._path, self._table, self._names, rows)
        other._read = self._read
        return other

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = cells_of(self._path, name, self._table.column(name))
        cells = self._read[name]
        if isinstance(cells, np.ndarray):
            return cells[self._rows]
        return cells.take(need("pyarrow", "reading tables").array(self._rows)).to_pylist()


def cells_of(path: Path, name: str, column: Any) -> Any:
    """A column as an array of numbers or dates, or as Arrow's text and true/false, where null means missing."""
    arrow, types = need("pyarrow", "reading tables"), need("pyarrow", "reading tables").types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return _text(column)
    if types.is_boolean(kind) or types.is_null(kind):
        return column
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return _numbers(column.cast(arrow.float64(), safe=False))
    if types.is_date(kind) or types.is_timestamp(kind):
        return column.cast(arrow.timestamp("us"), safe=False).to_numpy()
    raise InvalidFile(
        f"{path}: column {name!r} holds {kind}: numbers, text, true/false and dates can be used; convert it or drop "
        "the column"
    )


def _text(column: Any) -> Any:
    """Numbers if every cell is one without leading zeros, otherwise trimmed text."""
    arrow, compute = need("pyarrow", "reading tables"), need("pyarrow.compute", "reading tables")
    column = compute.utf8_trim_whitespace(column)
    lost = compute.is_in(column, value_set=arrow.array(sorted(MISSING), column.type))
    column = compute.if_else(lost, arrow.scalar(None, column.type), column)
    try:
        numbers = column.cast(arrow.float64())
    except arrow.ArrowInvalid:
        return column
    names = compute.any(compute.match_substring_regex(column, _LEADING_ZERO)).as_py()
    return column if names or column.null_count == len(column) else _numbers(numbers)


def _numbers(column: Any) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = column.to_numpy()  # null becomes NaN
    return numbers.astype(np.float64)
