"""What data may cost: memory is not taken because a file says so, time does not grow with a square, no read hangs."""

from __future__ import annotations

import io
import os
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from bayesbinn import data
from bayesbinn.data.own import images, memory, npy
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput

LABELS = np.arange(20) % 2


def refused(path: Path, message: str, **settings: Any) -> str:
    """Loading to train on fails with one line that matches."""
    with pytest.raises(BayesbinnError, match=message) as caught:
        data.load(path, **settings)
    assert len(str(caught.value)) < 500
    return str(caught.value)


# --- NumPy's files --------------------------------------------------------------------------------------------


def header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    """The start of a .npy file that promises an array of this shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def array(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def test_arrays_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    """Not even if they are damaged, or hold objects."""
    x = np.random.default_rng(0).normal(size=(20, 2))
    path = archive(tmp_path / "my.npz", x=array(x), y=array(LABELS), zeros=header((10**12,)), rest=b"broken")
    assert data.load(path).input_shape == (2,)
    inputs, _ = data.load_inputs(path, (2,))
    torch.testing.assert_close(inputs, torch.from_numpy(x).float())


@pytest.mark.parametrize("shape", [(10**9, 1000), (10**30, 10), (20, 2**62), (19, 2), (21, 2)])
def test_a_header_that_promises_something_else_than_the_file_has(tmp_path: Path, shape: tuple[int, ...]) -> None:
    content = header(shape) + bytes(20 * 2 * 8)
    path = archive(tmp_path / "my.npz", x=content, y=array(LABELS))
    refused(path, "not a readable .npz file: its header promises [0-9,]+ bytes .*, but 320 follow")
    (tmp_path / "x.npy").write_bytes(content)
    np.save(tmp_path / "y.npy", LABELS)
    refused(tmp_path, "not a readable .npy file: its header promises")
    with pytest.raises(InvalidFile, match="its header promises"):
        data.load_inputs(tmp_path / "x.npy", (2,))


def test_an_array_of_empty_text_takes_no_bytes_and_is_refused(tmp_path: Path) -> None:
    refused(archive(tmp_path / "my.npz", x=header((10**12, 2), "<U0"), y=array(LABELS)), "its header promises 0 bytes")


def test_a_compressed_giant_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A megabyte of zeros, compressed a thousand times, that claims to be many gigabytes."""
    size = 304 * 2**20
    path = tmp_path / "my.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with file.open("x.npy", "w", force_zip64=True) as member:
            member.write(header((size // 8192, 1024)))
            for _ in range(size // 2**20):
                member.write(bytes(2**20))
        file.writestr("y.npy", array(np.arange(size // 8192) % 2))
    assert path.stat().st_size < size / npy.MAX_EXPANSION
    started = time.monotonic()
    refused(path, r"x would grow from .* MB to 319 MB, more than 50 times: if that is right, save it uncompressed")
    assert time.monotonic() - started < 1


def test_a_flipped_bit_in_an_array_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "my.npz"
    np.savez(path, x=np.ones((20, 2)), y=LABELS)
    content = bytearray(path.read_bytes())
    content[content.index(np.ones(4).tobytes()) + 7] ^= 1
    path.write_bytes(content)
    refused(path, "not a readable .npz file: Bad CRC-32")


def test_names_that_differ_only_in_case_are_ambiguous(tmp_path: Path) -> None:
    np.savez(tmp_path / "my.npz", x=np.ones((20, 2)), X=np.zeros((20, 2)), y=LABELS)
    refused(tmp_path / "my.npz", r"it holds both x\.npy and X\.npy: remove or rename one of them")


# --- .npy -----------------------------------------------------------------------------------------------------


def test_a_folder_of_npy_files_is_like_an_archive(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    np.savez(tmp_path / "my.npz", x=x, y=LABELS)
    (tmp_path / "my").mkdir()
    np.save(tmp_path / "my" / "X.npy", x)
    np.save(tmp_path / "my" / "y.npy", LABELS)
    one, other = data.load(tmp_path / "my.npz"), data.load(tmp_path / "my")
    assert torch.equal(one.train_inputs, other.train_inputs) and torch.equal(one.train_targets, other.train_targets)
    (tmp_path / "my" / "y.npy").unlink()
    refused(tmp_path / "my", "it holds x: save x and y")


def test_a_single_npy_file_has_no_labels_but_can_be_predicted(tmp_path: Path) -> None:
    path = tmp_path / "my.npy"
    np.save(path, np.arange(6.0).reshape(3, 2))
    refused(path, r"a single array has no labels; save both with numpy\.savez\('my\.npz', x=\.\.\., y=\.\.\.\)")
    inputs, names = data.load_inputs(path, (2,))
    assert inputs.tolist() == [[0, 1], [2, 3], [4, 5]] and names == ["0", "1", "2"]
    np.save(path, np.array([[0.0, np.nan], [1.0, 2.0]])[::-1])
    with pytest.raises(InvalidFile, match=r"the array\[1\] has a NaN or infinite value"):
        data.load_inputs(path, (2,))


# --- tables ---------------------------------------------------------------------------------------------------


def test_a_wide_table_takes_seconds(tmp_path: Path) -> None:
    """Loading it, and finding its columns in another order."""
    columns, rows = 60_000, 6
    values = np.random.default_rng(0).normal(size=(rows, columns)).round(3)
    names = [f"c{i}" for i in range(columns)]
    path = tmp_path / "wide.csv"
    lines = [",".join([*map(str, row), str(r % 2)]) for r, row in enumerate(values)]
    path.write_text("\n".join([",".join([*names, "y"]), *lines]))
    started = time.process_time()
    dataset = data.load(path, label="y")
    inputs, _ = data.load_inputs(path, (columns,), features=names[::-1])
    assert time.process_time() - started < 15  # 2 seconds each, where a square takes minutes
    torch.testing.assert_close(inputs, torch.from_numpy(values[:, ::-1].copy()).float())
    assert dataset.input_shape == (columns,)


def test_a_row_longer_than_a_block_is_read(tmp_path: Path) -> None:
    """Arrow reads a mebibyte at a time unless told otherwise."""
    columns = 5000
    path = tmp_path / "wide.csv"
    row, head = ",".join(["1." + 300 * "0"] * columns), ",".join([f"c{i}" for i in range(columns)])
    path.write_text("\n".join([f"{head},y", *(f"{row},{i % 2}" for i in range(6))]))
    assert data.load(path, label="y").input_shape == (columns,)


def test_parquet_that_would_not_fit_is_refused(tmp_path: Path) -> None:
    """A column of one value takes a few bytes for any number of rows, so that the number can be true."""
    path = tmp_path / "my.parquet"
    pq.write_table(pa.table({"a": [1.0] * 24, "y": [0, 1] * 12}), path)
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - size : -8]
    rows, many = b"\x16\x30\x19", b"\x16\x80\xa0\x94\xa5\x8d\x1d\x19"  # Thrift: 24, and 500 thousand million
    assert footer.count(rows) >= 1
    footer = footer.replace(rows, many, 1)
    path.write_bytes(content[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    refused(path, r"500,000,000,000 rows would take 8,000\.0 GB, but only", label="y")


def test_parquet_with_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.table([[1.0] * 6, [2.0] * 6, [0, 1] * 3], names=["a", "a", "y"])
    pq.write_table(table, tmp_path / "my.parquet")
    refused(tmp_path / "my.parquet", "two columns are named 'a'", label="y")


# --- images ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for index in range(10):
        path = tmp_path / "pets" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 5), (index, 0, 255)).save(path)
    return tmp_path / "pets"


CODES = {
    1: lambda pixels: pixels,
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).transpose(1, 0, 2),
    8: np.rot90,
}
"""What must be done to stored pixels to see them upright (EXIF 2.32, tag 274)."""


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("suffix", [".png", ".tiff", ".jpg", ".webp"])
def test_images_are_turned_as_they_say(tmp_path: Path, suffix: str, code: int) -> None:
    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[:8, :8] = (255, 255, 255)
    pixels[:8, 8:16] = (255, 0, 0)
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[274] = code
    image.save(tmp_path / f"a{suffix}", exif=exif, quality=100, lossless=True, subsampling=0)
    expected = CODES[code](pixels)
    inputs, _ = data.load_inputs(tmp_path / f"a{suffix}", (3, *expected.shape[:2]))
    distance = np.abs(inputs[0].permute(1, 2, 0).numpy().astype(int) - expected)
    assert distance.max() < 10  # JPEG is lossy


def test_folders_are_turned_too(pets: Path) -> None:
    for path in pets.rglob("*.png"):
        image = Image.new("RGB", (5, 6))
        exif = image.getexif()
        exif[274] = 6
        image.save(path, exif=exif)
    assert data.load(pets).input_shape == (3, 5, 6)


def test_a_huge_image_is_refused_before_it_is_decoded(pets: Path) -> None:
    """170 million pixels in 20 KB, which Pillow itself would still decode."""
    Image.new("1", (17_000, 10_000)).save(pets / "cat" / "0.png", compress_level=1)
    started = time.monotonic()
    line = refused(pets, r"0\.png: 17,000×10,000 pixels; images of at most 50,000,000 pixels are read: resize it")
    assert line.startswith(str(pets / "cat" / "0.png")) and time.monotonic() - started < 1
    with pytest.raises(InvalidFile, match="at most 50,000,000 pixels"):
        data.load_inputs(pets / "cat" / "0.png", (3, 5, 6))


def test_a_folder_larger_than_memory_is_refused_before_it_is_decoded(pets: Path) -> None:
    """Images that are allowed one by one: one file under many names."""
    first = pets / "cat" / "0.png"
    Image.new("1", (10_000, images.MAX_PIXELS // 10_000)).save(first, compress_level=1)
    count = memory.available() // images.MAX_PIXELS + 1
    for index in range(count):
        os.link(first, pets / "dog" / f"big{index}.png")
    refused(pets, rf"{count + 10} images would take [0-9,.]+ GB, but only [0-9,.]+ GB")
    with pytest.raises(InvalidFile, match=rf"{count + 5} images would take"):
        data.load_inputs(pets / "dog", (3, 5, 6))


# --- what is not a file ---------------------------------------------------------------------------------------


@pytest.fixture
def impatient() -> Iterator[None]:
    """A read that hangs ends with an error after some seconds."""

    def give_up(number: int, frame: Any) -> None:
        pytest.fail("it hangs")  # not an `Exception`, which a reader of damaged files may turn into one line

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("impatient")
def test_a_pipe_in_a_folder_of_images_does_not_hang(pets: Path) -> None:
    os.mkfifo(pets / "dog" / "pipe.png")
    for call in (lambda: data.load(pets), lambda: data.load_inputs(pets, (3, 5, 6))):
        with pytest.raises(
            InvalidFile, match=r"dog/pipe\.png: not a regular file, though its name is an image's: remove"
        ):
            call()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["pipe.csv", "pipe.npz", "pipe.png"])
def test_a_pipe_is_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for call in (lambda: data.load(tmp_path / name), lambda: data.load_inputs(tmp_path / name, (3, 5, 6))):
        with pytest.raises(InvalidInput, match="neither a regular file nor a folder; copy its content into a file"):
            call()


@pytest.mark.parametrize("name", ["a\0b.csv", "x" * 5000 + ".csv", "~nobody-of-this-name/x.csv"])
def test_impossible_names_are_one_line(name: str) -> None:
    for call in (lambda: data.load(name, label="y"), lambda: data.load_inputs(name, (2,))):
        with pytest.raises(InvalidInput, match="no such file or folder"):
            call()


def test_a_class_whose_name_is_not_text(pets: Path) -> None:
    os.rename(pets / "dog", os.fsencode(pets) + b"/d\xffg")
    refused(pets, r"d\\udcffg: its name, which is that of a class, is not UTF-8: rename the folder")
    _, names = data.load_inputs(pets, (3, 5, 6))
    assert names[-1] == "d\\udcffg/9.png"
