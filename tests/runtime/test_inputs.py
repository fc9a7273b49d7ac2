"""`bayesbinn run` accepts and rejects the same inputs as `bayesbinn predict`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_deployment import rows_of, write_table
from tests.helpers.commands import call, done

COUNT, SIDE, FEATURES = 24, 6, 4
NAMES = [str(i) for i in range(FEATURES)]


def short_run(folder: Path, data: Path, *more: str) -> None:
    settings = ("--set", "model.width=0.02", "--set", "data.validation=0.2")
    done("train", data, "--out", folder / "run", "--epochs", "1", *settings, *more)
    done("pack", folder / "run")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on color images, which are stored with the channels last."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)
    np.savez(folder / "train.npz", x=x, y=np.arange(COUNT) % 2)
    short_run(folder, folder / "train.npz")
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table whose columns are named 0, 1, 2, 3."""
    folder = tmp_path_factory.mktemp("table")
    x = np.random.default_rng(0).normal(size=(COUNT, FEATURES)).round(2).tolist()
    rows = [[*row, ("rose", "tulip")[i % 2]] for i, row in enumerate(x)]
    short_run(folder, write_table(folder / "train.csv", [*NAMES, "kind"], rows), "--label", "kind")
    return folder


def pixels(folder: Path) -> np.ndarray:
    with np.load(folder / "train.npz") as arrays:
        return arrays["x"]


def assert_same_predictions(folder: Path, inputs: Path, tmp_path: Path) -> None:
    done("predict", folder / "run", inputs, "--samples", "0", "--out", tmp_path / "p.json")
    expected = json.loads((tmp_path / "p.json").read_text())
    found = rows_of(done("run", folder / "run" / "model.safetensors", inputs))
    assert [row["class"] for row in found] == [row["class"] for row in expected]
    names = [name for name in expected[0] if name.startswith("p(")]
    for name in names:
        np.testing.assert_allclose([float(r[name]) for r in found], [r[name] for r in expected], atol=1e-4)


def assert_both_refuse(folder: Path, inputs: Path, tmp_path: Path, message: str) -> None:
    predicted = call("predict", folder / "run", inputs, "--out", tmp_path / "p.csv")
    answer = call("run", folder / "run" / "model.safetensors", inputs)
    assert predicted.code == 2, predicted
    assert answer.code == 2 and answer.err.startswith("error: ") and message in answer.err, answer
    assert answer.err.count("\n") == 1 and not answer.out


# ---- arrays ------------------------------------------------------------------------------------------


def test_images_may_have_their_channels_first_last_or_be_flat(images: Path, tmp_path: Path) -> None:
    x = pixels(images)
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    for name, array in {"last": x, "first": first, "flat": first.reshape(COUNT, -1)}.items():
        np.save(tmp_path / f"{name}.npy", array)
        assert_same_predictions(images, tmp_path / f"{name}.npy", tmp_path)


def test_one_channel_may_be_left_out(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (COUNT, SIDE, SIDE), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", x=x, y=np.arange(COUNT) % 2)
    short_run(tmp_path, tmp_path / "train.npz")
    for name, array in {"none": x, "first": x[:, None], "last": x[..., None], "floats": x.astype(float)}.items():
        np.save(tmp_path / f"{name}.npy", array)
        assert_same_predictions(tmp_path, tmp_path / f"{name}.npy", tmp_path)


@pytest.mark.parametrize("shape", [(SIDE, 3, SIDE), (SIDE * SIDE, 3), (3, SIDE * SIDE), (3 * SIDE, SIDE)])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_other_shapes_of_the_same_size_are_refused(
    shape: tuple[int, ...], kind: type, images: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", pixels(images).reshape(COUNT, *shape).astype(kind))
    assert_both_refuse(images, tmp_path / "x.npy", tmp_path, "")


def test_floats_with_channels_last_are_refused_with_advice(images: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", pixels(images).astype(np.float32))
    message = f"the shape ({SIDE}, {SIDE}, 3), but the model takes (3, {SIDE}, {SIDE}); if its channels come last"
    assert_both_refuse(images, tmp_path / "x.npy", tmp_path, message)


@pytest.mark.parametrize(
    "change", [lambda x: x / 255, lambda x: x + 1, lambda x: -x], ids=["0 to 1", "256", "negative"]
)
def test_numbers_that_are_not_pixels_get_a_note(change, images: Path, tmp_path: Path) -> None:
    x = pixels(images).transpose(0, 3, 1, 2).astype(np.float32)
    assert x.max() == 255
    np.save(tmp_path / "x.npy", change(x))
    answer = call("run", images / "run" / "model.safetensors", tmp_path / "x.npy")
    assert answer.code == 0 and answer.err.count("\n") == 1
    assert answer.err.startswith("note: ") and "whole numbers from 0 to 255" in answer.err
    np.save(tmp_path / "x.npy", x)
    assert not call("run", images / "run" / "model.safetensors", tmp_path / "x.npy").err


def test_a_model_of_floats_gets_no_note_about_pixels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((COUNT, 1, SIDE, SIDE), dtype=np.float32)
    np.savez(tmp_path / "train.npz", x=x, y=np.arange(COUNT) % 2)
    short_run(tmp_path, tmp_path / "train.npz")
    np.save(tmp_path / "x.npy", x)
    assert not call("run", tmp_path / "run" / "model.safetensors", tmp_path / "x.npy").err


# ---- tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], [*NAMES[::-1], "7"]])
def test_columns_may_be_named_by_numbers(order: list[str], table: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(5, len(order))).round(2).tolist()
    path = write_table(tmp_path / "x.csv", order, x)
    assert_same_predictions(table, path, tmp_path)
    said = call("run", table / "run" / "model.safetensors", path).err
    assert ("ignored, because the model does not use them: '7'" in said) == ("7" in order)
    assert said.count("ignored") < 2


def test_a_table_without_a_header_gets_a_note(table: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / "x.csv", None, [[1, 2, 3, 4], [5, 6, 7, 8]])
    answer = call("run", table / "run" / "model.safetensors", path)
    assert answer.code == 0 and len(rows_of(answer.out)) == 2
    first, second = answer.err.splitlines()
    assert first.startswith("note: ") and "read as data" in first
    assert "unlike the training rows: '0' (1 of 2 cells are outside" in second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3,4,5\n1,2,3,4,5\n", "has 5 numbers and does not name the model's 4 columns"),
        ("0,1,2,3,3\n1,2,3,4,5\n", "two columns are named '3'"),
        ("0,1,2,3,a,a\n1,2,3,4,5,6\n", "two columns are named 'a'"),
        ("0,1,2,3,,a\n1,2,3,4,5,6\n", "column 5 has no name"),
        ("0,1,2,3\n1,2,3,1_0\n", "column '3' holds '1_0' in row 1: a number is needed"),
        ("0,1,2,3\n1,２,3,4\n", "column '1' holds '２' in row 1: a number is needed"),
    ],
)
def test_tables_that_predict_refuses_are_refused(text: str, message: str, table: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    assert_both_refuse(table, tmp_path / "x.csv", tmp_path, message)


# ---- names of files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "predict"])
def test_too_long_a_name_is_one_line(command: str, table: Path, tmp_path: Path) -> None:
    model = table / "run" / "model.safetensors" if command == "run" else table / "run"
    long = tmp_path / ("a" * 260 + ".csv")
    for inputs, out in ((table / "train.csv", long), (long, tmp_path / "p.csv")):
        answer = call(command, model, inputs, "--out", out)
        assert answer.code == 2 and answer.err.startswith("error: ") and "File name too long" in answer.err
        assert answer.err.count("\n") == 1 and not list(tmp_path.iterdir())
