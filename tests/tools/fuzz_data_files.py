"""Damages valid data files of every kind and loads them: each loads, or is rejected with one line.

``python tests/tools/fuzz_data_files.py COUNT SEED FOLDER [KIND ...]`` prints JSON: for each kind how many files were
loaded and refused, what else happened, and by how many bytes the memory of the process grew.
"""

from __future__ import annotations

import csv
import io
import json
import resource
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from bayesbinn import data
from bayesbinn.errors import BayesbinnError
from bayesbinn.runtime.tables import encoded_strips

ROWS = 24
HARD_LIMIT = 6 * 2**30  # of address space, so that a failure does not take down the machine
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**64 - 1)


# --- valid files ----------------------------------------------------------------------------------------------


def arrays() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"x": random.normal(size=(ROWS, 3)).round(2), "y": np.arange(ROWS) % 3, "extra": np.zeros(100)}


def npz(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, **arrays())
    return file.getvalue()


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, arrays()["x"])
    return file.getvalue()


def text(delimiter: str) -> bytes:
    content = arrays()
    rows = [[*map(str, x), f"kind {y}"] for x, y in zip(content["x"], content["y"], strict=True)]
    return "\n".join(delimiter.join(row) for row in [["a", "b", "größe", "y"], *rows]).encode()


def mixed(delimiter: str) -> bytes:
    """A table to be encoded: text, dates, true and false, missing cells, an outlier, names with commas and quotes."""
    rows = [
        [
            "" if i % 7 == 3 else str(20 + i),
            ("nurse", "köchin", "NA")[i % 3],
            f"20{10 + i % 9}-0{1 + i % 9}-11",
            ("true", "false")[i % 2],
            "1e9" if i == 5 else f"{i * 0.37:.2f}",
            f"kind {i % 3}",
        ]
        for i in range(ROWS)
    ]
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([["a", 'b, "net"', "since", "member", "size", "y"], *rows])
    return b"\xef\xbb\xbf" + file.getvalue().encode()


def mixed_parquet() -> bytes:
    days = np.datetime64("2020-01-01") + np.arange(ROWS)
    columns: dict[str, Any] = {
        "a": [None if i % 7 == 3 else float(i) for i in range(ROWS)],
        "job": pa.array([("nurse", "cook", None)[i % 3] for i in range(ROWS)]).dictionary_encode(),
        "since": pa.array(days),
        "member": [i % 2 == 0 for i in range(ROWS)],
        "y": [f"kind {i % 3}" for i in range(ROWS)],
    }
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def parquet() -> bytes:
    content = arrays()
    columns = {"a": content["x"][:, 0], "b": content["y"] * 2, "y": [f"kind {y}" for y in content["y"]]}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def picture(kind: str, mode: str = "RGB", **settings: Any) -> bytes:
    """Nine pixels wide and seven high, after a rotation if the format can store one."""
    turned = kind in ("JPEG", "TIFF", "WEBP", "PNG")
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3) if turned else (7, 9, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    if turned:
        image.getexif()[0x0112] = 6
        settings["exif"] = image.getexif()
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "npz": (".npz", lambda: npz(np.savez)),
    "compressed npz": (".npz", lambda: npz(np.savez_compressed)),
    "npy": (".npy", npy),
    "csv": (".csv", lambda: text(",")),
    "tsv": (".tsv", lambda: text("\t")),
    "parquet": (".parquet", parquet),
    "encoded csv": (".csv", lambda: mixed(",")),
    "encoded csv with semicolons": (".csv", lambda: mixed(";")),
    "encoded tsv": (".tsv", lambda: mixed("\t")),
    "encoded parquet": (".parquet", mixed_parquet),
    "png": (".png", lambda: picture("PNG")),
    "palette png": (".png", lambda: picture("PNG", "P")),
    "ppm": (".ppm", lambda: picture("PPM")),
    "pgm": (".pgm", lambda: picture("PPM", "L")),
    "plain ppm": (".ppm", lambda: b"P3\n9 7\n255\n" + b" ".join(b"%d" % (i % 256) for i in range(7 * 9 * 3))),
    "jpeg": (".jpg", lambda: picture("JPEG")),
    "progressive jpeg": (".jpg", lambda: picture("JPEG", progressive=True)),
    "bmp": (".bmp", lambda: picture("BMP")),
    "gif": (".gif", lambda: picture("GIF", "P")),
    "tiff": (".tiff", lambda: picture("TIFF")),
    "packed tiff": (".tif", lambda: picture("TIFF", compression="tiff_lzw")),
    "webp": (".webp", lambda: picture("WEBP")),
    "lossless webp": (".webp", lambda: picture("WEBP", lossless=True)),
}


# --- damage ---------------------------------------------------------------------------------------------------


def damaged(content: bytes, random: Random) -> bytes:
    """The content after one to six changes, most of them near its start or its end, where the headers are."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        place = _place(len(changed), random)
        match random.randrange(7):
            case 0 if changed:
                changed[place] ^= 1 << random.randrange(8)
            case 1 if changed:
                changed[place] = random.choice((0, 1, 9, 10, 32, 44, 57, 127, 128, 255))
            case 2:
                number = random.choice(NUMBERS)
                size = random.choice([size for size in (2, 4, 8) if number < 256**size])
                layout = random.choice("<>") + {2: "H", 4: "I", 8: "Q"}[size]
                changed[place : place + size] = struct.pack(layout, number)
            case 3:
                del changed[place : place + random.randint(1, 16)]
            case 4:
                changed[place:place] = random.randbytes(random.randint(1, 16))
            case 5:
                other = _place(len(changed), random)
                changed[place:place] = changed[other : other + random.randint(1, 64)]
            case _:
                if random.random() < 0.3:
                    del changed[place:]
                else:  # other digits for a number in a text header
                    digits = [i for i, byte in enumerate(changed[:200]) if 48 <= byte <= 57]
                    if digits:
                        changed[random.choice(digits)] = random.randrange(48, 58)
    return bytes(changed)


CELLS = (
    "",
    "NA",
    "inf",
    "-inf",
    "nan",
    "1e999",
    "1e-999",
    "-0",
    "0x10",
    "1_000",
    "٣",
    "1,5",
    '"',
    "x" * 2000,
    "\ufeff",
)
CELLS += (
    "2024-13-01",
    "31.12.2024",
    "0001-01-01",
    "9999-12-31T24:00",
    "true",
    "yes",
    "9" * 400,
    "=1+1",
    " ",
    "é\u0301",
)


def with_odd_cells(content: bytes, random: Random) -> bytes:
    """Text in which some cells hold something else, which is still text."""
    lines = content.decode().split("\n")
    delimiter = max(",;\t", key=lines[0].count)
    for _ in range(random.choice((1, 1, 2, 5))):
        line = random.randrange(len(lines))
        cells = lines[line].split(delimiter)
        cells[random.randrange(len(cells))] = random.choice(CELLS)
        lines[line] = delimiter.join(cells)
    return "\n".join(lines).encode()


def _place(size: int, random: Random) -> int:
    if size == 0:
        return 0
    near = min(size, random.choice((16, 64, 256, size)))
    return random.randrange(near) if random.random() < 0.6 else size - 1 - random.randrange(near)


# --- loading --------------------------------------------------------------------------------------------------


def encoded(folder: Path, suffix: str, content: bytes, whole: bytes) -> list[Callable[[], Any]]:
    """The entry points for tables that are encoded; `whole` is the file that the encoding was learned from."""
    known, path = folder / f"whole{suffix}", folder / f"table{suffix}"
    known.write_bytes(whole)
    path.write_bytes(content)
    encoding = data.load(known, label="y", encode=True).encoding
    assert encoding is not None

    def learn() -> None:
        found = data.load(path, label="y", encode=True)
        assert bool(np.isfinite(found.train_inputs.numpy()).all())

    def predict() -> None:
        found, _ = data.load_inputs(path, (encoding.width,), encoding=encoding)
        assert bool(np.isfinite(found.numpy()).all())

    def run() -> None:
        assert all(np.isfinite(strip).all() for strip in encoded_strips(path, encoding, []))

    return [learn, predict] if suffix == ".parquet" else [learn, predict, run]


def load_all(folder: Path, suffix: str, content: bytes) -> list[Callable[[], Any]]:
    """The package's entry points for this file."""
    if suffix in (".csv", ".tsv", ".parquet"):
        path = folder / f"table{suffix}"
        path.write_bytes(content)
        return [lambda: data.load(path, label="y"), lambda: data.load_inputs(path, (2,), features=("a", "b"))]
    if suffix == ".npz":
        path = folder / "arrays.npz"
        path.write_bytes(content)
        return [lambda: data.load(path), lambda: data.load_inputs(path, (3,))]
    if suffix == ".npy":
        (folder / "own").mkdir(exist_ok=True)
        path = folder / "own" / "x.npy"
        path.write_bytes(content)
        np.save(folder / "own" / "y.npy", arrays()["y"])
        return [lambda: data.load(folder / "own"), lambda: data.load_inputs(path, (3,))]
    for index in range(5):
        other = folder / "images" / "ab"[index % 2] / f"{index}.png"
        if not other.exists():
            other.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 7)).save(other)
    path = folder / "images" / "a" / f"odd{suffix}"
    path.write_bytes(content)
    return [lambda: data.load(folder / "images"), lambda: data.load_inputs(path, (3, 7, 9))]


def storm(kind: str, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Load one whole file and `count` damaged ones."""
    suffix, make = FILES[kind]
    content, random = make(), Random(f"{kind} {seed}")
    found: dict[str, Any] = {"tried": 0, "loaded": 0, "refused": 0, "other": []}
    for number in range(count + 1):
        is_text = "encoded" in kind and suffix != ".parquet"
        change = with_odd_cells if is_text and number % 2 else damaged
        tried = content if number == 0 else change(content, random)
        entries = encoded(folder, suffix, tried, content) if "encoded" in kind else load_all(folder, suffix, tried)
        for load in entries:
            found["tried"] += 1
            try:
                load()
                found["loaded"] += 1
            except BayesbinnError as error:
                found["refused"] += 1
                if number == 0 or "\n" in str(error) or len(str(error)) > 1000:
                    found["other"].append(f"{number}: {type(error).__name__}: {error!s:.300}")
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                found["other"].append(
                    f"{number}: {type(error).__name__}: {error!s:.200} at {where.name}:{where.lineno}"
                )
    for image in (folder / "images" / "a").glob("odd*"):
        image.unlink()
    return found


def main() -> None:
    count, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (HARD_LIMIT, HARD_LIMIT))
    results: dict[str, Any] = {}
    for kind in sys.argv[4:] or FILES:
        storm(kind, 0, seed, folder)  # what is imported on first use is not memory for data
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        results[kind] = storm(kind, count, seed, folder)
        results[kind]["bytes"] = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
