"""Raw rows through a model file: native and NumPy agree, one row and many too, and nothing but NumPy is imported."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput, InvalidUse
from bayesbinn.modelfile.columns import NumberColumn
from bayesbinn.modelfile.container import write
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.runtime import Model, load
from bayesbinn.runtime.inputs import load_inputs
from tests.helpers.places import ROOT
from tests.helpers.random_graphs import GraphBuilder
from tests.tools.fuzz_model_files import table_model

ROWS: list[dict[str, Any]] = [
    {"age": 41, "x": 0.5, 'job, "': "cook", "member": True, "since": "31.1.1990"},
    {"age": None, "x": -3, 'job, "': "pilot", "member": None, "since": "1985-05-01"},
    {"age": "17", "x": "1e9", 'job, "': None, "member": "no", "since": None},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "model.safetensors", table_model())
    return tmp_path / "model.safetensors"


def test_native_and_numpy_agree_on_raw_rows(path: Path) -> None:
    pytest.importorskip("bayesbinn.runtime._native", reason="the package was built without native kernels")
    native, plain = (load(path, backend=backend) for backend in ("native", "reference"))
    probabilities = native.predict_rows(ROWS)
    assert probabilities.shape == (3, 3) and np.allclose(probabilities.sum(1), 1)
    assert np.abs(probabilities - plain.predict_rows(ROWS)).max() < 1e-6


def test_one_row_many_rows_and_columns_give_the_same_bits(path: Path) -> None:
    model = load(path)
    together = model.predict_rows(ROWS)
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert np.array_equal(model.predict_rows(columns), together)
    for row, expected in zip(ROWS, together, strict=True):
        assert np.array_equal(model.predict_rows([row])[0], expected)
    assert np.array_equal(model.predict_proba(model.encode_rows(ROWS)), together)
    assert np.array_equal(model.prediction(model.encode_rows(ROWS)).probabilities, together)


def test_a_model_knows_its_labels_encoding_and_sections(path: Path) -> None:
    model = load(path)
    assert model.labels == (0, 1, 2) and model.encoding == table_model().encoding
    assert model.sections["conformal"].numbers["rows"] == 50
    assert model.sections["conformal"].tensors["scores"].tolist() == [0, 1, 2, 3, 4]


def test_a_model_without_an_encoding_takes_no_rows() -> None:
    file = table_model()
    file.encoding = None
    with pytest.raises(InvalidUse, match="has no table encoding: it takes arrays of numbers"):
        Model(file).predict_rows(ROWS)


def test_wrong_rows_are_one_line(path: Path) -> None:
    model = load(path)
    for rows, message in (
        ([{**ROWS[0], "age": "old"}], "column 'age' holds 'old' in row 1: a number is needed"),
        ([{key: value for key, value in ROWS[0].items() if key != "x"}], "row 1 has no 'x'"),
        ({"age": [1]}, "the table: no column 'x', which the model was trained on (4 are missing"),
    ):
        with pytest.raises(InvalidInput) as caught:
            model.predict_rows(rows)  # type: ignore[arg-type]
        assert message in str(caught.value) and "\n" not in str(caught.value)


def test_arrays_and_frames_are_told_what_to_pass(path: Path) -> None:
    model = load(path)
    cells = np.array([list(row.values()) for row in ROWS], dtype=object)
    for array in (cells, cells[:1], cells[0], np.zeros((4, 5))):
        with pytest.raises(InvalidInput) as caught:
            model.predict_rows(array)  # type: ignore[arg-type]
        text = str(caught.value)
        assert text.startswith(f"rows are an array of shape {array.shape}, whose columns have no names; pass a list")
        assert "'age', 'x'" in text and "\n" not in text
    for rows in (None, 3, iter(ROWS)):
        with pytest.raises(InvalidInput, match=r"^rows must be a list of mappings of columns to cells$"):
            model.predict_rows(rows)  # type: ignore[call-overload]
    # Both have always worked: an array of mappings, and a structured array.
    assert np.array_equal(model.predict_rows(np.array(ROWS)), model.predict_rows(ROWS))  # type: ignore[call-overload]
    lacking = np.array([ROWS[0], {name: cell for name, cell in ROWS[0].items() if name != next(iter(ROWS[0]))}])
    with pytest.raises(InvalidInput, match=f"^row 2 has no '{next(iter(ROWS[0]))}'"):
        model.predict_rows(lacking)  # type: ignore[call-overload]
    named = np.array([tuple(row.values()) for row in ROWS], dtype=[(name, object) for name in ROWS[0]])
    assert np.array_equal(model.predict_rows(named), model.predict_rows(ROWS))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("package", "example"), [("pandas", 'frame.to_dict("records")'), ("polars", "frame.to_dicts()")]
)
def test_frames_are_told_what_to_pass(path: Path, package: str, example: str) -> None:
    frames = pytest.importorskip(package)
    model = load(path)
    whole = frames.DataFrame({name: [str(row[name] or "") for row in ROWS] for name in ROWS[0]})
    for frame in (whole, whole[:1]):
        with pytest.raises(InvalidInput) as caught:
            model.predict_rows(frame)
        assert str(caught.value) == f"rows are a DataFrame: pass a list of mappings instead, {example}"
    records = whole.to_dict("records") if package == "pandas" else whole.to_dicts()
    assert model.predict_rows(records).shape == (3, 3)


# ---- raw rows where codes are needed -------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_numbers_that_cannot_be_codes_are_rejected(path: Path, backend: Any) -> None:
    model = load(path, backend=backend)
    codes = np.tile(model.encode_rows(ROWS), (2000, 1))
    codes[5000, 5] = -41.5
    for predict in (model.predict, model.predict_proba, model.prediction):
        with pytest.raises(InvalidInput) as caught:
            predict(codes)
        assert str(caught.value) == (
            "row 5000 has -41.5, but 'x line' is from -0.5 to 0.5; this model takes codes here, raw rows of its "
            "table go to predict_rows()"
        )
    assert model.outputs(codes).shape == (1, 6000, 3), "what networks do with any numbers can still be seen"


def test_codes_at_their_limits_are_accepted(path: Path) -> None:
    """Every code is at most its column's height, which float32 may round up; half precision rounds further."""
    model = load(path)
    assert model.encoding is not None
    heights = [column.height for column in model.encoding.columns for _ in range(column.width)]
    limits = np.array([heights, [-height for height in heights]])
    assert model.predict_proba(limits).shape == (2, 3)
    encoding = TableEncoding((NumberColumn("x", knots=(0.0, 1.0), codes=("line",), height=2.71),))
    graph = GraphBuilder((1,), 1, 0)
    graph.add("linear", shape=(2, 1), tensors={"weight": graph.weight((2, 1))})
    file = graph.model()
    file.encoding = encoding
    codes = Model(file).encode_rows([{"x": -1e9}, {"x": 1e9}])
    for exact in (codes, codes.astype(np.float16)):
        assert Model(file).predict_proba(exact).shape == (2, 2)
    with pytest.raises(InvalidInput, match="predict_rows"):
        Model(file).predict_proba([[2.8]])


def test_rows_in_place_of_codes_are_told_where_to_go(path: Path) -> None:
    model = load(path)
    for rows in (ROWS, np.zeros((3, 5)), np.full(model.encode_rows(ROWS).shape, np.nan)):
        with pytest.raises(InvalidInput, match=r"raw rows of its table go to predict_rows\(\)$"):
            model.predict_proba(rows)  # type: ignore[arg-type]


def test_without_an_encoding_any_numbers_are_accepted() -> None:
    file = table_model()
    expected = Model(file).predict_proba(Model(file).encode_rows(ROWS))
    codes, file.encoding = Model(file).encode_rows(ROWS), None
    assert np.array_equal(Model(file).predict_proba(codes), expected)
    assert Model(file).predict_proba(1000 * codes).shape == (3, 3)


def test_rows_need_numpy_and_safetensors_alone(path: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'pandas', 'sklearn', 'pyarrow', 'polars', 'scipy'): sys.modules[name] = None\n"
        "from bayesbinn import runtime\n"
        f"print(runtime.load({str(path)!r}).predict_rows({ROWS!r}).shape)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.strip() == "(3, 3)", done.stderr


def test_one_row_takes_microseconds_not_milliseconds(path: Path) -> None:
    """The median of many is some 50 µs on an idle core; a pipeline of scikit-learn takes milliseconds."""
    model, row = load(path, threads=1), ROWS[:1]
    times = []
    for _ in range(300):
        start = time.perf_counter()
        model.predict_rows(row)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3


# ---- files ---------------------------------------------------------------------------------------------


def write_csv(path: Path, header: list[str], rows: list[list[Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def cells(names: list[str]) -> list[list[Any]]:
    return [["" if row.get(name) is None else row.get(name) for name in names] for row in ROWS]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_raw_table_in_any_order_with_more_columns(path: Path, tmp_path: Path, delimiter: str) -> None:
    model, notes = load(path), []  # type: ignore[var-annotated]
    names = ["more", *reversed(list(ROWS[0])), "id"]
    table = write_csv(tmp_path / "new.csv", names, cells(names), delimiter)
    codes = load_inputs(table, model.graph, notes, model.encoding)
    assert np.array_equal(codes, model.encode_rows(ROWS))
    assert notes[0] == f"{table}: ignored, because the model does not use them: 'more'"
    assert len(notes) == 2 and notes[1].startswith(f"{table}: unlike the training rows: 'age' (2")


def test_arrays_have_the_columns_in_order_or_the_codes(tmp_path: Path) -> None:
    file = table_model()
    assert file.encoding is not None
    model = Model(file)
    np.save(tmp_path / "codes.npy", model.encode_rows(ROWS))
    assert np.array_equal(load_inputs(tmp_path / "codes.npy", model.graph, [], model.encoding), model.encode_rows(ROWS))
    np.save(tmp_path / "wide.npy", np.zeros((2, 3)))
    with pytest.raises(InvalidInput, match="a cell for each of the 5 columns that the model was trained on are needed"):
        load_inputs(tmp_path / "wide.npy", model.graph, [], model.encoding)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it has no examples"),
        ("age,x\n", "no column 'job, \"', which the model was trained on (3 are missing"),
        ("age,age\n1,2\n", "two columns are named 'age'"),
        ('age,x,"job, """,member,since\n', "it has no examples"),
        ('age,x,"job, """,member,since\n1,2\n', "row 1 has 2 cells, the header names 5 columns"),
        (
            'age,x,"job, """,member,since\n1,2,a,yes,\n\n1,many,a,yes,\n',
            "column 'x' holds 'many' in row 2: a number is",
        ),
        ('age,x,"job, """,member,since\n1,inf,a,yes,\n', "column 'x' holds 'inf' in row 1: a number is needed"),
        ('age,x,"job, """,member,since\n1,1e999,a,yes,\n', "in row 1: a finite number is needed"),
    ],
)
def test_wrong_tables_are_one_line(path: Path, tmp_path: Path, content: str, message: str) -> None:
    model, table = load(path), tmp_path / "wrong.csv"
    table.write_text(content)
    with pytest.raises(BayesbinnError) as caught:
        load_inputs(table, model.graph, [], model.encoding)
    text = str(caught.value)
    assert message in text and text.startswith(f"{table}: ") and "\n" not in text


def test_a_file_that_is_no_text_is_one_line(path: Path, tmp_path: Path) -> None:
    model, table = load(path), tmp_path / "bytes.csv"
    table.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile, match="not a text table"):
        load_inputs(table, model.graph, [], model.encoding)
