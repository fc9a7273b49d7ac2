"""A user's own data: tables, NumPy archives, folders of images; and what is wrong with them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from bayesbinn import data
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput


def refused(path: Path, message: str, **settings: Any) -> str:
    """Loading fails with one line that matches."""
    with pytest.raises(BayesbinnError, match=message) as caught:
        data.load(path, **settings)
    assert isinstance(caught.value, InvalidFile | InvalidInput)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 500
    return line


def csv(folder: Path, text: str, name: str = "my.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def flowers(folder: Path, rows: int = 30, **settings: Any) -> Path:
    lines = [f"{i},{i * 0.5},{('rose', 'tulip', 'daisy')[i % 3]}" for i in range(rows)]
    return csv(folder, "\n".join(["width,height,kind", *lines]) + "\n", **settings)


# --- CSV ----------------------------------------------------------------------------------------------------


def test_a_table_with_text_labels(tmp_path: Path) -> None:
    dataset = data.load(flowers(tmp_path), label="kind")
    assert dataset.task == "classification" and dataset.classes == ("daisy", "rose", "tulip")
    assert dataset.features == ("width", "height") and dataset.train_inputs.dtype == torch.float32
    assert (len(dataset.train_inputs), len(dataset.test_inputs)) == (24, 6)
    assert dataset.test_targets is not None and dataset.test_targets.bincount().tolist() == [2, 2, 2]
    names = ("rose", "tulip", "daisy")
    for x, y in zip(dataset.train_inputs, dataset.train_targets, strict=True):
        assert dataset.classes[int(y)] == names[int(x[0]) % 3] and float(x[1]) == float(x[0]) / 2
    assert any("3 classes" in note for note in dataset.notes)
    assert any("6 of 30 examples" in note for note in dataset.notes)
    x, _ = dataset.split(0.0).train.whole()
    torch.testing.assert_close(x.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0), torch.ones(2))


def test_the_label_may_be_any_column_and_whole_numbers_are_classes(tmp_path: Path) -> None:
    text = "label,x\n" + "".join(f"{(i % 2) * 5 + 1},{i}\n" for i in range(20))
    dataset = data.load(csv(tmp_path, text), label="label")
    assert dataset.classes == ("1", "6") and dataset.features == ("x",)
    assert torch.equal(dataset.train_targets, dataset.train_inputs[:, 0].long() % 2)


def test_fractions_are_quantities(tmp_path: Path) -> None:
    text = "x,price\n" + "".join(f"{i},{i * 1.5 + 0.25}\n" for i in range(40))
    dataset = data.load(csv(tmp_path, text), label="price")
    assert dataset.task == "regression" and dataset.classes == () and dataset.train_targets.shape == (32, 1)
    y = dataset.split(0.0).train.targets
    assert float(y.mean()) == pytest.approx(0, abs=1e-6) and float(y.std()) == pytest.approx(1)
    torch.testing.assert_close(y * dataset.target_std + dataset.target_mean, dataset.train_targets)


@pytest.mark.parametrize(
    ("labels", "task", "expected"),
    [
        (list(range(40)), None, "regression"),
        ([i % 5 for i in range(40)], None, "classification"),
        ([i % 5 for i in range(40)], "regression", "regression"),
        ([i * 2 // 3 for i in range(40)], None, "regression"),
        ([i * 2 // 3 for i in range(40)], "classification", "classification"),
        ([i % 4 + 0.5 for i in range(40)], None, "regression"),
        (["true", "false"] * 20, None, "classification"),
    ],
)
def test_the_rule_and_the_users_word(tmp_path: Path, labels: list[Any], task: Any, expected: str) -> None:
    text = "x,y\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    assert data.load(csv(tmp_path, text), label="y", task=task).task == expected


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_spaces_quotes_and_blank_lines(tmp_path: Path, delimiter: str) -> None:
    """A quoted delimiter does not count, neither in the header nor in a cell."""
    kinds = ('"a,b;c"', " d ")
    rows = "".join(f" {i} {delimiter}{kinds[i % 2]}\n\n" for i in range(10))
    dataset = data.load(csv(tmp_path, f'\n\nx{delimiter}"the; kind, of"\n{rows}'), label="the; kind, of")
    assert dataset.classes == ("a,b;c", "d") and len(dataset.train_inputs) == 8


def test_a_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_bytes(b"\xef\xbb\xbfx,y\r\n" + b"".join(b"%d,%d\r\n" % (i, i % 2) for i in range(10)))
    assert data.load(path, label="y").features == ("x",)


def test_unnamed_row_numbers_are_left_out(tmp_path: Path) -> None:
    dataset = data.load(csv(tmp_path, ",x,y\n" + "".join(f"{i},{i * i},{i % 2}\n" for i in range(10))), label="y")
    assert dataset.features == ("x",) and "row numbers" in dataset.notes[0]


def test_the_same_file_gives_the_same_test_part(tmp_path: Path) -> None:
    first, second = (data.load(flowers(tmp_path), label="kind") for _ in range(2))
    assert torch.equal(first.test_inputs, second.test_inputs)


def test_two_tables_in_a_folder(tmp_path: Path) -> None:
    flowers(tmp_path, 30, name="train.csv")
    csv(tmp_path, "kind,height,width\nrose,1,2\ndaisy,3,4\n", "test.csv")
    dataset = data.load(tmp_path, label="kind")
    assert len(dataset.train_inputs) == 30 and dataset.test_inputs.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    csv(tmp_path, "kind,height,width\nrose,1,2\nlily,3,4\n", "test.csv")
    refused(tmp_path, "example 1 has the label 'lily', which is not among the 3 classes", label="kind")
    csv(tmp_path, "kind,height,depth\nrose,1,2\n", "test.csv")
    refused(tmp_path, "its columns differ from those of train.csv: depth, width", label="kind")


GOOD = "".join(f"{i},{i},{i % 2}\n" for i in range(8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("a,b,y\n", "a header but no rows"),
        ("a,b,y\n1,2,0\n1,2,1\n", "2 examples: 5 or more"),
        (f"a,b,y\n{GOOD}3,oops,1\n", "column 'b' holds 'oops' in row 9, which is not a number"),
        (f"a,b,y\n{GOOD}3,,1\n4,,1\n", r"column 'b' is empty, NaN or too large in row 9 \(2 such cells\)"),
        (f"a,b,y\n{GOOD}3,NaN,1\n", "column 'b' is empty, NaN or too large in row 9"),
        (f"a,b,y\n{GOOD}inf,2,1\n", "column 'a' is empty, NaN or too large in row 9"),
        (f"a,b,y\n{GOOD}1,2,\n", "the label column 'y' is empty in row 9"),
        (f"a,b,y\n{GOOD}1,2\n", "row 9: Expected 3 columns, got 2"),
        (f"a,a,y\n{GOOD}", "two columns are named 'a'"),
        (f"a,,y\n{GOOD}", "column 2 has no name"),
        ("y\n" + "1\n0\n" * 5, "'y' is the only column"),
        ("a,y\n" + "".join(f"{i},name{i}\n" for i in range(9)), "each of 9 examples has a label of its own"),
        (f"a,b,y\n{GOOD}1e39,2,1\n", "column 'a' is empty, NaN or too large in row 9"),
        ("a,y\n" + "".join(f"{i},{i}e38\n" for i in range(9)), "the label of example 4 is NaN or too large"),
        ("a,y\n" + "1,cat\n" * 9, "all labels are 'cat': 2 or more classes"),
    ],
)
def test_a_bad_table_is_explained(tmp_path: Path, text: str, message: str) -> None:
    assert refused(csv(tmp_path, text), message, label="y").startswith(str(tmp_path / "my.csv"))


def test_a_missing_label_column_gets_the_nearest(tmp_path: Path) -> None:
    line = refused(flowers(tmp_path), "no column 'knid'", label="knid")
    assert "Did you mean 'kind'? There are width, height, kind" in line
    refused(flowers(tmp_path), "which column holds the labels.*there are width, height, kind")


def test_other_encodings_and_binaries_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    path.write_bytes("größe,y\n".encode("latin-1") + b"1,2\n" * 9)
    refused(path, r"not a readable CSV file .*: it needs UTF-8 text", label="y")
    path.write_bytes(b"x,y\n" + "1,é\n".encode("latin-1") * 9)
    refused(path, r"not a readable CSV file .*: it needs UTF-8 text", label="y")


def test_a_large_number_that_hardly_changes_is_noted(tmp_path: Path) -> None:
    text = "time,x,y\n" + "".join(f"{1_700_000_000 + 200 * (i % 3)},{i},{i % 2}\n" for i in range(20))
    assert any("'time' hardly changes" in note for note in data.load(csv(tmp_path, text), label="y").notes)


# --- Parquet ------------------------------------------------------------------------------------------------


def parquet(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "my.parquet")
    return folder / "my.parquet"


def test_parquet_of_many_types(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        a=pa.array(range(10), pa.int16()),
        b=pa.array([i / 2 for i in range(10)], pa.float32()),
        c=pa.array([True, False] * 5),
        kind=pa.array(["x", "y"] * 5).dictionary_encode(),
    )
    dataset = data.load(path, label="kind")
    assert dataset.features == ("a", "b", "c") and dataset.classes == ("x", "y")
    assert torch.equal(dataset.train_inputs[:, 2], (dataset.train_inputs[:, 0] % 2 == 0).float())
    refused(path, "column 'kind' holds 'x' in row 1", label="a")


def test_parquet_true_and_false_are_classes(tmp_path: Path) -> None:
    dataset = data.load(parquet(tmp_path, a=list(range(10)), yes=[True, False] * 5), label="yes")
    assert dataset.classes == ("False", "True")
    assert torch.equal(dataset.train_targets, (dataset.train_inputs[:, 0] % 2 == 0).long())


def test_bad_parquet_is_explained(tmp_path: Path) -> None:
    numbers, labels = [1.0, 2.0, None, 4.0, 5.0, float("nan")], [0, 1, 0, 1, 0, 1]
    path = parquet(tmp_path, a=numbers, y=labels)
    refused(path, r"column 'a' is empty, NaN or too large in row 3 \(2 such cells\)", label="y")
    refused(parquet(tmp_path, a=labels, y=[None, *labels[1:]]), "label column 'y' is empty in row 1", label="y")
    refused(parquet(tmp_path, a=[[1]] * 6, y=labels), "column 'a' holds list", label="y")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused(path, "not a readable Parquet file", label="y")


# --- .npz ---------------------------------------------------------------------------------------------------


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "my.npz", **arrays)
    return folder / "my.npz"


LABELS = np.arange(20) % 2


@pytest.mark.parametrize("shape", [(20, 5, 6), (20, 1, 5, 6), (20, 5, 6, 1), (20, 3, 5, 6), (20, 5, 6, 3)])
def test_npz_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    dataset = data.load(npz(tmp_path, x=pixels, y=LABELS))
    channels = 3 if 3 in shape else 1
    assert dataset.input_shape == (channels, 5, 6) and dataset.train_inputs.dtype == torch.uint8
    expected = pixels.reshape(shape) if shape[-1] not in (1, 3) else pixels.transpose(0, 3, 1, 2)
    together = torch.cat((dataset.train_inputs, dataset.test_inputs)).flatten(1).tolist()
    assert sorted(together) == sorted(expected.reshape(20, -1).tolist())


def test_npz_with_its_own_test_part(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 4))
    path = npz(tmp_path, x_train=x[:15], y_train=LABELS[:15], x_test=x[15:], y_test=LABELS[15:, None])
    dataset = data.load(path)
    assert len(dataset.train_inputs) == 15 and dataset.test_targets is not None
    assert dataset.test_targets.tolist() == LABELS[15:].tolist()
    torch.testing.assert_close(dataset.test_inputs, torch.from_numpy(x[15:]).float())


def test_npz_text_labels_and_regression(tmp_path: Path) -> None:
    x = np.arange(40.0).reshape(20, 2)
    assert data.load(npz(tmp_path, x=x, y=np.array(["u", "v"])[LABELS])).classes == ("u", "v")
    assert data.load(npz(tmp_path, X=x, Y=np.linspace(0, 1, 20))).task == "regression"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (dict(a=np.zeros(3)), "it holds a: save x and y"),
        (dict(x=np.zeros((20, 2)), y=LABELS[:19]), "20 inputs but 19 labels"),
        (dict(x=np.full((20, 2), np.nan), y=LABELS), r"x\[0\] has a NaN"),
        (dict(x=np.full((20, 2), 1e300), y=LABELS), r"x\[0\] has a NaN or infinite value"),
        (dict(x=np.zeros((20, 2)), y=np.full(20, np.nan)), "the label of example 0 is NaN"),
        (dict(x=np.array(["a"] * 20), y=LABELS), "x has type <U1"),
        (dict(x=np.zeros(20), y=LABELS), r"shape \(20,\)"),
        (dict(x=np.zeros((20, 5, 6, 7), np.uint8), y=LABELS), "1 or 3 channels"),
        (dict(x=np.zeros((20, 2)), y=np.zeros((20, 3))), r"labels of shape \(20, 3\)"),
        (dict(x=np.array([{}] * 20, object), y=LABELS), "not a readable .npz file"),
    ],
)
def test_bad_npz_is_explained(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    refused(npz(tmp_path, **arrays), message)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 1], [0.0, 1.7], "example 1 has the label '1.7', which is not among the 2 classes"),
        ([0, 1], [0.0, np.nan], "example 1 has the label 'nan'"),
        ([0, 1], ["0", "1"], "the label '0' is text, but those to train on are numbers"),
        ([0.5, 1.5], ["0", "1"], "the label '0' is text"),
        ([0.5, 1.5], [0.0, np.nan], "the label of example 1 is NaN or too large"),
        (["1", "b"], [1.0, 2.0], "example 1 has the label '2', which is not among the 2 classes"),
    ],
)
def test_test_labels_that_do_not_fit(tmp_path: Path, train: list[Any], test: list[Any], message: str) -> None:
    x = np.zeros((6, 2))
    refused(npz(tmp_path, x_train=x, y_train=np.array(train * 3), x_test=x, y_test=np.array(test * 3)), message)


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "inside"])
def test_damaged_npz_is_explained(tmp_path: Path, damage: str) -> None:
    path = npz(tmp_path, x=np.zeros((20, 2)), y=LABELS)
    content = path.read_bytes()
    if damage == "inside":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY broken")
            archive.writestr("y.npy", b"")
    else:
        path.write_bytes({"truncated": content[:200], "text": b"hello", "empty": b""}[damage])
    refused(path, "not a readable .npz file")


# --- images -------------------------------------------------------------------------------------------------


def picture(path: Path, value: int, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = value if mode in ("L", "I;16") else (value, 0, 255)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for index in range(10):
        picture(tmp_path / "pets" / ("cat", "dog")[index % 2] / f"{index}.png", index)
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    return tmp_path / "pets"


def test_a_folder_of_images(pets: Path) -> None:
    dataset = data.load(pets)
    assert dataset.classes == ("cat", "dog") and dataset.input_shape == (3, 5, 6) and not dataset.augment
    assert (len(dataset.train_inputs), len(dataset.test_inputs)) == (8, 2)
    assert torch.equal(dataset.train_inputs[:, 0, 0, 0].long() % 2, dataset.train_targets)
    assert (dataset.train_inputs[:, 2] == 255).all() and (dataset.train_inputs[:, 1] == 0).all()


def test_grey_images_have_one_channel_unless_some_are_not(pets: Path) -> None:
    for path in pets.rglob("*.png"):
        picture(path, int(path.stem), mode="L")
    assert data.load(pets).input_shape == (1, 5, 6)
    picture(pets / "dog" / "1.png", 1)
    mixed = data.load(pets)
    assert mixed.input_shape == (3, 5, 6)
    both = torch.cat((mixed.train_inputs, mixed.test_inputs))
    assert sorted(both[:, 0, 0, 0].tolist()) == list(range(10))


def test_training_and_test_folders(pets: Path, tmp_path: Path) -> None:
    root = tmp_path / "divided"
    root.mkdir()
    pets.rename(root / "train")
    for index, name in enumerate(("cat", "dog")):
        picture(root / "test" / name / "a.png", 100 + index)
    dataset = data.load(root)
    assert len(dataset.train_inputs) == 10 and dataset.test_inputs[:, 0, 0, 0].tolist() == [100, 101]


def test_bad_image_folders_are_explained(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "one" / "cat").mkdir(parents=True)
    refused(tmp_path / "one", "only one subfolder, cat: 2 or more are needed")
    (tmp_path / "none").mkdir()
    refused(tmp_path / "none", "no subfolder: 2 or more are needed")
    (pets / "emu").mkdir()
    refused(pets, "emu: no image in it")
    (pets / "emu").rmdir()
    picture(pets / "dog" / "3.png", 3, size=(8, 5))
    line = refused(pets, r"3\.png: 8×5 pixels, but .*0\.png has 6×5: all images need one size")
    assert "mogrify -resize '6x5!'" in line


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "16 bits"])
def test_an_unreadable_image_is_named(pets: Path, damage: str) -> None:
    path = pets / "dog" / "5.png"
    content = path.read_bytes()
    if damage == "16 bits":
        picture(path, 1000, mode="I;16")
    else:
        path.write_bytes({"truncated": content[:50], "text": b"hello", "empty": b""}[damage])
    line = refused(pets, "more than 8 bits" if damage == "16 bits" else "not a readable image")
    assert line.startswith(str(path))


# --- new inputs ---------------------------------------------------------------------------------------------


def test_new_rows_are_matched_by_name(tmp_path: Path) -> None:
    path = csv(tmp_path, "height,kind,width\n1,rose,2\n3,daisy,4\n")
    inputs, names = data.load_inputs(path, (2,), features=("width", "height"))
    assert inputs.tolist() == [[2.0, 1.0], [4.0, 3.0]] and names == ["0", "1"]
    with pytest.raises(InvalidInput, match=r"no column 'widht', .* trained on\. Did you mean 'width'"):
        data.load_inputs(path, (2,), features=("widht", "height"))
    with pytest.raises(InvalidInput, match=r"the shape \(2,\), but the model takes \(3,\)"):
        data.load_inputs(path, (3,), features=("width", "height"))
    with pytest.raises(InvalidFile, match="column 'kind' holds 'rose' in row 1"):
        data.load_inputs(path, (3,))


def test_new_arrays_take_the_models_shape(tmp_path: Path) -> None:
    pixels = np.arange(60, dtype=np.uint8).reshape(2, 5, 6)
    for arrays in (dict(x=pixels, y=LABELS[:2]), dict(anything=pixels)):
        inputs, _ = data.load_inputs(npz(tmp_path, **arrays), (1, 5, 6))
        assert inputs.dtype == torch.uint8 and torch.equal(inputs[:, 0], torch.from_numpy(pixels))
    assert data.load_inputs(npz(tmp_path, x=pixels), (30,))[0].shape == (2, 30)
    with pytest.raises(InvalidFile, match="it holds a, b: save the inputs as x"):
        data.load_inputs(npz(tmp_path, a=pixels, b=pixels), (30,))


def test_new_images(pets: Path) -> None:
    inputs, names = data.load_inputs(pets, (3, 5, 6))
    assert names[:2] == ["cat/0.png", "cat/2.png"] and inputs[:2, 0, 0, 0].tolist() == [0, 2]
    picture(pets / "grey.png", 7, mode="L")
    inputs, names = data.load_inputs(pets / "grey.png", (3, 5, 6))
    assert names == ["grey.png"] and inputs.shape == (1, 3, 5, 6) and inputs.unique().tolist() == [7]
    with pytest.raises(InvalidInput, match="but the model takes \\(1, 5, 6\\)"):
        data.load_inputs(pets / "cat", (1, 5, 6))
    with pytest.raises(InvalidInput, match="not images"):
        data.load_inputs(pets, (30,))


def test_new_inputs_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        data.load_inputs(tmp_path / "x.csv", (2,))
    (tmp_path / "x.txt").write_text("1 2")
    with pytest.raises(InvalidInput, match=r"\.npy, an image or a folder"):
        data.load_inputs(tmp_path / "x.txt", (2,))
    with pytest.raises(InvalidFile, match="no image in it"):
        data.load_inputs(tmp_path, (3, 2, 2))


# --- the entry ----------------------------------------------------------------------------------------------


def test_what_cannot_be_loaded(tmp_path: Path, pets: Path) -> None:
    refused(tmp_path / "nothing.csv", "no such file or folder", label="y")
    (tmp_path / "my.xlsx").write_text("")
    refused(
        tmp_path / "my.xlsx",
        r"cannot load files ending in \.xlsx; \.csv, \.tsv, \.parquet, \.npz or a folder can be loaded",
    )
    refused(pets, "label='y' names a table column, but this is not a table", label="y")
    refused(pets, "always classified", task="regression")
