"""Reads the cells of a table as numbers: text, numbers, booleans, dates, and the ways to write a missing cell.

Numbers, booleans and dates become a float, which is NaN for a missing cell. Cells come from CSV files (all text),
Python (None, datetime), NumPy, pandas and polars; of these, only NumPy is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from math import isfinite, isinf, nan
from typing import Any

import numpy as np

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.columns import DateOrder

MISSING = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"}
    | {"NULL", "NaN", "None", "n/a", "nan", "null", "NaT", "?"}
)
"""Text that means a missing cell: what pandas recognizes when it reads a file, and a question mark."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_TIME = (
    r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*(?:([AP])M\s*)?"
    r"(Z|UTC|GMT|[+-]\d{2}:?\d{2})?)?"
)
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_NAME = f"({'|'.join(_MONTHS)})[A-Z]{{0,6}}"
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})" + _TIME, re.ASCII)
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})" + _TIME, re.ASCII)
_DAY_AND_NAME = re.compile(r"^(\d{1,2})([-/. ])" + _NAME + r"[.,]?\2(\d{4})", re.ASCII)
_NAME_AND_DAY = re.compile("^" + _NAME + r"\.? (\d{1,2}),? (\d{4})", re.ASCII)
_SHORT_NAME = re.compile(f"-({'|'.join(_MONTHS)})-")
_WHOLE = re.compile(r"^(-?[0-9]+)\.0+\Z", re.ASCII)
_EPOCH = datetime(1970, 1, 1)
_TRUE = frozenset({"true", "t", "yes", "y", "1", "1.0"})
_FALSE = frozenset({"false", "f", "no", "n", "0", "0.0"})


class NotOfItsKind(InvalidInput):
    """A cell that does not fit its column; the text says what is needed."""


def is_missing(cell: Any) -> bool:
    """Whether a cell is missing: None, NaN, NaT, pandas' NA, or text in `MISSING`.

    >>> is_missing(" "), is_missing("NA"), is_missing(float("nan")), is_missing(0)
    (True, True, True, False)
    """
    if cell is None:
        return True
    if isinstance(cell, str):
        return cell.strip() in MISSING
    try:
        return bool(cell != cell)
    except (TypeError, ValueError):  # pandas' NA has no truth value
        return type(cell).__name__ == "NAType"


def number_of(cell: Any) -> float:
    """The number in a cell, which may be text.

    >>> number_of("1e3"), number_of(True), number_of("NA")
    (1000.0, 1.0, nan)
    """
    kind = type(cell)
    if kind is float or kind is int:
        return _finite(cell)
    if isinstance(cell, str):
        text = cell.strip()
        if _NUMBER.fullmatch(text):
            return _finite(text)
        if text in MISSING:
            return nan
        raise NotOfItsKind("a number is needed")
    if is_missing(cell):
        return nan
    if isinstance(cell, (date, np.datetime64, timedelta, np.timedelta64, complex, bytes)):
        raise NotOfItsKind("a number is needed")
    return _finite(cell)


def _finite(cell: Any) -> float:
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        raise NotOfItsKind("a number is needed") from None
    if isinf(number):
        raise NotOfItsKind("a finite number is needed")
    return number


def boolean_of(cell: Any) -> float:
    """1 for true, yes, 1 and the like; 0 for their opposites.

    >>> boolean_of("Yes"), boolean_of(False), boolean_of(None)
    (1.0, 0.0, nan)
    """
    if cell is True or cell is False:
        return float(cell)
    if is_missing(cell):
        return nan
    text = str(cell).strip().lower()
    if text in _TRUE:
        return 1.0
    if text in _FALSE:
        return 0.0
    raise NotOfItsKind("true or false is needed")


def is_true_or_false(text: str) -> bool:
    """Whether text is the word true or false; yes and no are ordinary categories."""
    return text.strip().lower() in ("true", "false")


def category_of(cell: Any) -> str | None:
    """A category's name: trimmed text, or a whole number without its decimal point; None if missing.

    >>> category_of(" nurse "), category_of(3.0), category_of(True), category_of("")
    ('nurse', '3', 'True', None)
    """
    if isinstance(cell, str):
        text = cell.strip()
        return None if text in MISSING else text
    if is_missing(cell):
        return None
    if isinstance(cell, (float, np.floating)) and isfinite(cell) and cell == int(cell):
        return str(int(cell))
    return str(cell).strip()


def without_zeros(name: str) -> str:
    """The name of a category; a whole number without zeros after its decimal point.

    >>> without_zeros("101.0"), without_zeros("1.50"), without_zeros("v1.0")
    ('101', '1.50', 'v1.0')
    """
    return _WHOLE.sub(r"\1", name)


def seconds_reader(order: DateOrder) -> Callable[[Any], float]:
    """A function from a cell to seconds since 1970.

    >>> seconds_reader("dmy")("2.1.1970"), seconds_reader("mdy")("1/2/1970 00:01"), seconds_reader("dmy")("1970-01-02")
    (86400.0, 86460.0, 86400.0)
    """

    def seconds(cell: Any) -> float:
        if isinstance(cell, str):
            return nan if cell.strip() in MISSING else seconds_of_text(cell, order)
        if is_missing(cell):
            return nan
        if isinstance(cell, datetime):
            return _seconds(cell)
        if isinstance(cell, date):
            return (cell - _EPOCH.date()).days * 86400.0
        if isinstance(cell, np.datetime64):
            return float(seconds_of_array(np.array([cell]))[0])
        raise _not_a_date(order)

    return seconds


def seconds_of_array(dates: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """NumPy dates as seconds since 1970; NaT becomes NaN."""
    lost = np.isnat(dates)
    micro = dates.astype("datetime64[us]").astype(np.int64)
    return np.where(lost, nan, micro / 1e6)


def seconds_of_text(text: str, order: DateOrder) -> float:
    """Seconds since 1970 of a date as text, with or without a time.

    The year comes first, or last after day and month in `order`. Months may have English names: 5 Mar 2021.

    >>> seconds_of_text("2 Jan 1970", "ymd"), seconds_of_text("January 2, 1970 12:01 am", "ymd")
    (86400.0, 86460.0)
    """
    plain = _with_numbers(text.strip().upper())
    if found := _YEAR_FIRST.fullmatch(plain):
        year, _, month, day, *time = found.groups()
    elif order != "ymd" and (found := _YEAR_LAST.fullmatch(plain)):
        first, _, second, year, *time = found.groups()
        day, month = (first, second) if order == "dmy" else (second, first)
    else:
        raise _not_a_date(order)
    hour, minute, second, fraction, half, zone = time
    parts = [int(part or 0) for part in (year, month, day, hour, minute, second)]
    if half and not 1 <= parts[3] <= 12:
        raise _not_a_date(order)
    if half:
        parts[3] = parts[3] % 12 + (12 if half == "P" else 0)
    try:
        moment = datetime(*parts, microsecond=int((fraction or "0").ljust(6, "0")[:6]))  # type: ignore[arg-type,misc]
    except ValueError:
        raise _not_a_date(order) from None
    return _seconds(moment) - _offset(zone)


def _with_numbers(text: str) -> str:
    """A date whose month has a name as year-month-day; other text unchanged."""
    year_first = _NAME_AND_DAY.sub(r"\3-\1-\2", _DAY_AND_NAME.sub(r"\4-\3-\1", text))
    return _SHORT_NAME.sub(lambda found: f"-{1 + _MONTHS.index(found[1])}-", year_first, count=1)


def _not_a_date(order: DateOrder) -> NotOfItsKind:
    return NotOfItsKind(f"a date is needed, such as {_EXAMPLE[order]}")


_EXAMPLE = {"ymd": "2024-01-31", "dmy": "31.1.2024", "mdy": "1/31/2024"}


def _offset(zone: str | None) -> float:
    if zone in (None, "Z", "UTC", "GMT"):
        return 0.0
    digits = zone[1:].replace(":", "")
    return (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1.0 if zone[0] == "-" else 1.0)


def _seconds(moment: datetime) -> float:
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH) / timedelta(seconds=1)
