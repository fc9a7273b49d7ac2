"""Table encodings: codes by hand, the same bits for one row and for many, and texts that are refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.modelfile.cells import MISSING
from bayesbinn.modelfile.columns import BooleanColumn, CategoryColumn, Column, DateColumn, NumberColumn
from bayesbinn.modelfile.encoding import TableEncoding

DAY = 86400.0
AGE = NumberColumn("age", missing=True, range=(18.0, 90.0), knots=(20.0, 30.0, 60.0), codes=("line", "rank", "ramps"))
JOB = CategoryColumn("job", missing=True, categories=("cook", "nurse"), other=True)
MEMBER = BooleanColumn("member")
SINCE = DateColumn("since", range=(0.0, 4 * DAY), knots=(0.0, 4 * DAY), codes=("line",), cycles=("week", "day"))
ENCODING = TableEncoding((AGE, JOB, MEMBER, SINCE), ignored=("id",))
ROW = {"age": 40, "job": "nurse", "member": True, "since": "1970-01-03"}


def codes(column: Column, *cells: Any) -> list[list[float]]:
    return TableEncoding((column,)).encode({column.name: list(cells)}).tolist()


def test_a_number_by_hand() -> None:
    """The line is 0 at 40, the middle of 20 and 60; the rank has one of its two steps at 30."""
    third = np.float32(1 / 3).item()
    assert codes(AGE, 20, 40, 1e300, None) == [
        [-1, -1, -1, -1, 0],
        [0, third, 1, np.float32(-1 / 3).item(), 0],
        [1, 1, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_a_single_knot_is_a_step_and_height_scales() -> None:
    step = NumberColumn("x", knots=(5.0,), codes=("line",), height=2.0)
    assert codes(step, 4.999999, 5, 5.0000001, -1e308, nan) == [[-2], [0], [2], [-2], [0]]


def test_categories_have_places_and_unseen_ones_too() -> None:
    assert codes(JOB, "cook", " nurse ", "astronaut", "NA", None) == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
    ]
    assert codes(CategoryColumn("job", categories=("a", "3")), "b", 3.0, 3, "") == [[0, 0], [0, 1], [0, 1], [0, 0]]


def test_true_and_false() -> None:
    cells = [True, "FALSE", "yes", 0, np.True_, None]
    assert codes(BooleanColumn("m", missing=True), *cells) == [[1, 0], [-1, 0], [1, 0], [-1, 0], [1, 0], [0, 1]]


def test_a_date_is_a_place_on_a_line_and_in_its_cycles() -> None:
    """1970-01-01 was a Thursday: phase 0 of the cycle of a week; noon is half a day."""
    (first,), (noon,) = codes(SINCE, date(1970, 1, 1)), codes(SINCE, datetime(1970, 1, 1, 12))
    assert first == [-1, 1, 0, 1, 0]
    assert noon[3:] == [-1, 0]
    week_later = codes(SINCE, "1970-01-08")[0]
    assert week_later[1:] == first[1:] and week_later[0] == 1


@pytest.mark.parametrize(
    "cell",
    [
        "1970-01-02 01:30",
        "1970-1-2T01:30:00Z",
        "1970/01/02 03:30:00+02:00",
        "2 Jan 1970 01:30",
        "02-JAN-1970 1:30 AM",
        "January 2, 1970 1:30 pm +12:00",
        datetime(1970, 1, 2, 1, 30),
        datetime(1970, 1, 2, 3, 30, tzinfo=timezone(timedelta(hours=2))),
        datetime(1970, 1, 2, 1, 30, tzinfo=UTC),
        np.datetime64("1970-01-02T01:30"),
    ],
)
def test_dates_in_all_their_forms(cell: Any) -> None:
    assert codes(SINCE, cell) == codes(SINCE, "1970-01-02 01:30:00")
    assert TableEncoding((SINCE,)).encode_rows([{"since": cell}]).tolist() == codes(SINCE, cell)


def test_the_order_of_day_and_month_is_the_column_s() -> None:
    day_first, month_first = (
        DateColumn("d", knots=(0.0, 365 * DAY), codes=("line",), order=order) for order in ("dmy", "mdy")
    )
    assert codes(day_first, "2.1.1970") == codes(month_first, "1/2/1970") == codes(day_first, "1970-01-02")
    with pytest.raises(InvalidInput, match=r"holds '13/13/1970' in row 1: a date is needed, such as 31.1.2024"):
        codes(day_first, "13/13/1970")


def test_a_whole_number_among_categories_may_have_zeros_after_its_point() -> None:
    """As pandas writes a column of whole numbers with missing cells."""
    machine = CategoryColumn("machine", missing=True, categories=("101", "102"), other=True)
    assert codes(machine, "102.0") == codes(machine, "102") == codes(machine, 102.0) == codes(machine, 102)
    assert codes(machine, "102.5") == codes(machine, "unseen") != codes(machine, "102.0")
    as_text = CategoryColumn("version", categories=("1", "1.0"))
    assert codes(as_text, "1.0") != codes(as_text, "1")


@pytest.mark.parametrize("cell", [*sorted(MISSING), None, nan, np.nan, np.datetime64("NaT")])
def test_what_stands_for_a_missing_cell(cell: Any) -> None:
    lost = NumberColumn("x", missing=True, knots=(0.0, 1.0), codes=("line",))
    expected = [[0.0, 1.0]]
    assert codes(lost, cell) == expected
    assert codes(DateColumn("x", missing=True, knots=(0.0, 1.0), codes=("line",)), cell) == expected
    assert codes(CategoryColumn("x", missing=True, categories=("a",)), cell) == expected


def test_pandas_and_polars_columns_are_read_like_lists() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    expected = ENCODING.encode_rows([ROW, {**ROW, "age": None, "job": None}])
    cells = {
        "age": [40, None],
        "job": ["nurse", None],
        "member": [True, True],
        "since": [datetime(1970, 1, 3)] * 2,
    }
    frame = pandas.DataFrame(cells).astype({"age": "Int64", "job": "category"})
    for table in (frame, pandas.DataFrame(cells), polars.DataFrame(cells), polars.DataFrame(cells).to_dict()):
        columns = {name: table[name] for name in ("age", "job", "member", "since")}
        assert np.array_equal(ENCODING.encode(columns), expected)


def test_masked_cells_are_missing() -> None:
    column = np.ma.masked_invalid([40.0, nan])
    assert np.array_equal(TableEncoding((AGE,)).encode({"age": column}), np.array(codes(AGE, 40, None), np.float32))


cells_of_a_row = st.fixed_dictionaries(
    {
        "age": st.one_of(st.none(), st.floats(allow_infinity=False), st.integers(-(10**12), 10**12)),
        "job": st.sampled_from(["cook", "nurse", "pilot", "", None]),
        "member": st.sampled_from([True, False, None, "yes", 0]),
        "since": st.one_of(st.none(), st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), st.just("2024-02-29")),
    }
)


@given(st.lists(cells_of_a_row, min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_a_row_has_the_same_bits_whatever_stands_beside_it(rows: list[dict[str, Any]]) -> None:
    together = ENCODING.encode_rows(rows)
    assert together.dtype == np.float32 and together.shape == (len(rows), ENCODING.width)
    for row, expected in zip(rows, together, strict=True):
        alone = ENCODING.encode_rows([row])[0]
        assert alone.tobytes() == expected.tobytes() or np.array_equal(alone, expected)
    assert np.abs(together).max() <= 1


def test_numbers_as_text_and_as_numbers_are_the_same() -> None:
    numbers = [0.1, 1e-300, 33.333333333333336, -7.0]
    assert codes(AGE, *numbers) == codes(AGE, *map(repr, numbers))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"age": "old"}, "column 'age' holds 'old' in row 1: a number is needed"),
        ({"age": "1_000"}, "column 'age' holds '1_000' in row 1: a number is needed"),
        ({"age": float("inf")}, "column 'age' holds inf in row 1: a finite number is needed"),
        ({"age": "1e999"}, "column 'age' holds '1e999' in row 1: a finite number is needed"),
        ({"age": date(2020, 1, 1)}, "a number is needed"),
        ({"member": "perhaps"}, "column 'member' holds 'perhaps' in row 1: true or false is needed"),
        ({"since": 7}, "column 'since' holds 7 in row 1: a date is needed, such as 2024-01-31"),
        ({"since": "2023-02-29"}, "column 'since' holds '2023-02-29' in row 1: a date is needed"),
    ],
)
def test_a_cell_of_another_kind_is_named(row: dict[str, Any], message: str) -> None:
    for rows in ([{**ROW, **row}], [{**ROW, **row}, ROW]):
        with pytest.raises(InvalidInput) as caught:
            ENCODING.encode_rows(rows)
        assert message in str(caught.value) and "\n" not in str(caught.value)


def test_infinite_numbers_in_arrays_are_named() -> None:
    with pytest.raises(InvalidInput, match="column 'age' holds inf in row 2: a finite number is needed"):
        TableEncoding((AGE,)).encode({"age": np.array([1.0, np.inf])})


def test_missing_columns_are_named_and_others_passed_over() -> None:
    with pytest.raises(InvalidInput, match=r"the table: no column 'job', which the model was trained on"):
        ENCODING.encode({name: [1] for name in ("age", "member", "since")})
    with pytest.raises(InvalidInput, match=r"row 2 has no 'job', .* Did you mean 'jobb'\? A missing cell is None"):
        ENCODING.encode_rows([ROW, {"jobb" if key == "job" else key: value for key, value in ROW.items()}])
    with pytest.raises(InvalidInput, match="row 1 is list: a mapping of columns to cells is needed"):
        ENCODING.encode_rows([[1, 2, 3, 4]])  # type: ignore[list-item]
    assert ENCODING.unknown_columns(["age", "id", "extra"]) == ["extra"]
    assert np.array_equal(ENCODING.encode_rows([{**ROW, "extra": object()}]), ENCODING.encode_rows([ROW]))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidInput, match="columns of 2 and of 1 cells"):
        ENCODING.encode({**{key: [value] for key, value in ROW.items()}, "age": [1, 2]})


def test_json_gives_the_same_encoding_and_names_say_what_codes_are() -> None:
    assert TableEncoding.from_json(ENCODING.to_json()) == ENCODING
    assert len(ENCODING.code_names) == ENCODING.width == 5 + 4 + 1 + 5
    assert ENCODING.code_names[:5] == ("age line", "age rank", "age 20 to 30", "age 30 to 60", "age missing")
    assert ENCODING.code_names[5:9] == ("job=cook", "job=nurse", "job=other", "job missing")


def changed(**changes: Any) -> str:
    """The encoding's JSON with other values in its first column; None deletes a key."""
    document = json.loads(ENCODING.to_json())
    document["columns"][0] |= changes
    document["columns"][0] = {key: value for key, value in document["columns"][0].items() if value is not None}
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "the encoding is not a JSON object"),
        ("{", "the encoding is not JSON"),
        ('{"columns":[]}', "0 columns: 1 to 65,536 are allowed"),
        ('{"columns":[1]}', "column 0 is not an object"),
        ('{"columns":[{"kind":"number"}]}', "column 0 has no name"),
        ('{"columns":[{"kind":"boolean","name":"a"},{"kind":"boolean","name":"a"}]}', "two columns have the same name"),
        ('{"columns":[{"kind":"boolean","name":"a"}],"more":1}', "not columns and ignored"),
        ('{"columns":[{"kind":"boolean","name":"a"}],"ignored":[1]}', "must be a list of names"),
        ('{"columns":[{"kind":"category","name":"a"}]}', "1 to 4096 categories are allowed"),
        ('{"columns":[{"kind":"category","name":"a","categories":["x","x"]}]}', "a category occurs twice"),
        ('{"columns":[{"kind":"category","name":"a","categories":[""]}]}', "text of 1 to 1024 characters"),
        ('{"columns":[{"kind":"date","name":"a","cycles":["day","year"]}]}', "cycles must be among"),
        ('{"columns":[{"kind":"date","name":"a","order":"ydm"}]}', "order must be ymd, dmy or mdy"),
        ('{"columns":[{"kind":"date","name":"a","knots":[0,1e200]}]}', "its dates are out of range"),
        (changed(kind="numbr"), "its kind is 'numbr'"),
        (changed(knot=[1]), "a number has no 'knot'. Did you mean 'knots'?"),
        (changed(knots=[]), "1 to 1024 finite knots"),
        (changed(knots=[1, 1]), "its knots must ascend"),
        (changed(knots=[2, 1]), "its knots must ascend"),
        (changed(knots=[0, 1e-320]), "its knots must ascend"),
        (changed(knots=[-1e308, 1e308]), "its knots must ascend"),
        (changed(knots=["a"]), "finite knots"),
        (changed(knots=list(range(2000))), "1 to 1024 finite knots"),
        (changed(knots=[1]), "a single knot has one code"),
        (changed(codes=["rank", "line"]), "codes must be some of"),
        (changed(codes=[]), "codes must be some of"),
        (changed(codes="line"), "codes must be some of"),
        (changed(range=[2, 1]), "its range must be two numbers"),
        (changed(missing=1), "missing must be true or false"),
        (changed(height=0), "a number above 0 is needed"),
        (changed(height=1e300), "a number above 0 is needed"),
        (changed(height=True), "a number above 0 is needed"),
        (changed(whole="yes"), "whole must be true or false"),
        (changed(name=7), "its name must be text"),
        (changed(name="x" * 2000), "its name must be text"),
    ],
)
def test_odd_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        TableEncoding.from_json(text)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 600
