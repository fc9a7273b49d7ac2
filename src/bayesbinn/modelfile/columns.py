"""The columns of a table: the description that a form is drawn from and that an encoder runs.

A cell becomes one or more *codes*, the numbers that the network takes. The codes of a missing cell are all 0. If the
training data had missing cells, the column has one more code, the last, which marks them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from math import isfinite
from typing import Any, ClassVar, Literal

from bayesbinn.errors import InvalidInput

DateOrder = Literal["ymd", "dmy", "mdy"]
CYCLES: dict[str, float] = {"year": 365.2425 * 86400, "week": 7 * 86400.0, "day": 86400.0}
"""The length of each cycle in seconds."""
CODES = ("line", "rank", "ramps")
"""The codes that a number can have; see `Scale`."""

MAX_COLUMNS = 1 << 16
MAX_CATEGORIES = 1 << 12
MAX_KNOTS = 1 << 10
MAX_WIDTH = 1 << 20
MAX_NAME = 1 << 10
"""The maximum length of a column or category name, in characters."""
_SECONDS = 400 * CYCLES["year"] * 30  # dates range from the year -10,000 to 14,000
_FLOAT32_RANGE = (2.0**-126, 2.0**127)


@dataclass(frozen=True)
class Column:
    """What all kinds of columns share."""

    kind: ClassVar[str]
    name: str
    missing: bool = False
    """Whether the training data had missing cells; if so, one more code marks them."""
    height: float = 1.0
    """Codes range from -height to height; the code of a cell's category is `height`, those of other categories 0."""

    def __post_init__(self) -> None:
        _require(
            isinstance(self.name, str) and len(self.name) <= MAX_NAME,
            "its name must be text of at most 1,024 characters",
        )
        _require(type(self.missing) is bool, "missing must be true or false")
        _require(
            type(self.height) is float and _FLOAT32_RANGE[0] <= self.height <= _FLOAT32_RANGE[1],
            f"height={self.height!r}: a number above 0 is needed",
        )

    @property
    def value_codes(self) -> int:
        """How many codes a cell has, not counting the one for missing cells."""
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
    """What numbers and dates share: knots, and codes that say where a number is between them.

    ``line`` rises linearly from -height at the first knot to height at the last, and is constant beyond them. ``rank``
    rises by the same amount between any two neighboring knots. ``ramps`` has a code for each pair of neighboring knots,
    a line between the two. A single knot has one ``line``: -height below the knot, 0 at it and height above it.
    """

    range: tuple[float, float] = (0.0, 0.0)
    """The smallest and the largest number in training; numbers outside are allowed."""
    knots: tuple[float, ...] = (0.0, 1.0)
    codes: tuple[str, ...] = ("line", "rank")
    """Which of `CODES` the column has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self.range)
        _check_knots(self.knots)
        fine = isinstance(self.codes, tuple) and self.codes == tuple(name for name in CODES if name in self.codes)
        _require(fine and len(self.codes) > 0, f"codes must be some of {', '.join(CODES)}, in this order")
        _require(len(self.knots) > 1 or self.codes == ("line",), "a single knot has one code, line")

    @property
    def scale_codes(self) -> int:
        """How many codes describe the place between the knots."""
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
    """Whether all numbers in training were whole numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(type(self.whole) is bool, "whole must be true or false")


@dataclass(frozen=True)
class CategoryColumn(Column):
    """One of several names. Each category has a code. With `other`, all rare and unseen categories share one more.

    Without `other`, the codes of a category that was not seen in training are all 0.
    """

    kind: ClassVar[str] = "category"
    categories: tuple[str, ...] = ()
    other: bool = False
    """Whether rare categories were merged in training; unseen categories are then treated the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(type(self.other) is bool, "other must be true or false")
        fine = isinstance(self.categories, tuple) and 1 <= len(self.categories) + self.other <= MAX_CATEGORIES
        _require(fine, f"1 to {MAX_CATEGORIES} categories are allowed")
        names = all(isinstance(each, str) and 1 <= len(each) <= MAX_NAME for each in self.categories)
        _require(names, f"a category must be text of 1 to {MAX_NAME} characters")
        _require(len(set(self.categories)) == len(self.categories), "a category occurs twice")

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
    """A date or time in seconds since 1970 (UTC if it has no time zone), as are the range and the knots.

    After the codes of `Scale` come two for each cycle: triangle waves from -height to height, a quarter of the cycle
    apart.
    """

    kind: ClassVar[str] = "date"
    cycles: tuple[str, ...] = ()
    """Which of `CYCLES` the column has: the time of year, of the week, of the day."""
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
    # A step that is too small or infinite would produce NaN codes.
    _require(all(2.0**-1000 <= step < float("inf") for step in steps), "its knots must ascend")


def _are_numbers(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is float and isfinite(value) for value in values)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvalidInput(otherwise)
