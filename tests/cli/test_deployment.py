"""pack, run, inspect, export and bench, end to end: a packed model predicts what `bayesbinn predict` predicts."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesbinn.cli import runtime as command
from bayesbinn.modelfile.container import read as read_model
from bayesbinn.modelfile.container import write
from bayesbinn.runtime.inspection import inspect
from tests.helpers.commands import call, done
from tests.helpers.random_graphs import GraphBuilder

COLUMNS = ("length", "width", "noise")
COUNT = 40


def write_table(path: Path, header: list[str] | None, rows: Any) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([header] if header else [])
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on a table whose posterior is uncertain, its files, and inputs that cause errors."""
    folder = tmp_path_factory.mktemp("place")
    random = np.random.default_rng(0)
    shift = 2.0 * (np.arange(COUNT) % 2)
    x = np.stack([shift, -shift, np.zeros(COUNT)], 1) + random.normal(size=(COUNT, 3))
    x = (10 * x).round(2)
    rows = [[*row, ("rose", "tulip")[i % 2]] for i, row in enumerate(x.tolist())]
    table = write_table(folder / "flowers.csv", [*COLUMNS, "kind"], rows)
    unsure = ("temperature=0.5", "lr=0.03", "initial_strength=1.0", "model.width=0.02", "data.validation=0.2")
    settings = [word for setting in unsure for word in ("--set", setting)]
    done("train", table, "--label", "kind", "--out", folder / "run", "--epochs", "2", *settings)
    done("pack", folder / "run")
    done("pack", folder / "run", "--samples", "5", "--out", folder / "five.safetensors")
    for samples in (0, 5):
        done("predict", folder / "run", table, "--samples", str(samples), "--out", folder / f"expected{samples}.json")
    np.save(folder / "x.npy", x)
    np.savez(folder / "x.npz", x=x, other=np.zeros(3))
    write_table(folder / "plain.csv", None, x.tolist())
    write_table(folder / "x.tsv", list(COLUMNS), x.tolist())
    write_table(
        folder / "turned.csv", ["id", *COLUMNS[::-1]], [[f"no {i}", *r[::-1]] for i, r in enumerate(x.tolist())]
    )
    _wrong_files(folder)
    return folder


def _wrong_files(folder: Path) -> None:
    np.save(folder / "wide.npy", np.zeros((4, 7)))
    np.save(folder / "scalar.npy", np.float32(1))
    np.save(folder / "none.npy", np.zeros((0, 3)))
    np.save(folder / "words.npy", np.array([["a", "b", "c"]]))
    np.save(folder / "infinite.npy", np.array([[1, 2, 3], [1, np.inf, 3]]))
    np.save(folder / "pickled.npy", np.array([[1, {}, 3]], dtype=object), allow_pickle=True)
    np.savez_compressed(folder / "whole.npz", x=np.arange(3000.0).reshape(-1, 3))
    whole = (folder / "whole.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "bent.npz").write_bytes(whole[:200] + bytes(64) + whole[264:])
    np.savez(folder / "two.npz", a=np.zeros((1, 3)), b=np.zeros((1, 3)))
    claim = b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 3), }"
    claim += b" " * (-(len(claim) + 11) % 64) + b"\n"
    (folder / "claim.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(claim).to_bytes(2, "little") + claim)
    (folder / "empty.npy").write_bytes(b"")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("length,width,noise\n")
    (folder / "narrow.csv").write_text("length,wdith,noise\n1,2,3\n")
    (folder / "words.csv").write_text("length,width,noise\n1,2,3\n\n4,many,6\n")
    (folder / "ragged.csv").write_text("1,2,3\n4,5\n")
    (folder / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    (folder / "text.txt").write_text("1 2 3")
    model = (folder / "run" / "model.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(model[:-5])
    (folder / "bent.safetensors").write_bytes(model[:-5] + bytes([model[-5] ^ 1]) + model[-4:])


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def assert_same(rows: list[dict[str, Any]], expected: Path) -> None:
    wanted = json.loads(expected.read_text())
    assert len(rows) == len(wanted) == COUNT
    assert list(rows[0]) == list(wanted[0])
    for row, other in zip(rows, wanted, strict=True):
        assert row["class"] == other["class"] and str(row["input"]) == str(other["input"])
        for name in other.keys() - {"class", "input"}:
            assert float(row[name]) == pytest.approx(other[name], abs=1e-4), name


# ---- pack and run ------------------------------------------------------------------------------------


def test_pack_writes_to_the_runs_folder_and_reports_the_size(place: Path, tmp_path: Path) -> None:
    model = read_model(place / "run" / "model.safetensors")
    assert model.graph.classes == ("rose", "tulip") and model.encoding is not None
    assert model.encoding.names == COLUMNS and model.graph.features == ()
    out = done("pack", place / "run", "--out", tmp_path / "m.safetensors")
    size = (tmp_path / "m.safetensors").stat().st_size
    assert out.startswith(f"{tmp_path / 'm.safetensors'}  {size:,} bytes, ") and "times smaller" in out
    assert (tmp_path / "m.safetensors").read_bytes() == (place / "run" / "model.safetensors").read_bytes()
    facts = json.loads(done("pack", place / "run", "--out", tmp_path / "m.safetensors", "--samples", "2", "--json"))
    assert facts["networks"] == 2 * 4 and facts["bytes"] == (tmp_path / "m.safetensors").stat().st_size


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "flowers.csv", "plain.csv", "x.tsv", "turned.csv"])
def test_run_predicts_what_predict_predicts_with_the_mode(name: str, place: Path) -> None:
    assert_same(rows_of(done("run", place / "run" / "model.safetensors", place / name)), place / "expected0.json")


def test_an_ensemble_predicts_what_predict_predicts_with_the_mean(place: Path) -> None:
    rows = rows_of(done("run", place / "five.safetensors", place / "x.npy"))
    assert_same(rows, place / "expected5.json")
    assert max(float(row["mutual_information"]) for row in rows) > 1e-3, "the networks of this test must differ"


def test_eight_bits_and_threads_change_little(place: Path) -> None:
    model, x = place / "run" / "model.safetensors", place / "x.npy"
    exact = rows_of(done("run", model, x, "--threads", "1"))
    assert exact == rows_of(done("run", model, x, "--threads", "2"))
    fast = rows_of(done("run", model, x, "--activations", "int8"))
    difference = [abs(float(a["p(rose)"]) - float(b["p(rose)"])) for a, b in zip(exact, fast, strict=True)]
    assert 0 < max(difference) < 0.2


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_run_writes_a_file_and_creates_its_folder(suffix: str, place: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"p{suffix}"
    answer = call("run", place / "run" / "model.safetensors", place / "x.npy", "--out", path)
    assert (answer.code, answer.out, answer.err) == (0, "", f"{COUNT} predictions in {path}\n")
    rows = json.loads(path.read_text()) if suffix == ".json" else rows_of(path.read_text())
    assert_same(rows, place / "expected0.json")
    assert list(path.parent.iterdir()) == [path]


def test_a_regression_gives_means_and_spreads_in_the_tables_unit(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(160, 2)).round(3)
    table = write_table(tmp_path / "m.csv", ["a", "b", "y"], [[*r, 500 + 100 * r[0]] for r in x.tolist()])
    settings = ["--epochs", "2", "--set", "initial_strength=0.5", "--set", "model.width=0.02"]
    done("train", table, "--label", "y", "--out", tmp_path / "run", *settings)
    done("pack", tmp_path / "run", "--samples", "3")
    rows = rows_of(done("run", tmp_path / "run" / "model.safetensors", table))
    done("predict", tmp_path / "run", table, "--samples", "3", "--out", tmp_path / "p.json")
    for row, expected in zip(rows, json.loads((tmp_path / "p.json").read_text()), strict=True):
        assert list(row) == list(expected) == ["input", "mean", "std", "spread"]
        assert float(row["std"]) == pytest.approx(expected["std"], rel=1e-3)
        assert float(row["mean"]) == pytest.approx(expected["mean"], rel=1e-4)
        assert float(row["spread"]) == pytest.approx(expected["spread"], rel=1e-3, abs=1e-2)
    assert max(float(row["spread"]) for row in rows) > 1


def test_the_deviation_of_a_table_contains_the_networks_disagreement(tmp_path: Path) -> None:
    """`predict` and `run` answer alike; far from the training rows the networks disagree more."""
    random = np.random.default_rng(1)
    x = random.normal(size=(160, 2)).round(3)
    table = write_table(tmp_path / "m.csv", ["a", "b", "y"], [[*r, 500 + 100 * r[0]] for r in x.tolist()])
    done("train", table, "--label", "y", "--out", tmp_path / "run", "--epochs", "2")
    done("pack", tmp_path / "run")
    rows = rows_of(done("run", tmp_path / "run" / "model.safetensors", table))
    done("predict", tmp_path / "run", table, "--out", tmp_path / "p.json")
    expected = json.loads((tmp_path / "p.json").read_text())
    assert list(rows[0]) == list(expected[0]) == ["input", "mean", "std", "spread"]
    for name in ("mean", "std", "spread"):
        assert np.allclose([float(row[name]) for row in rows], [row[name] for row in expected], rtol=1e-3, atol=1e-2)
    assert np.ptp([row["std"] for row in expected]) > 1


def hostile_names(folder: Path) -> Path:
    g = GraphBuilder((2,), 1, 0)
    g.add("linear", shape=(6, 2), tensors={"weight": np.array([[0], [1], [2], [3], [0], [1]], np.uint8)})
    g.nodes[0] = replace(g.nodes[0], name="\x1b[31mfirst\x07")
    classes = ("\x1b]0;owned\x07", "=cmd|' /C calc'!A0", "@SUM(1)", "-2", "\tx", "\u202eevil")
    write(folder / "m.safetensors", g.model(classes=classes))
    np.save(folder / "x.npy", np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32))
    return folder / "m.safetensors"


def test_names_in_a_file_are_not_commands_to_a_terminal_or_a_spreadsheet(tmp_path: Path) -> None:
    model = hostile_names(tmp_path)
    done("run", model, tmp_path / "x.npy", "--out", tmp_path / "p.csv")
    done("run", model, tmp_path / "x.npy", "--out", tmp_path / "p.json")
    printed = done("run", model, tmp_path / "x.npy")
    for text in (printed, (tmp_path / "p.csv").read_text(), done("inspect", model), done("inspect", model, "--json")):
        assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
    assert printed == (tmp_path / "p.csv").read_text()
    rows = rows_of(printed)
    assert list(rows[0])[2:4] == [r"p(\x1b]0;owned\x07)", "p(=cmd|' /C calc'!A0)"]
    assert r"\x1b[31mfirst\x07" in done("inspect", model) and r"\u202eevil" in done("inspect", model)
    # JSON has its own escapes: programs get the names unchanged.
    likeliest = [row["class"] for row in json.loads((tmp_path / "p.json").read_text())]
    shown = {"=cmd|' /C calc'!A0": "'=cmd|' /C calc'!A0", "@SUM(1)": "'@SUM(1)", "-2": "-2"}
    assert [row["class"] for row in rows] == [shown.get(name, ascii(name)[1:-1]) for name in likeliest]
    assert {"=cmd|' /C calc'!A0", "@SUM(1)", "-2"} <= set(likeliest), "this test needs these classes"
    assert all(float(row["p(-2)"]) >= 0 for row in rows)


def test_a_file_that_needs_gigabytes_gets_one_line(tmp_path: Path) -> None:
    g = GraphBuilder((1, 1, 1), 1, 0)
    border = (0, (1 << 14) - 1) * 2
    weight = {"weight": g.weight((1, 1, 1, 1))}
    g.add("conv2d", shape=(1, 1, 1, 1), stride=(1, 1), padding=border, dilation=(1, 1), groups=1, tensors=weight)
    g.add("tanh")
    write(tmp_path / "m.safetensors", g.model())
    np.save(tmp_path / "x.npy", np.zeros((1, 1)))
    answer = call("run", tmp_path / "m.safetensors", tmp_path / "x.npy")
    assert answer.code == 2 and answer.err.count("\n") == 1 and not answer.out
    assert "the model needs more memory than max_memory=1 GB allows" in answer.err and "--max-memory" in answer.err


@pytest.mark.skipif(sys.platform != "linux", reason="limiting the address space needs Linux")
def test_running_out_of_memory_gets_one_line(place: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4_000_000, 3), np.float32))
    program = (
        "import resource, sys, numpy\n"
        "from bayesbinn.runtime import _native, model, inputs\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (120 << 20),) * 2)\n"
        "from bayesbinn.__main__ import main\n"
        "sys.exit(main())"
    )
    arguments = ["run", place / "five.safetensors", tmp_path / "x.npy", "--max-memory", "4G"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and "memory" in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr


# ---- inspect, export, bench ----------------------------------------------------------------------------


def test_inspect_shows_the_same_as_text_and_json(place: Path) -> None:
    path = place / "five.safetensors"
    facts = json.loads(done("inspect", path, "--json"))
    assert facts["networks"] == 5 * 4 and facts["classes"] == ["rose", "tulip"] and facts["task"] == "classification"
    assert facts["bytes"] == path.stat().st_size and facts["input_shape"] == [3]
    assert [column["name"] for column in facts["columns"]] == list(COLUMNS)
    layers = [layer for layer in facts["layers"] if layer["op"] == "linear"]
    assert layers and all(layer["bits"] == 1 for layer in layers)
    model = read_model(path)
    single = sum(np.prod(n.settings["shape"]) for n in model.graph.nodes if n.op == "linear")
    assert facts["weights"] == sum(layer["weights"] for layer in layers) == 20 * single
    assert facts["times_smaller"] == 4 * facts["weights"] / facts["bytes"]
    assert sum(layer["bytes"] for layer in facts["layers"]) == sum(a.nbytes for a in model.tensors.values())
    text = done("inspect", path)
    counted = "weights and bytes are those of all 20 networks"
    for part in (facts["checksum"], "20 networks for classification", "rose, tulip", f"{facts['weights']:,} weights"):
        assert part in text, part
    assert counted in text and all(f" {layer['weights']:,} " in text for layer in layers)


def test_export_writes_next_to_the_model_or_to_out(place: Path, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes((place / "run" / "model.safetensors").read_bytes())
    done("export", tmp_path / "m.safetensors", "--to", "c")
    assert {p.name for p in tmp_path.iterdir()} == {"m.safetensors", "model.c", "model.h"}
    out = done("export", tmp_path / "m.safetensors", "--to", "c", "--name", "flowers", "--out", tmp_path / "new" / "c")
    assert {p.name for p in (tmp_path / "new" / "c").iterdir()} == {"flowers.c", "flowers.h"}
    assert [Path(line.split("  ")[0]).stat().st_size for line in out.splitlines()] == [
        int(line.split("  ")[1].split()[0].replace(",", "")) for line in out.splitlines()
    ]
    pytest.importorskip("onnx")
    done("export", tmp_path / "m.safetensors", "--to", "onnx", "--out", tmp_path / "onnx" / "f.onnx")
    assert (tmp_path / "onnx" / "f.onnx").stat().st_size > 100
    assert "m.onnx" in done("export", tmp_path / "m.safetensors", "--to", "onnx")
    assert (tmp_path / "m.onnx").exists()


def test_bench_measures_every_combination(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesbinn.runtime.measure._ROUNDS", 2)
    monkeypatch.setattr("bayesbinn.runtime.measure._SECONDS", 1e-4)
    arguments = ["bench", "inference", place / "run" / "model.safetensors", "--batches", "1,3", "--threads", "1,2"]
    rows = json.loads(done(*arguments, "--json"))
    assert [(row["threads"], row["batch"]) for row in rows] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    for row in rows:
        assert row["exact_per_second"] == pytest.approx(1e3 * row["batch"] / row["exact_ms"])
        assert row["int8_ms"] > 0
    assert len(done(*arguments).splitlines()) == 5


# ---- errors ------------------------------------------------------------------------------------------

MODEL = "PLACE/run/model.safetensors"
ERRORS: list[tuple[str, str]] = [
    ("run", "required: model, inputs"),
    (f"run {MODEL} PLACE/nowhere.npy", "nowhere.npy: there is no such file"),
    (f"run {MODEL} PLACE", "a folder; one file is needed, .npy, .npz, .csv, .tsv. `bayesbinn predict RUN FOLDER`"),
    (f"run {MODEL} /dev/null", "/dev/null: not an ordinary file"),
    (f"run {MODEL} PLACE/x.npy --max-memory much", "--max-memory much: a size such as 512M or 4G is needed"),
    (f"run {MODEL} PLACE/x.npy --max-memory 0", "a size such as 512M or 4G is needed"),
    (f"run {MODEL} PLACE/x.npy --max-memory 1K", "bytes, max_memory allows 1,024; raise it (--max-memory)"),
    (f"bench inference {MODEL} --max-memory 9K", "the model needs more memory than max_memory=9 KB allows"),
    ("run PLACE/nowhere.safetensors PLACE/x.npy", "nowhere.safetensors: there is no such file"),
    ("run PLACE/run PLACE/x.npy", "it is not a file"),
    ("run PLACE/cut.safetensors PLACE/x.npy", "it is cut off"),
    ("run PLACE/bent.safetensors PLACE/x.npy", "its checksum does not match"),
    ("run PLACE/x.npy PLACE/x.npy", "x.npy: it is not a model file; the model file comes first, then the inputs\n"),
    (f"run PLACE/flowers.csv {MODEL}", "flowers.csv: it is not a model file; the model file comes first, then the"),
    ("inspect PLACE/flowers.csv", "flowers.csv: it is not a model file\n"),
    ("run PLACE/text.txt PLACE/x.npy", "it is cut off"),
    (f"run {MODEL} PLACE/text.txt", ".npy, .npz, .csv, .tsv files can be read"),
    (
        f"run {MODEL} PLACE/wide.npy",
        "rows with a cell for each of the 3 columns that the model was trained on are needed, or 3 codes",
    ),
    (f"run {MODEL} PLACE/scalar.npy", "it has no examples"),
    (f"run {MODEL} PLACE/none.npy", "it has no examples"),
    (f"run {MODEL} PLACE/words.npy", "words.npy: column 'length' holds 'a' in row 1: a number is needed"),
    (f"run {MODEL} PLACE/infinite.npy", "column 'width' holds inf in row 2: a finite number is needed"),
    (f"run {MODEL} PLACE/pickled.npy", "not a valid NumPy file"),
    (f"run {MODEL} PLACE/claim.npy", "not a valid NumPy file"),
    (f"run {MODEL} PLACE/empty.npy", "not a valid NumPy file"),
    (f"run {MODEL} PLACE/cut.npz", "not a valid NumPy file"),
    (f"run {MODEL} PLACE/bent.npz", "not a valid NumPy file"),
    (f"run {MODEL} PLACE/two.npz", "it holds a, b: save the inputs as x"),
    (f"run {MODEL} PLACE/empty.csv", "it has no examples"),
    (f"run {MODEL} PLACE/header.csv", "it has no examples"),
    (f"run {MODEL} PLACE/narrow.csv", "no column 'width', which the model was trained on. Did you mean 'wdith'?"),
    (f"run {MODEL} PLACE/words.csv", "column 'width' holds 'many' in row 2: a number is needed"),
    (f"run {MODEL} PLACE/ragged.csv", "row 2 has 2 cells, the header names 3 columns"),
    (f"run {MODEL} PLACE/bytes.csv", "not a text table"),
    (f"run {MODEL} PLACE/x.npy --out PLACE/new/p.xlsx", "must end in .csv or .json"),
    (f"run {MODEL} PLACE/x.npy --out PLACE/text.txt/p.csv", "could not be written"),
    (f"run {MODEL} PLACE/x.npy --out PLACE/text.txt/a/p.json", "could not be written"),
    (f"run {MODEL} PLACE/x.npy --fast", "unrecognized arguments: --fast"),
    (f"run {MODEL} PLACE/x.npy --threads 0", "threads=0: it must be a whole number from 1"),
    (f"run {MODEL} PLACE/x.npy --threads two", "argument --threads: invalid int value: 'two'"),
    (f"run {MODEL} PLACE/x.npy --activations int4", "invalid choice: 'int4'"),
    ("inspect", "required: model"),
    ("inspect PLACE/bent.safetensors", "its checksum does not match"),
    ("inspect PLACE/empty.csv", "it is cut off"),
    (f"export {MODEL}", "required: --to"),
    (f"export {MODEL} --to pdf", "invalid choice: 'pdf'"),
    (f"export {MODEL} --to c --name 2nd", "C names start with it"),
    (f"export {MODEL} --to c --out PLACE/text.txt", "cannot create the folder"),
    (f"export {MODEL} --to onnx --out PLACE/text.txt/m.onnx", "cannot create the folder"),
    ("export PLACE/bent.safetensors --to c", "its checksum does not match"),
    (f"bench training {MODEL}", "invalid choice: 'training'"),
    (f"bench inference {MODEL} --batches 1,x", "--batches 1,x: must be whole numbers from 1"),
    (f"bench inference {MODEL} --threads 0", "--threads 0: must be whole numbers from 1"),
    ("bench inference PLACE/nowhere", "there is no such file"),
    ("pack PLACE/nowhere", "there is no run here"),
    ("pack PLACE/run --samples -1", "Invalid value for '--samples'"),
    ("pack PLACE/run --real float8", "it must be 'float32' or 'float16'"),
    ("pack PLACE/run --out PLACE/text.txt/m.safetensors", "could not be written"),
    ("pack PLACE/run --to c", "No such option: --to"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[arguments for arguments, _ in ERRORS])
def test_a_user_error_prints_one_line_and_exits_with_2(arguments: str, message: str, place: Path) -> None:
    before = sorted(place.rglob("*"))
    answer = call(*arguments.replace("PLACE", str(place)).split())
    assert answer.code == 2, answer
    assert answer.err.startswith("error: ") and message in answer.err
    assert answer.err.count("\n") == 1 and not answer.out
    assert sorted(place.rglob("*")) == before, "nothing is left behind"


# ---- the program -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", command.COMMANDS)
def test_both_command_lines_have_the_runtimes_commands(name: str) -> None:
    """The short one, which does not need typer, and the full one, which lists them."""
    text = done(name, "--help")
    assert text.startswith(f"usage: bayesbinn {name} ")
    assert command.COMMANDS[name][0].splitlines()[0] in " ".join(text.split())
    assert f"\n  {name} " in done("--help")


def test_the_full_command_line_has_pack_and_explains_its_options() -> None:
    assert "\n  pack " in done("--help")
    text = " ".join(done("pack", "--help").split())
    for option in ("--out", "--samples", "--seed", "--no-calibrate", "--real", "--data-dir", "--json"):
        assert option in text, option


def test_run_in_a_separate_process_imports_neither_torch_nor_typer(place: Path) -> None:
    program = (
        "import sys; from bayesbinn.__main__ import main\n"
        "code = main()\n"
        "heavy = ('torch', 'typer', 'rich', 'pydantic', 'scipy', 'onnx')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
        "sys.exit(code)"
    )
    for arguments in (["run", place / "five.safetensors", place / "x.npy"], ["inspect", place / "five.safetensors"]):
        ended = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "[]\n")
        assert ended.stdout == done(*arguments)


def test_a_reader_that_exits_early_is_not_an_error(place: Path) -> None:
    """Like `bayesbinn run ... | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    arguments = ["run", place / "five.safetensors", place / "x.npy"]
    with os.fdopen(writing, "w") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "bayesbinn", *map(str, arguments)],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert "Traceback" not in ended.stderr and ended.returncode != 0


def test_copies_of_one_network_do_not_count_as_smaller(tmp_path: Path) -> None:
    """Tensors that all networks share are stored once, as they would be in float32."""
    single = GraphBuilder((64,), 1, 0)
    single.add("linear", shape=(128, 64), tensors={"weight": single.weight((128, 64))})
    shared = GraphBuilder((64,), 5, 0)
    shared.add("linear", shape=(128, 64), tensors={"weight": shared.weight((128, 64))})
    own = GraphBuilder((64,), 5, 0)
    own.add("linear", shape=(128, 64), tensors={"weight": own.weight((128, 64), own=True)})
    facts = []
    for index, graph in enumerate((single, shared, own)):
        write(tmp_path / f"{index}.safetensors", graph.model())
        facts.append(inspect(tmp_path / f"{index}.safetensors"))
    assert [each["float32_bytes"] for each in facts] == [4 * 8192, 4 * 8192, 5 * 4 * 8192]
