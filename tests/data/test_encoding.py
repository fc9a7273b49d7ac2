"""Learning an encoding: what kind columns are, and that only the weighted set of rows matters."""

from __future__ import annotations

import warnings
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesbinn.data.own.encoding import MAX_CATEGORIES, knots_of, learn_encoding
from bayesbinn.data.own.kinds import Name
from bayesbinn.errors import BayesbinnWarning, InvalidInput
from bayesbinn.modelfile.columns import BooleanColumn, CategoryColumn, Column, DateColumn, NumberColumn


def learned(*cells: Any, **more: Any) -> Column:
    """The encoding of one column."""
    return learn_encoding({"x": list(cells)}, **more).columns[0]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([1, 2, 3], "number"),
        (["1", " 2.5", "-3e4", "NA"], "number"),
        ([1, None, 2.5], "number"),
        (["01", "02", "10"], "category"),  # numbers would lose their zeros
        (["a", "b", "a"], "category"),
        ([True, False, None], "boolean"),
        (["true", "False", ""], "boolean"),
        (["yes", "no", "yes"], "category"),
        (["2024-01-31", "2024-02-01", "NaT"], "date"),
        (["2024-01-31 12:00", "2024-02-01T13:30Z"], "date"),
        ([date(2024, 1, 1), datetime(2024, 1, 2)], "date"),
        (["2024-01-31", "tomorrow", "tomorrow"], "category"),
        ([1, "a", 1, "a"], "category"),
    ],
)
def test_cells_say_of_what_kind_a_column_is(cells: list[Any], kind: str) -> None:
    assert learned(*cells).kind == kind


def test_types_of_numpy_pandas_and_polars_say_so_too() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    kinds = {
        "number": [np.array([1, 2]), pandas.Series([1, None], dtype="Int64"), polars.Series([1.5, None, 2.0])],
        "boolean": [
            np.array([True, False]),
            pandas.Series([True, None], dtype="boolean"),
            polars.Series([True, False]),
        ],
        "date": [
            np.array(["2024-01-01", "NaT", "2024-01-05"], "datetime64[D]"),
            pandas.to_datetime(pandas.Series(["2024-01-01", "2024-05-01"])),
            polars.Series([date(2024, 1, 1), date(2024, 1, 7), None]),
        ],
        "category": [
            pandas.Series([1, 2, 1, 2], dtype="category"),
            pandas.Series(["a", "b", None]),
            polars.Series(["a", "b"], dtype=polars.Categorical),
            np.array(["a", "b"]),
        ],
    }
    for kind, columns in kinds.items():
        for column in columns:
            assert learn_encoding({"x": column}).columns[0].kind == kind, column


def test_the_order_of_day_and_month_is_found() -> None:
    for cells, order in ((["31.12.2023", "1.1.2024"], "dmy"), (["12/31/2023", "1/1/2024"], "mdy")):
        column = learned(*cells)
        assert isinstance(column, DateColumn) and column.order == order
    assert learned("2023/12/31", "2024-01-01").order == "ymd"  # type: ignore[attr-defined]


def test_cycles_are_those_that_the_dates_pass() -> None:
    def cycles(*cells: str) -> tuple[str, ...]:
        column = learned(*cells)
        assert isinstance(column, DateColumn)
        return column.cycles

    assert cycles("2024-01-01", "2024-01-02") == ()
    assert cycles("2024-01-01", "2024-01-15") == ("week",)
    assert cycles("2020-01-01", "2024-01-15 08:00") == ("year", "week", "day")


def test_knots_are_values_with_equally_many_rows_between_them() -> None:
    assert knots_of(np.arange(101.0), np.ones(101), 4) == (0, 25, 50, 75, 100)
    assert knots_of(np.array([1.0, 2.0, 7.0]), np.ones(3), 8) == (1, 2, 7), "few values: each is a knot"
    zeros = knots_of(np.arange(50.0), np.r_[1000.0, np.ones(49)], 4)
    assert zeros[0] == 0 and len(zeros) >= 4, "a value that most rows have is a knot, and the others have theirs"


def test_one_outlier_does_not_stretch_the_scale() -> None:
    numbers = np.random.default_rng(0).normal(size=1000)
    plain, spoiled = (learn_encoding({"x": x}).columns[0] for x in (numbers, np.r_[numbers[1:], 1e9]))
    assert isinstance(plain, NumberColumn) and isinstance(spoiled, NumberColumn)
    assert spoiled.range[1] == 1e9 and spoiled.knots[-1] < 10
    assert np.allclose(plain.knots, spoiled.knots, atol=0.2)


@pytest.mark.parametrize("power", [-280, -30, 0, 30, 300])
def test_numbers_of_any_scale_have_the_same_codes(power: int) -> None:
    numbers = np.random.default_rng(0).lognormal(0, 3, 200)
    expected, found = (learn_encoding({"x": x}).encode({"x": x}) for x in (numbers, numbers * 10.0**power))
    assert np.allclose(found, expected, atol=2e-3)


def test_rare_categories_share_a_place_and_unseen_ones_join_them() -> None:
    cells = ["a"] * 500 + ["b"] * 400 + ["rare", "odd"]
    column = learned(*cells)
    assert isinstance(column, CategoryColumn) and column.categories == ("a", "b") and column.other
    many = learned(*[f"c{i % 200}" for i in range(100_000)])
    assert isinstance(many, CategoryColumn) and len(many.categories) + many.other <= MAX_CATEGORIES


def test_columns_that_say_nothing_are_left_out_and_named() -> None:
    notes: list[str] = []
    table = {
        "id": [f"u{i}" for i in range(40)],
        "constant": [3] * 40,
        "empty": [None] * 40,
        "x": [i % 4 for i in range(40)],
        "sometimes": ["yes" if i % 2 else None for i in range(40)],
    }
    encoding = learn_encoding(table, notes=notes)
    assert encoding.names == ("x", "sometimes") and encoding.ignored == ("id", "constant", "empty")
    assert notes == [
        "left out: 'id' (almost every row has a different value, like names or row numbers)",
        "left out: 'constant' (always the same)",
        "left out: 'empty' (all cells are missing)",
    ]


def test_an_encoding_has_a_code_even_if_all_rows_are_alike() -> None:
    for cell in (7.0, "a", None, True, "2024-01-01"):
        encoding = learn_encoding({"x": [cell] * 3})
        assert encoding.width >= 1 and np.isfinite(encoding.encode({"x": [cell] * 3})).all()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "the table has no columns"),
        ({"x": np.array([1.0, np.inf])}, "column 'x' is infinite in row 2"),
        ({"x": ["1", "inf"]}, "column 'x' holds 'inf': a finite number is needed"),
        ({"x": ["1", "1e999"]}, "column 'x' holds '1e999': a finite number is needed"),
        ({"x": [[1], [2]]}, "column 'x' holds list in row 1"),
        ({"x": np.ones((2, 2))}, "column 'x' has the shape (2, 2)"),
        (
            {"x": ["2024-02-31", *(f"2024-03-{day:02}" for day in range(1, 32))]},
            "column 'x' holds '2024-02-31' in row 1: almost all other rows hold dates",
        ),
        (
            {"x": [*map(str, range(40)), "many"]},
            "column 'x' holds 'many' in row 41: almost all other rows hold numbers",
        ),
        ({"x": np.ones(2, complex)}, "column 'x' holds complex128"),
    ],
)
def test_what_cannot_be_encoded_is_one_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        learn_encoding(table)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_word_that_turns_numbers_into_categories_is_reported() -> None:
    ages = [str(20 + age % 30) for age in range(100)]
    with pytest.warns(
        BayesbinnWarning, match="'x' holds 'unknown', and numbers in all but 1 of 101 rows, so each of these"
    ):
        assert isinstance(learned(*ages, "unknown"), CategoryColumn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(learned(*ages, *["unknown"] * 10), CategoryColumn)  # a tenth of the rows is no mistake
        assert isinstance(learned(*[str(grade % 9) for grade in range(100)], "K"), CategoryColumn)
        assert isinstance(learned(*ages, None, ""), NumberColumn)


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("${}.50", r"text such as '\$100.50': write plain numbers"),
        ("{} kg", "text such as '100 kg': write plain numbers"),
        ("{}", "numbers in most rows, but also '-': correct such cells"),
        ("Ms {} Smith", "almost every row has a different value"),
        ("0{}", "almost every row has a different value"),
        ("192.168.0.{}", "almost every row has a different value"),
    ],
)
def test_text_that_is_left_out_is_reported(cell: str, why: str) -> None:
    cells = [cell.format(100 + i) for i in range(100)] + (["-"] * 10 if cell == "{}" else [])
    table = {"a": [i / 8 for i in range(len(cells))], "z": cells}
    with pytest.warns(BayesbinnWarning, match=rf"left out: 'z' \({why}"):
        assert learn_encoding(table).ignored == ("z",)
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn_encoding(table, notes=notes)  # whoever takes notes hears of it there
        assert learn_encoding({"a": [1, 2, 3], "b": [7, 7, 7]}).ignored == ("b",)
    assert len(notes) == 1 and notes[0].startswith("left out: 'z' (")


def test_numbers_that_are_names_may_differ_in_every_row() -> None:
    names = pd.Series([str(i) for i in range(100)], dtype="category")
    with pytest.warns(BayesbinnWarning, match=r"left out: 'id' \(almost every row has a different value"):
        assert learn_encoding({"id": names, "x": list(range(100))}).ignored == ("id",)


def test_numbers_and_numbers_as_text_are_numbers() -> None:
    assert isinstance(learned(*range(50), *map(str, range(50, 100))), NumberColumn)
    assert isinstance(learned(*range(50), *["a", "b"] * 30), CategoryColumn)


def test_slips_are_counted_by_weight() -> None:
    """Two heavy rows are no mistakes, and rows that do not count say nothing."""
    cells = ["none", "none", *map(str, range(98))]
    with pytest.raises(InvalidInput, match="column 'x' holds 'none' in row 1: almost all other rows hold numbers"):
        learn_encoding({"x": cells})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heavy = np.where(np.array(cells) == "none", 1000.0, 1.0)
        assert learn_encoding({"x": cells}, heavy).columns[0].kind == "category"
        light = np.array([1.0] * 20 + [0.0] * 980)
        mixed = ["a", "b"] * 10 + [str(i % 30) for i in range(980)]
        assert learn_encoding({"x": mixed}, light).columns[0].kind == "category"


def test_a_few_repeated_dates_and_a_word_are_categories() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cells = ["2020-01-01", "2020-02-01", "2020-03-01"] * 40 + ["never"] * 3
        assert isinstance(learned(*cells), CategoryColumn)


def test_dates_that_do_not_show_their_order_are_reported() -> None:
    with pytest.warns(
        BayesbinnWarning, match="no date shows whether the day or the month comes first, as in '01/02/20"
    ):
        found = learned("01/02/2024", "03/04/2024")
    assert isinstance(found, DateColumn) and found.order == "dmy"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = learned("01/02/2024", "13/04/2024")
    assert isinstance(found, DateColumn) and found.order == "dmy"


def test_weights_that_are_none_are_refused() -> None:
    for weights in ([1.0], [1.0, -1.0], [1.0, np.nan]):
        with pytest.raises(InvalidInput, match="weights must be one finite number for each row, 0 or more"):
            learn_encoding({"x": [1, 2]}, np.array(weights))


rows_and_weights = st.lists(
    st.tuples(
        st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(0, 5)),
        st.sampled_from(["a", "b", "c", "d", None]),
        st.sampled_from(["2024-01-01", "2024-03-05", "2023-12-31"]),
        st.integers(0, 4),
    ),
    min_size=3,
    max_size=40,
)


@given(rows_and_weights, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_only_the_weighted_set_of_rows_matters(rows: list[tuple[Any, ...]], random: Any) -> None:
    """In another order, and with every row repeated as often as its weight says, the encoding is the same."""

    def encoding_of(chosen: list[tuple[Any, ...]], weighted: bool) -> Any:
        table = {name: [row[i] for row in chosen] for i, name in enumerate(("number", "category", "date"))}
        return learn_encoding(table, np.array([row[3] for row in chosen], float) if weighted else None)

    repeated = [row for row in rows for _ in range(row[3])]
    if not repeated:
        return
    expected = encoding_of(repeated, weighted=False)
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert encoding_of(rows, weighted=True) == expected
    assert encoding_of(shuffled, weighted=True) == expected


def test_weights_need_not_be_whole() -> None:
    x = np.random.default_rng(0).normal(size=300)
    weights = np.random.default_rng(1).random(300)
    order = np.random.default_rng(2).permutation(300)
    first = learn_encoding({"x": x}, weights)
    assert learn_encoding({"x": x[order]}, weights[order]) == first
    assert learn_encoding({"x": np.r_[x, x]}, np.r_[weights / 2, weights / 2]) == first


def test_booleans_have_one_code() -> None:
    assert learned(True, False, True) == BooleanColumn("x")


def test_amounts_that_are_declared_categories_are_not_questioned() -> None:
    texts = [f"{12 * (i % 4)}h" for i in range(1, 80)]
    with pytest.warns(BayesbinnWarning, match=r"'t' has text such as '0h', which becomes categories without an order"):
        learn_encoding({"t": texts})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn_encoding({"t": pd.Series(texts, dtype="category")})
        learn_encoding({"t": np.array([Name(text) for text in texts], object)})
