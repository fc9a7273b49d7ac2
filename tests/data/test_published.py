"""MNIST, CIFAR-10/100 and Snelson: their files, intact, damaged and missing."""

from __future__ import annotations

import gzip
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bayesbinn import data
from bayesbinn.data.published import cifar, mnist
from bayesbinn.errors import InvalidFile, MissingDependency


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Only what a test provides is found, unless it requests the real data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    if "data_dir" not in request.fixturenames:
        monkeypatch.delenv("BAYESBINN_DATA", raising=False)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text and "\n" not in text
    return text


# --- real data ----------------------------------------------------------------------------------------------


def test_real_mnist(data_dir: Path) -> None:
    dataset = data.load("mnist", download=False)
    assert dataset.train_inputs.shape == (60_000, 1, 28, 28) and dataset.test_inputs.shape == (10_000, 1, 28, 28)
    assert dataset.train_inputs.dtype == torch.uint8 and not dataset.augment
    assert dataset.train_targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert dataset.test_targets is not None and dataset.test_targets[:5].tolist() == [7, 2, 1, 0, 4]
    x = dataset.split(0.0).train.whole()[0]
    # 0.1307 and 0.3081 are the data set's mean and deviation, rounded to four digits.
    assert abs(float(x.mean())) < 2e-4 and abs(float(x.std()) - 1) < 2e-4
    parts = dataset.split(0.1, seed=1)
    assert parts.validation is not None and (len(parts.train), len(parts.validation)) == (54_000, 6_000)


def test_real_cifar10(data_dir: Path) -> None:
    dataset = data.load("cifar10", download=False)
    assert dataset.train_inputs.shape == (50_000, 3, 32, 32) and dataset.augment
    assert dataset.train_targets.bincount().tolist() == [5_000] * 10
    assert dataset.test_targets is not None and dataset.test_targets.bincount().tolist() == [1_000] * 10
    means = [round(float(dataset.train_inputs[:, c].float().mean()) / 255, 4) for c in range(3)]
    assert means == [0.4914, 0.4822, 0.4465]
    assert dataset.classes[3] == "cat" and dataset.source == str(data_dir / "cifar-10-batches-bin")
    x, y = next(iter(dataset.split(0.1, seed=10).train.batches(50, seed=10, epoch=1, augment=True)))
    assert x.shape == (50, 3, 32, 32) and y.shape == (50,)


def test_real_cifar100(data_dir: Path) -> None:
    if not (data_dir / "cifar-100-binary").is_dir():
        pytest.skip("the folder in BAYESBINN_DATA has no cifar-100-binary/")
    dataset = data.load("cifar100", download=False)
    assert dataset.train_targets.bincount().tolist() == [500] * 100


def test_real_snelson(data_dir: Path) -> None:
    dataset = data.load("snelson", download=False)
    assert dataset.train_inputs.shape == (200, 1) and dataset.test_inputs.shape == (301, 1)
    assert dataset.test_inputs[[0, -1], 0].tolist() == [-3.0, 10.0]
    parts = dataset.split(0.0)
    assert parts.test is None and dataset.test_targets is None
    for values in parts.train.whole():
        torch.testing.assert_close(values.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
        torch.testing.assert_close(values.std(), torch.tensor(1.0))


def test_available_says_where(data_dir: Path) -> None:
    found = {each.name: each for each in data.available()}
    assert found["mnist"].where == str(data_dir / "mnist") and found["mnist"].advice is None
    assert found["digits"].where == "scikit-learn"


# --- MNIST --------------------------------------------------------------------------------------------------


def idx(shape: tuple[int, ...], fill: int = 0) -> bytes:
    size = 1
    for length in shape:
        size *= length
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes([fill]) * size


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve training and four test digits, half of the files compressed."""
    monkeypatch.setattr(mnist, "TRAIN", 12)
    monkeypatch.setattr(mnist, "TEST", 4)
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte").write_bytes(idx((12, 28, 28), 200))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx((12,), 3)))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx((4, 28, 28), 100)))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx((4,), 9))
    return folder


def test_mnist_is_read_with_and_without_gzip(small_mnist: Path) -> None:
    dataset = data.load("mnist", data_dir=small_mnist.parent, download=False)
    assert dataset.train_targets.tolist() == [3] * 12 and int(dataset.test_inputs.max()) == 100


@pytest.mark.parametrize("layout", ["MNIST/raw", ""])
def test_other_layouts_are_found(small_mnist: Path, tmp_path: Path, layout: str) -> None:
    root = tmp_path / "other"
    shutil.copytree(small_mnist, root / layout)
    assert data.load("mnist", data_dir=root, download=False).source == str(root / layout)


def test_the_order_of_the_search_folders(small_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "bayesbinn" / "mnist"
    shutil.copytree(small_mnist, cache)
    assert data.load("mnist", download=False).source == str(cache)
    shutil.copytree(small_mnist, tmp_path / "variable" / "mnist")
    monkeypatch.setenv("BAYESBINN_DATA", str(tmp_path / "variable"))
    assert data.load("mnist", download=False).source == str(tmp_path / "variable" / "mnist")
    assert data.load("mnist", data_dir=small_mnist.parent, download=False).source == str(small_mnist)
    elsewhere = data.load("mnist", data_dir=tmp_path / "empty", download=False)
    assert elsewhere.source == str(tmp_path / "variable" / "mnist")


def test_a_named_folder_needs_no_pooch(small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert len(data.load("mnist", data_dir=small_mnist.parent).train_inputs) == 12
    with pytest.raises(MissingDependency, match="needs pooch"):
        data.load("mnist")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def replace_by(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


LABELS, IMAGES = "train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (IMAGES, cut, r"9,419 bytes instead of 9,424 \(a header and 12×28×28 bytes\)"),
        (IMAGES, lengthen, "more than 9,424 bytes instead of 9,424"),
        (LABELS, cut, "damaged or truncated gzip file"),
        (LABELS, replace_by(gzip.compress(b"")), "0 bytes instead of 20"),
        (LABELS, replace_by(b"\x1f\x8b" + bytes(30)), "damaged or truncated gzip file"),
        (
            LABELS,
            replace_by(b"<html>not found</html>"[:20]),
            "starts with 3c 68 74 6d, but this kind of IDX file starts with 00 00 08 01",
        ),
        (LABELS, replace_by(gzip.compress(idx((12,), 10))), "label 10 of example 0 is not in 0 to 9"),
        (IMAGES, replace_by(idx((12, 14, 56))), r"the header says \(12, 14, 56\), but MNIST has \(12, 28, 28\)"),
    ],
)
def test_a_bad_mnist_file_is_named(small_mnist: Path, name: str, damage: Callable[[Path], None], message: str) -> None:
    path = small_mnist / name
    damage(path)
    content = path.read_bytes()
    with pytest.raises(InvalidFile, match=message) as caught:
        data.load("mnist", data_dir=small_mnist.parent, download=False)
    line = one_line(caught.value)
    assert line.startswith(str(path)) and line.endswith("replace the file, or delete it to download it again")
    assert path.read_bytes() == content, "a user's file is never touched"


def test_a_folder_in_place_of_a_file(small_mnist: Path) -> None:
    (small_mnist / IMAGES).unlink()
    (small_mnist / IMAGES).mkdir()
    with pytest.raises(InvalidFile, match="mnist is not on this machine"):
        data.load("mnist", data_dir=small_mnist.parent, download=False)


def test_missing_files_give_one_line_of_advice(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile) as caught:
        data.load("mnist", data_dir=tmp_path / "here", download=False)
    line = one_line(caught.value)
    assert "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz" in line
    assert f"into {tmp_path / 'here' / 'mnist'}" in line and "BAYESBINN_DATA" in line
    missing = {each.name: each for each in data.available(tmp_path / "here")}["cifar10"]
    assert missing.where is None and missing.advice is not None
    assert "put cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/" in missing.advice
    assert f"into {tmp_path / 'here'}," in missing.advice


# --- CIFAR --------------------------------------------------------------------------------------------------


def records(*labels: tuple[int, ...]) -> bytes:
    """Images of a single color: red is 1, green 2, blue 3."""
    pixels = b"\1" * 1024 + b"\2" * 1024 + b"\3" * 1024
    return b"".join(bytes(label) + pixels for label in labels)


def test_records_are_read_in_the_order_of_the_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.bin", tmp_path / "b.bin"
    first.write_bytes(records((7,), (0,)))
    second.write_bytes(records((9,), (1,)))
    images, labels = cifar.read_records([first, second], 2, (10,))
    assert labels.tolist() == [7, 0, 9, 1]
    assert images.shape == (4, 3, 32, 32) and images[3].unique().tolist() == [1, 2, 3]
    assert images[0, 1].unique().tolist() == [2]


def test_the_fine_label_of_cifar100_is_used(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(records((19, 99), (0, 50)))
    assert cifar.read_records([tmp_path / "train.bin"], 2, (20, 100))[1].tolist() == [99, 50]


@pytest.mark.parametrize(
    ("content", "classes", "message"),
    [
        (records((1,), (10,)), (10,), "label 10 in record 1 is not in 0 to 9"),
        (records((20, 1), (0, 1)), (20, 100), "label 20 in record 0 is not in 0 to 19"),
        (records((2, 100), (0, 1)), (20, 100), "label 100 in record 0 is not in 0 to 99"),
        (records((1,), (2,))[:-1], (10,), "6,145 bytes instead of 6,146 .2 records of 3,073 bytes"),
        (b"", (10,), "0 bytes instead of 6,146"),
        (records((1, 1), (2, 2)), (10,), "more than 6,146 bytes"),
    ],
)
def test_a_bad_cifar_file_is_named(tmp_path: Path, content: bytes, classes: tuple[int, ...], message: str) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=message) as caught:
        cifar.read_records([path], 2, classes)
    assert one_line(caught.value).startswith(str(path))


def sparse(path: Path, size: int) -> None:
    """A file of zeros that takes no space."""
    with path.open("wb") as file:
        file.truncate(size)


def test_cifar100_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    sparse(folder / "train.bin", 50_000 * 3074)
    sparse(folder / "test.bin", 10_000 * 3074)
    names = folder / "fine_label_names.txt"
    names.write_text("\n".join(f"class_{i}" for i in range(100)) + "\n\n")
    dataset = data.load("cifar100", data_dir=tmp_path, download=False)
    assert dataset.num_classes == 100 and dataset.classes[99] == "class_99" and dataset.augment
    assert dataset.train_inputs.shape == (50_000, 3, 32, 32) and len(dataset.test_inputs) == 10_000
    torch.testing.assert_close(dataset.mean, torch.tensor([0.507, 0.487, 0.441]))
    names.write_text("apple\n")
    with pytest.raises(InvalidFile, match="1 names instead of 100"):
        data.load("cifar100", data_dir=tmp_path, download=False)


def test_a_file_without_read_permission(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with pytest.raises(InvalidFile, match=r"x\.bin: cannot read the file \(No such file or directory\)"):
        cifar.read_records([path], 2, (10,))


# --- Snelson ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1.0\n" * 199, "199 numbers; expected 200 finite ones"),
        ("1.0\n" * 199 + "abc\n", "could not convert string to float: b?'abc'"),
        ("1.0\n" * 199 + "nan\n", "expected 200 finite ones"),
    ],
)
def test_a_bad_snelson_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    folder = tmp_path / "snelson"
    folder.mkdir()
    for name in ("train_inputs", "train_outputs"):
        (folder / name).write_text("\n".join(str(i) for i in range(200)))
    (folder / "test_inputs").write_text("\n".join(str(i) for i in range(301)))
    assert len(data.load("snelson", data_dir=tmp_path, download=False).train_inputs) == 200
    (folder / "train_outputs").write_text(content)
    with pytest.raises(InvalidFile, match=message) as caught:
        data.load("snelson", data_dir=tmp_path, download=False)
    assert "train_outputs" in one_line(caught.value)
