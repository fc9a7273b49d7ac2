"""How the rows of a table become the numbers that a network takes. It is part of the model file and needs only NumPy.

`TableEncoding` is the description, which is stored and which a form can be drawn from; `encode` runs it. The codes of
a row depend only on that row and have the same bits whether it comes alone or among a million: every code is one
expression of differences, quotients and limits in float64, which round the same way on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidFile, InvalidInput, nearest
from bayesbinn.modelfile.cells import category_of
from bayesbinn.modelfile.column_json import column_document, column_from
from bayesbinn.modelfile.columns import (
    MAX_COLUMNS,
    MAX_NAME,
    MAX_WIDTH,
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
)
from bayesbinn.modelfile.encoder import Encoder, InvalidCell
from bayesbinn.modelfile.strangers import Strangers
from bayesbinn.modelfile.strict_json import compact_json, strict_json

__all__ = ["BooleanColumn", "CategoryColumn", "Column", "DateColumn", "NumberColumn", "TableEncoding", "category_of"]

Table = Mapping[str, Any]
"""Columns by name: lists, NumPy arrays, pandas or polars series."""


@dataclass(frozen=True)
class TableEncoding:
    """The columns of a table in the order of their codes.

    >>> encoding = TableEncoding((NumberColumn("age", knots=(20.0, 30.0, 60.0), codes=("line", "rank")),))
    >>> encoding.encode({"age": [20, 30, 40, 99]}).tolist()
    [[-1.0, -1.0], [-0.5, 0.0], [0.0, 0.3333333432674408], [1.0, 1.0]]
    >>> encoding.encode_rows([{"age": None}]).tolist()
    [[0.0, 0.0]]
    """

    columns: tuple[Column, ...]
    ignored: tuple[str, ...] = ()
    """Columns of the training table that carry no information, such as row numbers; they are optional."""

    def __post_init__(self) -> None:
        names = [*(column.name for column in self.columns), *self.ignored]
        if not 1 <= len(self.columns) <= MAX_COLUMNS or len(self.ignored) > MAX_COLUMNS:
            raise InvalidInput(f"{len(self.columns)} columns: 1 to {MAX_COLUMNS:,} are allowed")
        if len(set(names)) != len(names):
            raise InvalidInput("two columns have the same name")
        if self.width > MAX_WIDTH:
            raise InvalidInput(f"{self.width:,} codes: at most {MAX_WIDTH:,} are allowed")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the required columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(column.width for column in self.columns)

    @property
    def code_names(self) -> tuple[str, ...]:
        """A name for each of these numbers."""
        return tuple(name for column in self.columns for name in column.code_names)

    def encode(
        self, table: Table, odd: list[InvalidCell] | None = None, strangers: Strangers | None = None
    ) -> NDArray[np.float32]:
        """Encode a table, given as columns by name, as [rows, width]; extra columns are ignored.

        A missing column is an error, and so is a cell that does not fit its column. With a list `odd`, such a cell
        counts as missing instead and is added to it. `strangers` counts the cells unlike the training rows.
        """
        self.check_columns(list(table))
        return self._encoder.encode((table[name] for name in self.names), odd, strangers)

    def encode_array(self, array: NDArray[Any], where: str = "the array") -> NDArray[np.float32]:
        """The same for a two-dimensional array whose columns are those of the encoding, in its order.

        If there are more codes than columns, an array with one column per code is taken as codes.
        """
        if array.ndim == 2 and array.shape[1] == len(self.columns):
            try:
                return self._encoder.encode(array[:, index] for index in range(len(self.columns)))
            except InvalidCell as error:
                raise InvalidInput(f"{where}: {error}") from None
        if array.ndim != 2 or array.shape[1] != self.width or array.dtype.kind not in "biuf":
            raise InvalidInput(
                f"{where}: an array of {array.dtype} and shape {array.shape}; rows with a cell for each of the "
                f"{len(self.columns)} columns that the model was trained on are needed, or {self.width} codes"
            )
        with np.errstate(over="ignore"):
            codes = array.astype(np.float32)
        if not np.isfinite(codes).all():
            raise InvalidInput(f"{where}: its codes are not finite numbers")
        return codes

    def encode_rows(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """The same for rows that map column names to cells. A missing cell is None and must not be left out."""
        names = self.names
        if not isinstance(rows, (list, np.ndarray)):
            _refuse_frames(rows)
        try:
            if len(rows) == 1:
                row = rows[0]
                return self._encoder.encode_one([row[name] for name in names])
            columns = [[row[name] for row in rows] for name in names]
        except (KeyError, TypeError, IndexError):  # IndexError: an array
            raise _explained(rows, names) from None
        return self._encoder.encode(columns)

    def check_columns(self, there: Sequence[str], where: str = "the table") -> None:
        """Raise an error if the table lacks a required column."""
        known = set(there)
        lost = [name for name in self.names if name not in known]
        if lost:
            others = [name for name in there if name not in set(self.names)]
            more = f" ({len(lost)} are missing: {', '.join(lost[:5])})" if len(lost) > 1 else ""
            raise InvalidInput(
                f"{where}: no column {lost[0]!r}, which the model was trained on{more}.{nearest(lost[0], others)}"
            )

    def unknown_columns(self, there: Sequence[str]) -> list[str]:
        """The columns of a table that the training table did not have."""
        known = {*self.names, *self.ignored}
        return [name for name in there if name not in known]

    def notes_on(self, there: Sequence[str], where: str, label: str | None = None) -> list[str]:
        """What a user should know about a table's columns: those that training did not have are not used."""
        others = [name for name in self.unknown_columns(there) if name != label]
        some = ", ".join(map(repr, others[:5])) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        return [f"{where}: ignored, because the model does not use them: {some}"] if others else []

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.columns)

    # ---- JSON ------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The text that the model file stores."""
        document: dict[str, Any] = {"columns": [column_document(column) for column in self.columns]}
        return compact_json(document | ({"ignored": self.ignored} if self.ignored else {}))

    @classmethod
    def from_json(cls, text: str) -> TableEncoding:
        """Read and check such a text; anything unexpected raises `InvalidFile`.

        >>> encoding = TableEncoding((BooleanColumn("member"),), ignored=("id",))
        >>> TableEncoding.from_json(encoding.to_json()) == encoding
        True
        """
        document = strict_json(text, "the encoding")
        if not {"columns"} <= set(document) <= {"columns", "ignored"}:
            raise InvalidFile(f"the encoding has the keys {sorted(document)[:5]}, not columns and ignored")
        columns, ignored = document["columns"], document.get("ignored", [])
        if not isinstance(columns, list) or len(columns) > MAX_COLUMNS:
            raise InvalidFile(f"the encoding needs a list of 1 to {MAX_COLUMNS:,} columns")
        if not isinstance(ignored, list) or not all(isinstance(n, str) and len(n) <= MAX_NAME for n in ignored):
            raise InvalidFile("the encoding's ignored columns must be a list of names")
        found = tuple(column_from(each, place) for place, each in enumerate(columns))
        try:
            return cls(found, tuple(ignored))
        except InvalidInput as error:
            raise InvalidFile(f"the encoding: {error}") from None


_FRAMES = {"to_dicts": "frame.to_dicts()", "to_pylist": "table.to_pylist()", "to_dict": 'frame.to_dict("records")'}
"""How rows become mappings, by the method that polars, pyarrow and pandas have for it."""


def _refuse_frames(rows: Any) -> None:
    """A frame looks like a list, but of columns."""
    if hasattr(rows, "columns"):
        example = next((each for method, each in _FRAMES.items() if hasattr(rows, method)), '[{"column": cell}]')
        raise InvalidInput(f"rows are a {type(rows).__name__}: pass a list of mappings instead, {example}")


def _explained(rows: Any, names: Sequence[str]) -> InvalidInput:
    """Why some rows cannot be read by name."""
    if isinstance(rows, np.ndarray) and not all(isinstance(row, Mapping) for row in rows.reshape(-1)):
        order = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
        return InvalidInput(
            f"rows are an array of shape {rows.shape}, whose columns have no names; pass a list of mappings, such as "
            f"[dict(zip(names, row)) for row in array], with the model's names: {order}"
        )
    for place, row in enumerate(rows if isinstance(rows, Iterable) else (), 1):
        if not isinstance(row, Mapping):
            return InvalidInput(f"row {place} is {type(row).__name__}: a mapping of columns to cells is needed")
        for name in names:
            if name not in row:
                return InvalidInput(
                    f"row {place} has no {name!r}, which the model was trained on.{nearest(name, map(str, row))} "
                    "A missing cell is None"
                )
    return InvalidInput("rows must be a list of mappings of columns to cells")
