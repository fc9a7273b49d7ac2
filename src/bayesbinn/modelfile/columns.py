"""The columns of a table: what a form needs to be drawn, and what an encoder needs to run.

A cell becomes one or more *codes*, numbers that the network takes. A missing cell has codes that are all 0, and a
code of its own, the last, where missing cells were seen in training.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from math import isfinite
from typing import Any, ClassVar, Literal

from bayesbinn.errors import InvalidInput

DateOrder = Literal["ymd", "dmy", "mdy"]
CYCLES: dict[str, float] = {"year": 365.2425 * 86400, "week": 7 * 86400.0, "day": 86400.0}
"""Seconds after which a part of a date is the same again."""
CODES = ("line", "rank", "ramps")
"""Of a number; see `Scale`."""

MAX_COLUMNS = 1 << 16
MAX_CATEGORIES = 1 << 12
MAX_KNOTS = 1 << 10
MAX_WIDTH = 1 << 20
MAX_NAME = 1 << 10
"""Characters of the name of a column or a category."""
_SECONDS = 400 * CYCLES["year"] * 30  # the years -10,000 to 14,000: what a date can be
_FLOAT32_RANGE = (2.0**-126, 2.0**127)


@dataclass(frozen=True)
class Column:
    """What all kinds of columns have."""

    kind: ClassVar[str]
    name: str
    missing: bool = False
    """Whether cells were missing in training: then a missing cell has a code of its own."""
    height: float = 1.0
    """The codes go from -height to height; a category that is there has `height`, one that is not 0."""

    def __post_init__(self) -> None:
        _require(isinstance(self.name, str) and len(self.name) <= MAX_NAME, "its name must be text of 1,024 characters")
        _require(type(self.missing) is bool, "missing must be true or false")
        _require(
            type(self.height) is float and _FLOAT32_RANGE[0] <= self.height <= _FLOAT32_RANGE[1],
            f"height={self.height!r}: a number above 0 is needed",
        )

    @property
    def value_codes(self) -> int:
        """How many codes a cell has that is there."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """How many codes the column has."""
        return self.value_codes + self.missing

    @property
    def code_names(self) -> tuple[str, ...]:
        """A name for each code, such as ``age 20–30``, ``job=nurse`` or ``job missing``."""
        return (*self._value_names(), *([f"{self.name} missing"] if self.missing else []))

    def _value_names(self) -> tuple[str, ...]:
        raise NotImplementedError


@dataclass(frozen=True)
class Scale(Column):
    """What numbers and dates share: knots, and codes that say where between them a number is.

    ``line`` goes evenly from -height at the first knot to height at the last and stays there beyond them. ``rank`` does
    the same along the knots: from each to the next it gains as much as from any other. ``ramps`` is a code for each
    two neighbouring knots, a line between these. With a single knot there is one ``line``: -height below, 0 at and
    height above it.
    """

    range: tuple[float, float] = (0.0, 0.0)
    """The smallest and the largest number in training; others are allowed."""
    knots: tuple[float, ...] = (0.0, 1.0)
    codes: tuple[str, ...] = ("line", "rank")
    """Which of `CODES` there are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self.range)
        _check_knots(self.knots)
        fine = isinstance(self.codes, tuple) and self.codes == tuple(name for name in CODES if name in self.codes)
        _require(fine and len(self.codes) > 0, f"codes must be some of {', '.join(CODES)}, in this order")
        _require(len(self.knots) > 1 or self.codes == ("line",), "a single knot has one code, line")

    @property
    def scale_codes(self) -> int:
        """How many codes say where between the knots it is."""
        return sum(len(self.knots) - 1 if name == "ramps" else 1 for name in self.codes)

    @property
    def value_codes(self) -> int:
        return self.scale_codes

    def _value_names(self) -> tuple[str, ...]:
        names = {"line": [f"{self.name} line"], "rank": [f"{self.name} rank"]}
        names["ramps"] = [f"{self.name} {low:g} to {high:g}" for low, high in pairwise(self.knots)]
        return tuple(name for code in self.codes for name in names[code])


@dataclass(frozen=True)
class NumberColumn(Scale):
    """A quantity."""

    kind: ClassVar[str] = "number"
    whole: bool = False
    """Whether all numbers in training were whole ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(type(self.whole) is bool, "whole must be true or false")


@dataclass(frozen=True)
class CategoryColumn(Column):
    """One of several names. Each category has a code; so have, if `other`, all rare and unseen ones together.

    Without `other`, a category that was not seen in training has codes that are all 0.
    """

    kind: ClassVar[str] = "category"
    categories: tuple[str, ...] = ()
    other: bool = False
    """Whether rare categories were taken together in training: unseen ones join them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(type(self.other) is bool, "other must be true or false")
        fine = isinstance(self.categories, tuple) and 1 <= len(self.categories) + self.other <= MAX_CATEGORIES
        _require(fine, f"1 to {MAX_CATEGORIES} categories are allowed")
        names = all(isinstance(each, str) and 1 <= len(each) <= MAX_NAME for each in self.categories)
        _require(names, f"a category must be text of 1 to {MAX_NAME} characters")
        _require(len(set(self.categories)) == len(self.categories), "a category is there twice")

    @property
    def value_codes(self) -> int:
        return len(self.categories) + self.other

    def _value_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={each}" for each in (*self.categories, *(["other"] if self.other else [])))


@dataclass(frozen=True)
class BooleanColumn(Column):
    """True or false: one code, height or -height."""

    kind: ClassVar[str] = "boolean"

    @property
    def value_codes(self) -> int:
        return 1

    def _value_names(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class DateColumn(Scale):
    """A date or a time, as seconds since 1970 (UTC where it has no time zone); so are its range and its knots.

    After the codes of its place on the time line come two for each cycle: triangle waves from -height to height, a
    quarter of the cycle apart.
    """

    kind: ClassVar[str] = "date"
    cycles: tuple[str, ...] = ()
    """Which of `CYCLES` there are: the time of the year, of the week, of the day."""
    order: DateOrder = "ymd"
    """How dates are written: 2024-01-31, 31.1.2024 or 1/31/2024. The first is always understood."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(max(map(abs, (*self.range, *self.knots))) <= _SECONDS, "its dates are out of range")
        known = isinstance(self.cycles, tuple) and self.cycles == tuple(name for name in CYCLES if name in self.cycles)
        _require(known, f"cycles must be among {', '.join(CYCLES)}, in this order")
        _require(self.order in ("ymd", "dmy", "mdy"), "order must be ymd, dmy or mdy")

    @property
    def value_codes(self) -> int:
        return self.scale_codes + 2 * len(self.cycles)

    def _value_names(self) -> tuple[str, ...]:
        waves = [f"{self.name} {cycle} {i}" for cycle in self.cycles for i in (1, 2)]
        return (*super()._value_names(), *waves)


KINDS: dict[str, type[Column]] = {each.kind: each for each in (NumberColumn, CategoryColumn, BooleanColumn, DateColumn)}


def settings_of(column: Column) -> dict[str, Any]:
    """Every field by its name."""
    return {each.name: getattr(column, each.name) for each in fields(column)}


def _check_range(bounds: Any) -> None:
    _require(_are_numbers(bounds) and len(bounds) == 2 and bounds[0] <= bounds[1], "its range must be two numbers")


def _check_knots(knots: Any) -> None:
    _require(_are_numbers(knots) and 1 <= len(knots) <= MAX_KNOTS, f"1 to {MAX_KNOTS} finite knots are allowed")
    steps = [high - low for low, high in pairwise(knots)]
    # A step that is not a normal number would make codes that are not numbers.
    _require(all(2.0**-1000 <= step < float("inf") for step in steps), "its knots must ascend")


def _are_numbers(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is float and isfinite(value) for value in values)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvalidInput(otherwise)
