"""A caller's numbers in the form the networks need: float32, contiguous, nothing missing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesbinn.errors import InvalidInput


def as_floats(x: ArrayLike) -> NDArray[np.float32]:
    """A contiguous array of float32; numbers beyond float32 become infinite.

    >>> as_floats(np.ma.masked_invalid([[1.0, np.nan]]))
    Traceback (most recent call last):
    bayesbinn.errors.InvalidInput: row 0 has masked entries; fill them first, as x.filled(value) does
    """
    if type(x) is np.ndarray and x.dtype == np.float32:
        return np.ascontiguousarray(x)
    _refuse_masks(x)
    try:
        array = np.asarray(x)
        if array.dtype.kind == "c":
            raise TypeError  # NumPy would drop the imaginary parts
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, dtype=np.float32)
    except (TypeError, ValueError):
        raise InvalidInput("inputs must be real numbers in an array of one shape") from None


def _refuse_masks(x: Any) -> None:
    """Reject masked entries: NumPy drops the mask when it converts an array and would use the values under it."""
    if isinstance(x, np.ma.MaskedArray):
        rows = np.ma.getmaskarray(x).reshape(len(x) if x.ndim else 1, -1).any(axis=1)
        if rows.any():
            raise InvalidInput(f"row {rows.argmax()} has masked entries; fill them first, as x.filled(value) does")
    elif isinstance(x, (list, tuple)):
        for index, row in enumerate(x):
            if isinstance(row, np.ma.MaskedArray) and np.ma.getmaskarray(row).any():
                raise InvalidInput(f"row {index} has masked entries; fill them first, as x.filled(value) does")


def first_not_finite(x: NDArray[np.float32]) -> int:
    """The first row of [rows, size] with NaN or an infinity; -1 if there is none.

    >>> first_not_finite(np.array([[1, 2], [np.inf, 3]], np.float32))
    1
    """
    lost = ~np.isfinite(x).all(axis=1)
    return int(lost.argmax()) if lost.any() else -1
