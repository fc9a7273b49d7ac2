"""What users pass as X, as columns by name: NumPy arrays, lists, pandas and polars frames."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.cells import is_missing
from bayesbinn.sklearn.canonical import Columns

_CELLS = (str, bool, int, float, np.generic, date)
"""What an encoding takes; a datetime is a date."""


def read_columns(estimator: BaseEstimator, table: Any, reset: bool) -> Columns:
    """The columns of X, checked as scikit-learn checks them; `reset` remembers their number and names.

    Columns without names are called x0, x1 and so on.
    """
    if is_frame(table):
        validate_data(estimator, table, reset=reset, skip_check_array=True)
        columns = _of_frame(table)
        rows = len(table)
        if rows == 0 or not columns:
            raise InvalidInput(f"Found array with {rows} sample(s) and {len(columns)} columns: 1 of each is needed")
    else:
        array = validate_data(estimator, table, reset=reset, dtype=None, ensure_all_finite="allow-nan")
        columns = {f"x{place}": _plain(array[:, place]) for place in range(array.shape[1])}
    return columns


def is_frame(table: Any) -> bool:
    """Whether X is a pandas or polars frame."""
    return hasattr(table, "columns") and hasattr(table, "dtypes") and hasattr(table, "shape")


def _of_frame(table: Any) -> Columns:
    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"two columns are named {twice!r}; names must differ")
    series = [table.iloc[:, place] if hasattr(table, "iloc") else table[:, place] for place in range(len(names))]
    return {name: _of_series(each) for name, each in zip(names, series, strict=True)}


def _of_series(series: Any) -> NDArray[Any]:
    kind = str(series.dtype).lower()
    if kind.startswith(("category", "categorical", "enum")):
        # Names, so that a category 3 is not taken for the number 3.
        return np.array([_name(cell) for cell in series.to_list()], dtype=object)
    array = np.asarray(series.to_numpy())
    return _plain(array)


def _name(cell: Any) -> str | None:
    missing = cell is None or cell != cell
    return None if missing else f"{cell}"


def _plain(column: NDArray[Any]) -> NDArray[Any]:
    """Numbers as float64, dates as they are, true and false as they are, and else objects; odd ones as their text."""
    if column.dtype.kind in "fiu":
        return column.astype(np.float64)
    if column.dtype.kind in "bM":
        return column
    cells = np.empty(len(column), dtype=object)
    for row, cell in enumerate(column.tolist() if column.dtype.kind in "US" else column):
        cells[row] = cell if isinstance(cell, _CELLS) or is_missing(cell) else str(cell)
    try:
        return cells.astype(np.float64) if not any(isinstance(cell, (str, bool)) for cell in cells) else cells
    except (TypeError, ValueError):
        return cells
