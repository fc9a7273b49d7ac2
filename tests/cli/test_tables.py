"""Tables as people have them, from the command line: what is learned, predicted and shipped, and what is refused."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesbinn.runtime import load
from tests.cli.test_deployment import call, done, rows_of

HEADER = ["id", 'net, "price"', "age", "job", "since", "member", "constant", "outlier", "bought"]
COUNT = 150


def cells(count: int, seed: int = 0) -> list[list[Any]]:
    """Text, dates, missing cells and labels, rare names, a constant, an outlier; who is older and a nurse buys."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        age, job = draw.randint(18, 90), draw.choice(["nurse", "cook", "clerk"]) if i % 40 else f"rare {i}"
        price, since = round(draw.lognormvariate(3, 2), 2), f"20{draw.randint(10, 23)}-{draw.randint(1, 12):02}-11"
        bought = "" if i % 30 == 7 else "yes" if age > 50 or job == "nurse" else "no"
        outlier = 1e9 if i == 3 else round(draw.gauss(0, 1), 3)
        member = draw.choice(["true", "false"])
        rows.append([f"u{i}", price, "NA" if i % 11 == 5 else age, "" if i % 13 == 6 else job, since, member, "x"])
        rows[-1] += [outlier, bought]
    return rows


def write(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    table = write(folder / "my.csv", HEADER, cells(COUNT))
    said = call("train", table, "--label", "bought", "--out", folder / "run", "--epochs", "8")
    assert said.code == 0, said
    (folder / "said.txt").write_text(said.err)
    done("pack", folder / "run")
    return folder


def test_train_says_what_it_made_of_the_columns(place: Path) -> None:
    said = (place / "said.txt").read_text()
    for part in (
        "columns: 3 numbers (",
        "1 category (5 codes), 1 true/false (1 code), 1 date (",
        "an extra code marks missing cells: age, job",
        "rare categories share a code: job",
        "dropped: 5 of 150 rows, which have no label",
        "left out: 'id' (almost every row has a different value",
        "left out: 'constant' (always the same)",
        "classification: 2 classes, no, yes",
        "chosen network: table",
        "chosen settings: method bayesbinn",
    ):
        assert part in said, part


def test_the_run_remembers_the_encoding_and_needs_no_data(place: Path, tmp_path: Path) -> None:
    card = json.loads((place / "run" / "data.json").read_text())
    assert card["columns"] == HEADER[1:6] + HEADER[7:8] and card["encoding"]["ignored"] == ["id", "constant"]
    table = (place / "my.csv").read_bytes()
    try:
        (place / "my.csv").unlink()
        done("pack", place / "run", "--out", tmp_path / "m.safetensors")
        assert (tmp_path / "m.safetensors").read_bytes() == (place / "run" / "model.safetensors").read_bytes()
    finally:
        (place / "my.csv").write_bytes(table)


def test_run_and_predict_agree_on_new_rows_in_any_order(place: Path, tmp_path: Path) -> None:
    order = [7, 5, 3, 1, 2, 4]
    new = cells(30, seed=1)
    new[0][3], new[1][3], new[2][7] = (
        "astronaut",
        "",
        "",
    )  # never seen; missing where it was; missing where it never was
    table = write(
        tmp_path / "new.csv", ["more", *(HEADER[i] for i in order)], [["?", *(r[i] for i in order)] for r in new]
    )
    answer = call("run", place / "run" / "model.safetensors", table)
    assert answer.code == 0 and "ignored, because the model does not use them: 'more'" in answer.err
    done("predict", place / "run", table, "--samples", "0", "--out", tmp_path / "p.json")
    expected = json.loads((tmp_path / "p.json").read_text())
    found = rows_of(answer.out)
    for name in ("p(no)", "p(yes)"):
        np.testing.assert_allclose([float(r[name]) for r in found], [r[name] for r in expected], atol=1e-6)
    rows = [dict(zip(HEADER, row, strict=True)) for row in new]
    for backend in ("auto", "reference"):
        probabilities = load(place / "run" / "model.safetensors", backend=backend).predict_rows(rows)  # type: ignore[arg-type]
        np.testing.assert_allclose(probabilities[:, 1], [r["p(yes)"] for r in expected], atol=1e-6)


def test_columns_unlike_the_training_rows_are_named(place: Path, tmp_path: Path) -> None:
    changed = [[*row[:2], 900, "astronaut", "1999-12-31", "", *row[6:]] for row in cells(20, seed=1)]
    table = write(tmp_path / "changed.csv", HEADER, changed)
    usual = write(tmp_path / "usual.csv", HEADER, cells(30, seed=2))
    for command in (("run", place / "run" / "model.safetensors"), ("predict", place / "run")):
        said = call(*command, table, "--out", tmp_path / "p.csv").err
        for part in (
            "unlike the training rows: ",
            "'age' (20 of 20 cells are outside 1",
            "'job' (20 of 20 cells are categories that were rare or not there)",
            "'since' (20 of 20 cells are outside 2010-",
            "'member' (20 of 20 cells are missing, none in training)",
        ):
            assert part in said, (command[0], part, said)
        assert "unlike the training rows" not in call(*command, usual, "--out", tmp_path / "p.csv").err


def test_rare_categories_of_the_training_rows_are_not_strange(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows: list[list[Any]] = [
        ["Rome" if i % 5 == 0 else f"town {draw.randint(0, 60)}", i % 7, i % 2] for i in range(200)
    ]
    table = write(tmp_path / "towns.csv", ["town", "x", "y"], rows)
    done("train", table, "--label", "y", "--out", tmp_path / "run", "--epochs", "1")
    assert "unlike" not in call("predict", tmp_path / "run", table, "--out", tmp_path / "p.csv").err


def test_evaluate_and_resume_use_the_same_encoding(place: Path) -> None:
    scores = json.loads(done("evaluate", place / "run", "--samples", "0", "--json"))
    assert scores["test examples"] == 29 and scores["mode"]["accuracy"] > 60
    again = call("train", place / "my.csv", "--label", "bought", "--out", place / "run", "--epochs", "8")
    assert again.code == 0 and "is finished" in again.err


def test_exports_say_that_they_take_codes(place: Path, tmp_path: Path) -> None:
    answer = call("export", place / "run" / "model.safetensors", "--to", "c", "--out", tmp_path)
    assert answer.code == 0 and "the input is the encoded vector of" in answer.err
    header = (tmp_path / "model.h").read_text()
    assert "input is the encoded vector, not a raw row" in header and "net, _price_ (number)" in header


def test_parquet_has_types_of_its_own(tmp_path: Path) -> None:
    rows = cells(60)
    columns: dict[str, Any] = {
        "age": [None if r[2] == "NA" else r[2] for r in rows],
        "job": pa.array([r[3] or None for r in rows]).dictionary_encode(),
        "since": pa.array([r[4] for r in rows]).cast(pa.date32()),
        "member": [r[5] == "true" for r in rows],
        "bought": [{"yes": True, "no": False, "": None}[r[8]] for r in rows],
    }
    pq.write_table(pa.table(columns), tmp_path / "my.parquet")
    answer = call("train", tmp_path / "my.parquet", "--label", "bought", "--out", tmp_path / "run", "--epochs", "1")
    assert answer.code == 0 and "1 number (" in answer.err and " codes), 1 category (" in answer.err, answer
    assert "classification: 2 classes, False, True" in answer.err


def test_a_user_s_own_module_is_trained_and_resumed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets_of_a_user.py").write_text(
        "from torch import nn\n"
        "def small(info):\n"
        "    first = nn.Linear(info.input_shape[0], 16, bias=False)\n"
        "    last = nn.Linear(16, info.outputs, bias=False)\n"
        "    return nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), last, nn.BatchNorm1d(info.outputs))\n"
        "def wide(info):\n"
        "    return nn.Linear(info.input_shape[0], 7)\n"
        "def text(info):\n"
        "    return 'a network'\n"
        "def broken(info):\n"
        "    return nn.Linear(5, info.missing)\n"
    )
    monkeypatch.chdir(tmp_path)
    start = ["train", place / "my.csv", "--label", "bought", "--out", tmp_path / "run", "--epochs", "2"]
    first = call(*start, "--model", "nets_of_a_user:small", "--stop-after", "1")
    assert first.code == 0 and "chosen network: nets_of_a_user:small of your own" in first.err, first
    assert 'name = "nets_of_a_user:small"' in (tmp_path / "run" / "config.toml").read_text()
    second = call(*start, "--model", "nets_of_a_user:small")
    assert second.code == 0 and "resuming" in second.err
    done("pack", tmp_path / "run")
    for name, message in (
        ("nets_of_a_user:wide", "two examples give (2, 7), but [2, 2] is needed"),
        ("nets_of_a_user:text", "it returned str, a torch.nn.Module is needed"),
        ("nets_of_a_user:broken", "the function failed (AttributeError"),
        ("nets_of_a_user:smal", "has no function 'smal'. Did you mean 'small'?"),
        ("no_such_module:small", "the module 'no_such_module' cannot be imported"),
    ):
        answer = call(*start[:4], "--out", tmp_path / "other", "--model", name)
        assert answer.code == 2 and message in answer.err and answer.err.count("\n") == 1, answer


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (["x", "y"], [], "it has a header but no rows"),
        (["x", "y"], [[1, "a"]] * 6, "all labels are 'a': 2 or more classes are needed"),
        (["x", "z"], [[1, "a"], [2, "b"]] * 4, "no column 'y'"),
        (["x", "y"], [[1, ""], [2, "NA"]] * 4, "the label column 'y' is empty"),
        (["y"], [["a"], ["b"]] * 4, "'y' is the only column"),
        (["x", "y"], [[1, "a"], ["inf", "b"]] * 4, "column 'x' is infinite in row"),
        (["x", "y"], [[1, "a"], [2, "b"]], "2 examples: 5 or more are needed"),
        (["x", "x", "y"], [[1, 2, "a"]] * 6, "two columns are named 'x'"),
    ],
)
def test_what_cannot_be_learned_is_one_line(
    tmp_path: Path, header: list[str], rows: list[list[Any]], message: str
) -> None:
    table = write(tmp_path / "my.csv", header, rows)
    answer = call("train", table, "--label", "y", "--out", tmp_path / "run")
    assert answer.code == 2 and message in answer.err and answer.err.count("\n") == 1, answer
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, rows: header.__setitem__(2, "aeg"), "no column 'age', which the model was trained on"),
        (lambda header, rows: rows[4].__setitem__(2, "old"), "column 'age' holds 'old' in row 5: a number is needed"),
        (lambda header, rows: rows[4].__setitem__(2, "inf"), "column 'age' holds"),
        (lambda header, rows: rows[4].__setitem__(5, "perhaps"), "'perhaps' in row 5: true or false is needed"),
        (lambda header, rows: rows[4].__setitem__(4, "2024-13-01"), "'2024-13-01' in row 5: a date is needed"),
    ],
)
def test_wrong_columns_and_cells_are_one_line_when_predicting(
    place: Path, tmp_path: Path, change: Any, message: str
) -> None:
    header, rows = HEADER.copy(), cells(8)
    change(header, rows)
    table = write(tmp_path / "new.csv", header, rows)
    for command in (("run", place / "run" / "model.safetensors"), ("predict", place / "run")):
        answer = call(*command, table, "--out", tmp_path / "p.csv")
        assert answer.code == 2 and message in answer.err and answer.err.count("\n") == 1, answer


# ---- what may mislead is said ---------------------------------------------------------------------------


def noted(tmp_path: Path, header: list[str], rows: list[list[Any]], *options: Any) -> str:
    """What `train` prints on stderr for a table whose label is y."""
    table = write(tmp_path / "table.csv", header, rows)
    said = call("train", table, "--label", "y", "--out", tmp_path / "run", "--epochs", "1", *options)
    assert said.code == 0, said
    return str(said.err)


def test_amounts_that_repeat_are_named(tmp_path: Path) -> None:
    rows = [[i / 7, f"${5 * (i % 9) + 1}.99", f"size {i % 3}", i % 2] for i in range(120)]
    said = noted(tmp_path, ["x", "price", "size", "y"], rows)
    assert "column 'price' has text such as '$1.99', which becomes categories without an order: write plain" in said
    assert "column 'size'" not in said


def test_a_column_that_may_count_the_rows_is_named(tmp_path: Path) -> None:
    rows = [[i + 1, 17 * i, (7 * i) % 13, i % 2] for i in range(120)]
    said = noted(tmp_path, ["Unnamed: 0", "sparse", "few", "y"], rows)
    assert "column 'Unnamed: 0' has a different whole number in every row: delete it if it counts them" in said
    assert "column 'sparse'" not in said and "column 'few'" not in said


def test_words_for_a_missing_label_are_named(tmp_path: Path) -> None:
    rows = [[i / 7, ["None", "mild", "severe"][i % 3]] for i in range(120)]
    said = noted(tmp_path, ["x", "y"], rows)
    assert "dropped: 40 of 120 rows, which have no label: 'None' means a missing label (if it is a class, write" in said
    rows = [[i / 7, "" if i % 3 else "ab"[i % 2]] for i in range(120)]
    (tmp_path / "other").mkdir()
    assert "which have no label\n" in noted(tmp_path / "other", ["x", "y"], rows)


def test_one_class_and_a_word_for_missing_is_explained(tmp_path: Path) -> None:
    table = write(tmp_path / "table.csv", ["x", "y"], [[i, ["None", "yes"][i % 2]] for i in range(60)])
    said = call("train", table, "--label", "y", "--out", tmp_path / "run")
    assert said.code == 2 and "all labels are 'yes'" in said.err and "'None' means a missing label" in said.err


def test_a_label_of_amounts_is_rejected_or_named(tmp_path: Path) -> None:
    table = write(tmp_path / "prices.csv", ["x", "y"], [[i, f"${i % 60 + 1},000.50"] for i in range(89)])
    said = call("train", table, "--label", "y", "--out", tmp_path / "prices")
    assert said.code == 2 and said.err.count("\n") == 1
    assert "different texts in 89 examples" in said.err and "write a quantity as plain numbers" in said.err
    anyway = ("--set", "data.task=classification", "--epochs", "1", "--out", tmp_path / "anyway")
    assert call("train", table, "--label", "y", *anyway).code == 0
    config = tmp_path / "anyway" / "config.toml"
    config.write_text(config.read_text().replace('task = "classification"\n', ""))  # as older runs have it
    assert call("evaluate", tmp_path / "anyway").code == 0
    rows = [[i / 7, f"{5 * (i % 4)}%"] for i in range(120)]
    assert "if texts such as '0%' are quantities, write them as plain numbers" in noted(tmp_path, ["x", "y"], rows)


def test_a_score_on_the_training_file_is_not_taken_for_a_test(tmp_path: Path) -> None:
    rows = [[i % 17, i % 5, "ab"[i % 17 > 8]] for i in range(90)]
    table = write(tmp_path / "table.csv", ["u", "v", "y"], rows)
    done("train", table, "--label", "y", "--out", tmp_path / "run", "--epochs", "1")
    said = call("predict", tmp_path / "run", table, "--out", tmp_path / "mine.csv")
    assert "scored against" in said.out and "the run learned from most of these rows" in said.err
    other = write(tmp_path / "new.csv", ["u", "v", "y"], rows[:30])
    said = call("predict", tmp_path / "run", other, "--out", tmp_path / "other.csv")
    assert "scored against" in said.out and "the run learned from most of these rows" not in said.err


def test_a_memorized_table_is_reported(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [[*(round(draw.gauss(0, 1), 3) for _ in range(8)), draw.choice("ab")] for _ in range(160)]
    table = write(tmp_path / "noise.csv", [*"abcdefgh", "y"], rows)
    said = call("train", table, "--label", "y", "--out", tmp_path / "run", "--epochs", "40")
    assert "the network has memorized its rows: " in said.err and "--set certainty=10 or fewer --epochs" in said.err
    folder = tmp_path / "clear"
    rows = [[*row[:-1], "ab"[row[0] > 0]] for row in rows]
    said = call("train", write(tmp_path / "clear.csv", [*"abcdefgh", "y"], rows), "--label", "y",
                "--out", folder, "--epochs", "20")  # fmt: skip
    assert said.code == 0 and "has memorized" not in said.err
