"""Turns what users pass as X and y (NumPy arrays, lists, pandas and polars frames) into named columns and a vector."""

from __future__ import annotations

import sys
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_y, check_consistent_length, column_or_1d, validate_data

from bayesbinn.data.own.kinds import Name
from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.cells import category_of, is_missing
from bayesbinn.sklearn.canonical import Columns

_CELLS = (str, bool, int, float, np.generic, date)
"""What an encoding takes; a datetime is a date."""
_MAX_NUMBER = sys.float_info.max
_MAX_TARGET, _MIN_SPREAD = 1e30, 1e-30
"""Model files hold float32: quantities beyond these would overflow or vanish."""


def read_columns(estimator: BaseEstimator, table: Any, reset: bool) -> Columns:
    """The columns of X, checked as scikit-learn checks them; `reset` remembers their number and names.

    Columns without names are called x0, x1 and so on. A table without names may follow one that has them, and vice
    versa, as everywhere in scikit-learn: it warns, and the columns are used in their order.
    """
    if is_frame(table):
        names = _names_of(table)
        validate_data(estimator, table, reset=reset, skip_check_array=True)
        cells = [_of_series(_series(table, place)) for place in range(len(names))]
        rows = len(table)
        if rows == 0 or not cells:
            raise InvalidInput(f"Found array with {rows} sample(s) and {len(cells)} columns; use at least 1 of each")
    else:
        array = validate_data(estimator, table, reset=reset, dtype=None, ensure_all_finite="allow-nan")
        names = [f"x{place}" for place in range(array.shape[1])]
        cells = [_plain(array[:, place]) for place in range(len(names))]
    if reset:
        estimator._column_names = tuple(names)
    columns = dict(zip(estimator._column_names, cells, strict=True))
    _refuse_unusable(columns)
    return columns


def is_frame(table: Any) -> bool:
    """Whether X is a pandas or polars frame."""
    if type(table).__name__ == "LazyFrame":
        raise InvalidInput("X is a LazyFrame, which has no rows yet; call its collect() first")
    return hasattr(table, "columns") and hasattr(table, "dtypes") and hasattr(table, "shape")


def _names_of(table: Any) -> list[str]:
    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"two columns are named {twice!r}; names must differ")
    return names


def _series(table: Any, place: int) -> Any:
    return table.iloc[:, place] if hasattr(table, "iloc") else table[:, place]


def _of_series(series: Any) -> NDArray[Any]:
    kind = str(series.dtype).lower()
    if kind.startswith(("category", "categorical", "enum")):
        # Names, so that a category 3 is not mistaken for the number 3.
        cells = np.empty(len(series), dtype=object)
        cells[:] = [_name(cell) for cell in series.to_list()]
        return cells
    array = np.asarray(series.to_numpy())
    return _plain(array)


def _name(cell: Any) -> Name | None:
    name = category_of(cell)
    return None if name is None else Name(name)


def _plain(column: NDArray[Any]) -> NDArray[Any]:
    """Numbers as float64, dates and booleans unchanged, all else as objects; cells of other types become text."""
    if column.dtype.kind in "fiu":
        return column.astype(np.float64)
    if column.dtype.kind in "bMcV":
        return column
    if column.dtype.kind == "m":  # in seconds, as the dates are
        return np.where(np.isnat(column), np.nan, column / np.timedelta64(1, "s"))
    cells = np.empty(len(column), dtype=object)
    for row, cell in enumerate(column.tolist() if column.dtype.kind in "US" else column):
        known = isinstance(cell, _CELLS) or is_missing(cell)
        cells[row] = cell if known else cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)
    try:
        return cells.astype(np.float64) if not any(isinstance(cell, (str, bool)) for cell in cells) else cells
    except (TypeError, ValueError, OverflowError):
        return cells


def _refuse_unusable(columns: Columns) -> None:
    """Checked here, where rows still have the user's numbering."""
    for name, column in columns.items():
        if column.dtype.kind in "cV":
            raise InvalidInput(f"column {name!r} holds {column.dtype}: numbers, text, true/false or dates are needed")
        bad: Any = np.zeros(0, bool)
        if column.dtype.kind == "f":
            bad = np.isinf(column)
        elif column.dtype.kind == "O":
            bad = np.array([isinstance(cell, (int, float)) and abs(cell) > _MAX_NUMBER for cell in column])
        if bad.any():
            row = int(bad.argmax())
            raise InvalidInput(
                f"column {name!r} is infinite in row {row + 1}: correct the cell, or leave it empty if it is missing"
            )


# ---- y -------------------------------------------------------------------------------------------------


def read_labels(y: Any, rows: int) -> NDArray[Any]:
    """The labels of this many rows, none missing and all of one type."""
    _need(y)
    labels: NDArray[Any] = column_or_1d(y, warn=True)
    check_consistent_length(np.empty((rows, 1)), labels)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InvalidInput("Input y contains NaN or infinity; every row needs a target")
    if labels.dtype.kind == "M" and np.isnat(labels).any():
        raise InvalidInput("Input y contains NaT; every row needs a target")
    if labels.dtype.kind == "O":
        for row, label in enumerate(labels, 1):
            if not isinstance(label, str) and is_missing(label):
                raise InvalidInput(f"the label in row {row} is missing ({label!r}); every row needs one")
        kinds = sorted({type(label).__name__ for label in labels})
        if "str" in kinds and len(kinds) > 1:
            raise InvalidInput(f"y holds {' and '.join(kinds)}; labels of one type are needed: make all of them text")
    return labels


def read_quantities(y: Any, rows: int) -> NDArray[np.float64]:
    """The quantities of this many rows, as float64."""
    _need(y)
    try:
        found: NDArray[np.float64] = _check_y(y, y_numeric=True).astype(np.float64)
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
        raise InvalidInput(f"y is not a quantity ({error}); for classes use BinaryNetworkClassifier") from None
    check_consistent_length(np.empty((rows, 1)), found)
    if not np.isfinite(found).all():
        raise InvalidInput("y has missing or infinite values; drop those rows")
    largest = float(np.abs(found).max())
    if largest > _MAX_TARGET:
        raise InvalidInput(f"y has {largest:g}, but the largest size allowed is {_MAX_TARGET:g}; use a larger unit")
    spread = float(found.max() - found.min())
    if 0 < spread < _MIN_SPREAD:
        raise InvalidInput(f"y spans only {spread:g}, but the least allowed is {_MIN_SPREAD:g}; use a smaller unit")
    return found


def _need(y: Any) -> None:
    if y is None:
        raise InvalidInput("requires y to be passed, but the target y is None")
