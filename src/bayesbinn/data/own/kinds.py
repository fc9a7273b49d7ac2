"""Finds the kind of a column from its cells (numbers, categories, true/false, dates), and counts each value."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import BayesbinnWarning, InvalidInput
from bayesbinn.modelfile.cells import (
    NotOfItsKind,
    category_of,
    is_missing,
    is_true_or_false,
    number_of,
    seconds_of_array,
    seconds_of_text,
    seconds_reader,
)
from bayesbinn.modelfile.columns import DateOrder
from bayesbinn.modelfile.encoder import InvalidCell

Kind = Literal["number", "category", "boolean", "date"]
Floats = NDArray[np.float64]

# 007 is a name: as a number it would lose its zeros.
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+(,[0-9]+)?", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+", re.ASCII)
# A number with a currency, a percent sign, a common unit or separators, such as $1,299.00 or 12.5 kg; not 02139.
_AMOUNT = re.compile(
    r"[+-]?([$€£¥] ?)?(0|[1-9][0-9]{0,2}([,' ][0-9]{3})+|[1-9][0-9]*)(\.[0-9]+)?"
    r"( ?(%|°C?|[$€£¥]|USD|EUR|GBP|[kmµ]?g|lbs?|[kcm]?m|mi|ft|m?l|h|min|m?s|yrs?|years?|days?))?"
)
_MANY = 10
FEW = 0.05
"""If no more than this share of a column's rows holds something other than numbers or dates, it may be a mistake."""
_REMEDY = "correct the cell, leave it empty, drop the column, or make it a category (in pandas or polars)"
_NUMBERS = (int, float, np.integer, np.floating, Decimal)


class Name(str):
    """A category's name, even if it looks like a number."""


@dataclass(frozen=True)
class Cells:
    """The distinct values of a column, ascending, and how many rows have each; missing cells are counted separately."""

    kind: Kind
    values: NDArray[Any]
    """Numbers, seconds since 1970, 0 and 1, or names."""
    weights: Floats
    missing: float
    order: DateOrder = "ymd"

    @property
    def total(self) -> float:
        """Rows that have a value."""
        return float(self.weights.sum())


def read_cells(name: str, values: Any, weights: Floats | None, refuse: bool = True) -> Cells:
    """Read a column. Its NumPy, pandas or polars type decides its kind; if it has none, the cells do.

    A few cells that seem to be mistakes are rejected, unless `refuse` is false.

    >>> read_cells("x", ["1", "2.5", "NA", "1"], None)
    Cells(kind='number', values=array([1. , 2.5]), weights=array([2., 1.]), missing=1.0, order='ymd')
    """
    is_category = is_declared_category(values)
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(object), None)
    array = values if isinstance(values, (list, tuple)) else np.asarray(values)
    if isinstance(array, np.ndarray):
        if array.ndim != 1:
            raise InvalidInput(f"column {name!r} has the shape {array.shape}: one cell for each row is needed")
        if array.dtype.kind in "iufbM" and not is_category:
            return _of_array(name, array, weights)
        if array.dtype.kind in "cVm":
            raise InvalidInput(f"column {name!r} holds {array.dtype}: numbers, text, true/false or dates are needed")
        array = array.tolist() if array.dtype.kind != "M" else list(array)
    return _of_objects(name, array, weights, is_category, refuse)


def is_declared_category(values: Any) -> bool:
    """Whether a column has a type of categories, or consists of their names."""
    if str(getattr(values, "dtype", "")).lower().startswith(("category", "categorical", "enum")):
        return True
    is_text = isinstance(values, (list, tuple)) or getattr(getattr(values, "dtype", None), "kind", "") == "O"
    return is_text and any(isinstance(cell, Name) for cell in values)


def refuse_slips(table: Mapping[str, Any], weights: Floats | None = None) -> None:
    """Reject the cells that `read_cells` rejects, before the rows of a table are split at random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BayesbinnWarning)
        for name, values in table.items():
            if np.asarray(values).dtype.kind not in "iufb":
                read_cells(str(name), values, weights)


def _of_array(name: str, array: NDArray[Any], weights: Floats | None) -> Cells:
    kind: Kind = "boolean" if array.dtype.kind == "b" else "date" if array.dtype.kind == "M" else "number"
    numbers = seconds_of_array(array) if kind == "date" else array.astype(np.float64)
    infinite = np.isinf(numbers)
    if infinite.any():
        raise InvalidCell(
            f"column {name!r} is infinite",
            int(infinite.argmax()),
            "correct the cell, or leave it empty if it is missing",
        )
    return _counted(kind, numbers, weights)


def _counted(kind: Kind, numbers: Floats, weights: Floats | None, order: DateOrder = "ymd") -> Cells:
    lost = np.isnan(numbers)
    if weights is not None:
        used = weights > 0
        missing = float(np.sort(weights[lost & used]).sum())
        numbers, weights = numbers[used & ~lost], weights[used & ~lost]
    else:
        missing = float(lost.sum())
        numbers = numbers[~lost]
    numbers = numbers + 0.0  # -0 becomes 0
    values, which = np.unique(numbers, return_inverse=True)
    return Cells(kind, values, _sums(which, len(values), weights), missing, order)


def _sums(which: NDArray[np.intp], count: int, weights: Floats | None) -> Floats:
    """Sums of weights by value, added in an order that does not depend on the order of the rows."""
    if weights is None:
        return np.bincount(which, minlength=count).astype(np.float64)
    order = np.lexsort((weights, which))
    return np.bincount(which[order], weights[order], minlength=count).astype(np.float64)


def _of_objects(
    name: str, cells: Sequence[Any], weights: Floats | None, is_category: bool, refuse: bool = True
) -> Cells:
    """Cells of any type; each distinct cell is read once."""
    distinct: dict[Any, int] = {}
    which = np.empty(len(cells), np.intp)
    for row, cell in enumerate(cells):
        key = (type(cell), cell) if type(cell) is not str else cell
        try:
            which[row] = distinct.setdefault(key, len(distinct))
        except TypeError:
            raise InvalidInput(
                f"column {name!r} holds {type(cell).__name__} in row {row + 1}: numbers, text, true/false or dates "
                "are needed"
            ) from None
    counted = np.ones(len(distinct), bool) if weights is None else np.bincount(which, weights, len(distinct)) > 0
    found = [key if type(key) is str else key[1] for key in distinct]
    there = [cell for cell, counts in zip(found, counted, strict=True) if counts and not is_missing(cell)]
    kind: Kind = "category"
    order: DateOrder = "ymd"
    if not is_category:
        kind, order = _kind_of(name, there)
        if kind == "category":
            _refuse_slips(name, there, found, which, _sums(which, len(found), weights), refuse)
    if kind == "category":
        return _names(found, which, weights)
    read = {"number": number_of, "boolean": _zero_or_one, "date": seconds_reader(order)}[kind]
    numbers = np.full(len(found), np.nan)
    for place, cell in enumerate(found):
        if counted[place] and not is_missing(cell):
            numbers[place] = read(cell)
    return _counted(kind, numbers[which], weights, order)


def _names(found: list[Any], which: NDArray[np.intp], weights: Floats | None) -> Cells:
    names = [category_of(cell) for cell in found]
    places = {name: place for place, name in enumerate(sorted({name for name in names if name is not None}))}
    code = np.array([-1 if name is None else places[name] for name in names], np.intp)[which]
    lost = code < 0
    sums = _sums(code[~lost], len(places), None if weights is None else weights[~lost])
    missing = float(lost.sum()) if weights is None else float(np.sort(weights[lost]).sum())
    there = sums > 0
    return Cells("category", np.array(list(places), object)[there], sums[there], missing)


def _kind_of(name: str, there: list[Any]) -> tuple[Kind, DateOrder]:
    """The kind of distinct cells, none of which is missing."""
    if not there or any(isinstance(cell, Name) for cell in there):
        return "category", "ymd"
    if all(isinstance(cell, (bool, np.bool_)) for cell in there):
        return "boolean", "ymd"
    if all(isinstance(cell, str) and is_true_or_false(cell) for cell in there):
        return "boolean", "ymd"
    if all(map(_is_a_number, there)) or all(isinstance(cell, _NUMBERS) for cell in there):
        _refuse_infinite(name, there)
        return "number", "ymd"
    orders = [order for order in get_args(DateOrder) if _are_dates(there, order)]
    if "dmy" in orders[:1] and "mdy" in orders:
        _warn_of_order(name, there)
    return ("date", orders[0]) if orders else ("category", "ymd")


def _warn_of_order(name: str, there: list[Any]) -> None:
    """Report dates that mean another day if the month comes first."""
    both = (seconds_reader("dmy"), seconds_reader("mdy"))
    unclear = [cell for cell in there if isinstance(cell, str) and both[0](cell) != both[1](cell)]
    if unclear:
        warnings.warn(
            f"column {name!r}: no date shows whether the day or the month comes first, as in {unclear[0]!r:.40}; they "
            "are read with the day first. Write year-month-day to be sure",
            BayesbinnWarning,
            stacklevel=2,
        )


def _refuse_slips(
    name: str, there: list[Any], found: list[Any], which: NDArray[np.intp], rows: Floats, refuse: bool
) -> None:
    """Reject or report the few cells that would turn a column of numbers or dates into categories.

    `rows` says how many rows hold each of the distinct cells `found`. Without `refuse`, a cell is never rejected: a
    larger part of the table has passed already.
    """
    if any(isinstance(cell, Name) for cell in there):
        return
    if have_decimal_commas(there):
        raise InvalidInput(f"column {name!r} {decimal_comma(there)}")
    places = [place for place, cell in enumerate(found) if rows[place] > 0 and not is_missing(cell)]
    total = float(rows[places].sum())
    for kind, fits in _READERS:
        slips = _few_that_do_not(fits, found, places, rows, FEW * total)
        if not slips:
            continue
        row = int(np.isin(which, slips).argmax())
        what = f"column {name!r} holds {_shown(found[which[row]])}"
        if len(there) > max(_MANY, total / 2):
            if refuse:
                raise InvalidCell(what, row, f"almost all other rows hold {kind}; {_REMEDY}")
        elif len(places) - len(slips) > _MANY:  # a few numbers that repeat are common names of categories
            warnings.warn(
                f"{what}, and {kind} in all but {rows[slips].sum():g} of {total:g} rows, so each of these becomes a "
                f"category. To learn from them as {kind}, correct such cells or leave them empty",
                BayesbinnWarning,
                stacklevel=2,
            )
        return


def _few_that_do_not(
    fit: Callable[[Any], bool], found: list[Any], places: list[int], rows: Floats, few: float
) -> list[int]:
    """The places whose cells do not fit; empty if more rows than `few` hold them."""
    odd, count = list[int](), 0.0
    for place in places:
        if not fit(found[place]):
            odd.append(place)
            count += float(rows[place])
            if count > few:
                return []
    return odd


def _shown(cell: Any) -> str:
    text = repr(cell)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _is_a_number(cell: Any) -> bool:
    if isinstance(cell, str):
        return is_number(cell)
    return isinstance(cell, _NUMBERS) and not isinstance(cell, (bool, np.bool_))


def _is_a_date(cell: Any, order: DateOrder) -> bool:
    return not _is_a_number(cell) and _are_dates([cell], order)


_READERS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("numbers", _is_a_number),
    *(("dates", partial(_is_a_date, order=order)) for order in get_args(DateOrder)),
)
"""Kinds that a few odd cells would hide, and whether a cell is of that kind."""


def have_decimal_commas(texts: Sequence[Any]) -> bool:
    """Whether all texts are numbers, and some are written with a decimal comma.

    >>> have_decimal_commas(["1,5", "2"]), have_decimal_commas(["1", "2"]), have_decimal_commas(["1,5", "x"])
    (True, False, False)
    """
    plain = [text.strip() if isinstance(text, str) else "" for text in texts]
    return any("," in text for text in plain) and all(map(_DECIMAL_COMMA.fullmatch, plain))


def decimal_comma(texts: Sequence[str]) -> str:
    """What is wrong with the first decimal comma."""
    text = next(text.strip() for text in texts if "," in text)
    example = f"{text.replace(',', '.'):.100}"
    if _THOUSANDS.fullmatch(text):
        example = f"{text.replace(',', ''):.100} if the comma separates thousands, {example} if it is a decimal comma"
    return f"holds {text!r:.100}: write numbers with a point and without separators, such as {example}"


def _refuse_infinite(name: str, there: list[Any]) -> None:
    for cell in there:
        try:
            number_of(cell)
        except NotOfItsKind:
            raise InvalidInput(
                f"column {name!r} holds {cell!r:.100}: a finite number is needed; correct the cell or leave it empty"
            ) from None


def mostly_amounts(texts: Sequence[str]) -> str | None:
    """The first text that is an amount but not a plain number, if more than half of the texts are.

    >>> mostly_amounts(["$9.99", "$1,299.00", "free"]), mostly_amounts(["1", "2"]), mostly_amounts(["a", "5 kg"])
    ('$9.99', None, None)
    """
    amounts = [text for text in texts if not is_number(text) and _AMOUNT.fullmatch(text.strip())]
    return amounts[0] if 2 * len(amounts) > len(texts) else None


def is_number(text: str) -> bool:
    """Whether text is a number. Infinite numbers count; they are rejected later, with a specific message."""
    plain = text.strip()
    if plain.lower().lstrip("+-") in ("inf", "infinity"):
        return True
    if _LEADING_ZERO.match(plain):
        return False
    try:
        number_of(plain)
    except NotOfItsKind:
        return "e" in plain.lower() and _overflows(plain)
    return True


def _overflows(text: str) -> bool:
    try:
        return "_" not in text and np.isinf(float(text))
    except ValueError:
        return False


def _are_dates(cells: list[Any], order: DateOrder) -> bool:
    read = seconds_reader(order)
    try:
        for cell in cells:
            seconds_of_text(cell, order) if isinstance(cell, str) else read(cell)
    except (NotOfItsKind, TypeError):
        return False
    return True


def _zero_or_one(cell: Any) -> float:
    return float(cell.strip().lower() == "true") if isinstance(cell, str) else float(cell)
