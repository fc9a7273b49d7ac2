"""Raw rows of a table: JavaScript gives the codes that Python gives, to the bit, and refuses the same cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.columns import BooleanColumn, CategoryColumn, Column, DateColumn, NumberColumn
from bayesbinn.modelfile.container import to_bytes
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.runtime import load
from tests.helpers.random_graphs import GraphBuilder
from tests.helpers.web import job, run_jobs
from tests.tools.fuzz_model_files import table_model

KNOTS = (-3.5, 0.0, 1 / 3, 17.0, 1e6)
COLUMNS: tuple[Column, ...] = (
    NumberColumn("n", missing=True, range=(-3.5, 1e6), knots=KNOTS, codes=("line", "rank", "ramps"), height=0.7),
    NumberColumn("step", knots=(2.0,), codes=("line",)),
    CategoryColumn("c", missing=True, categories=("a", "3", "2.5", "1e-05", "True", "ü 😀", "inf"), other=True),
    CategoryColumn("d", categories=("x", "y"), height=3.0),
    BooleanColumn("b", missing=True),
    DateColumn("ymd", missing=True, knots=(-1e9, 0.0, 1.7e9), codes=("line", "rank"), cycles=("year", "week", "day")),
    DateColumn("dmy", knots=(0.0, 1e9), codes=("line",), cycles=("day",), order="dmy"),
    DateColumn("mdy", knots=(0.0, 1e9), codes=("ramps",), order="mdy"),
)
GOOD: dict[str, list[Any]] = {
    "n": [
        0,
        -0.0,
        1,
        -3.5,
        1 / 3,
        0.1,
        1e6,
        1e308,
        -1e308,
        5e-324,
        " 17 ",
        "1e3",
        "+.5",
        "7.",
        True,
        None,
        "NA",
        "",
        "?",
    ],
    "step": [1.9999999999999998, 2, 2.0000000000000004, "2", False, None, "  nan\t", "\u2003"],
    "c": [
        "a",
        " a ",
        3,
        3.0,
        "3.0",
        "3.00",
        "-3.0",
        "3.10",
        2.5,
        1e-5,
        True,
        "ü 😀",
        "unseen",
        "inf",
        1e16,
        -0.0,
        1.5e-7,
        None,
        "None",
        "\x1fa\x85",
    ],
    "d": ["x", "y", "z", "", 7],
    "b": [True, False, "yes", "N", "T", " false ", 1, 0, "1.0", "0", None, "null"],
    "ymd": [
        "2024-02-29",
        "1969-12-31T23:59:59.999999",
        "0001-01-01",
        "9999-12-31 23:59",
        "2024/1/2",
        "2024.01.02 5:06:07Z",
        "2024-01-02T03:04:05,123456789+0530",
        "1900-03-01 00:00:00 UTC",
        "2000-02-29 12:00 -08:00",
        "05 Mar 2021",
        "5-mar-2021 12:30 AM",
        "29.February.2000 12:00:01.5 PM +01:00",
        "Sept. 5, 2021 1:02pm GMT",
        "2021-Jan-31t23:00z",
        "MAY 5 2021",
        None,
        "NaT",
        "",
    ],
    "dmy": ["31.1.2024", "1/2/1970 10:11", "2001-09-09T01:46:40", "29-02-2000", None],
    "mdy": ["1/31/2024", "02.01.1970", "1999-12-31", "?"],
}
BAD: dict[str, list[Any]] = {
    "n": ["x", "1,5", "1e999", "0x10", "١", "1_000", "--1", "\ufeff1"],
    "step": ["two", "Infinity"],
    "b": ["maybe", 2, 0.5, "truee"],
    "ymd": [
        "31.1.2024",
        "2023-02-29",
        "2024-13-01",
        "2024-1-1-",
        "0000-01-01",
        "2024-01-01 24:00",
        "2024-01/01",
        "5 Foo 2021",
        "2021-Foo-05",
        "2021-January-05",
        "5-Mar 2021",
        "5 Mar 20211",
        "5 Mar 21",
        "30 Feb 2021",
        "2024-01-01 13:00 pm",
        "2024-01-01 0:30 am",
        "Mar 2021",
        5,
        True,
    ],
    "dmy": ["31.13.2024", "1.1.24", "1/2.1970", "30.2.2000 1:2"],
    "mdy": ["31/1/2024", "yesterday"],
}
USUAL: dict[str, Any] = {name: cells[0] for name, cells in GOOD.items()}


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoding = TableEncoding(COLUMNS)
    g = GraphBuilder((encoding.width,), 1, 0)
    g.add("linear", shape=(3, encoding.width), tensors={"weight": g.weight((3, encoding.width))})
    made = g.model()
    made.encoding = encoding
    path = tmp_path_factory.mktemp("table") / "model.safetensors"
    path.write_bytes(bytes(to_bytes(made)))
    return path


def rows_with(cells: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [{**USUAL, name: cell} for name, each in cells.items() for cell in each]


def test_codes_have_the_same_bits(model: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    spread = [{**USUAL, "n": x, "step": x} for x in (random.standard_normal(300) * 10.0 ** random.integers(-9, 9, 300))]
    days = [f"{y:04}-{m:02}-{d:02} {h:02}:07:{s:02}.{u}" for y, m, d, h, s, u in zip(
        random.integers(1, 9999, 300), random.integers(1, 13, 300), random.integers(1, 29, 300),
        random.integers(0, 24, 300), random.integers(0, 60, 300), random.integers(1, 10**9, 300), strict=True,
    )]  # fmt: skip
    rows = rows_with(GOOD) + spread + [{**USUAL, "ymd": day} for day in days]
    (said,) = run_jobs([job(tmp_path, "rows", model, "exact", rows=rows)], tmp_path)
    codes = np.array(said["codes"], np.uint32).reshape(len(rows), -1)
    expected = load(model).encode_rows(rows).view(np.uint32)
    different = np.argwhere((codes != expected).any(axis=1)).ravel()
    assert not different.size, rows[different[0]]


def test_cells_of_another_kind_are_refused_in_the_same_words(model: Path, tmp_path: Path) -> None:
    rows = rows_with(BAD)
    found = run_jobs([job(tmp_path, "rows", model, "exact", rows=[row]) for row in rows], tmp_path)
    for row, said in zip(rows, found, strict=True):
        with pytest.raises(InvalidInput) as refused:
            load(model).encode_rows([row])
        assert said["verdict"] == "InvalidInput", (row, said)
        reason = str(refused.value).partition(" in row ")[2]
        assert said["message"].endswith(reason), (said["message"], str(refused.value))


def test_a_row_must_have_every_column(model: Path, tmp_path: Path) -> None:
    row = {name: cell for name, cell in USUAL.items() if name != "b"}
    (said,) = run_jobs([job(tmp_path, "rows", model, "exact", rows=[row])], tmp_path)
    assert said["verdict"] == "InvalidInput" and "row 1 has no 'b'" in said["message"]


def test_labels_and_sections_are_read(tmp_path: Path) -> None:
    made = table_model()
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(to_bytes(made)))
    (said,) = run_jobs([job(tmp_path, "facts", path, "exact")], tmp_path)
    assert said["labels"] == [str(label) for label in made.labels]
    assert set(said["sections"]) == set(made.sections)
    for name, section in made.sections.items():
        found = said["sections"][name]
        assert found["rule"] == section.rule
        assert {key: np.asarray(value).tolist() for key, value in section.numbers.items()} == found["numbers"]
        for key, array in section.tensors.items():
            assert found["shapes"][key] == list(array.shape)
            assert found["tensors"][key] == array.astype(np.float32).ravel().tolist()
