"""Inputs for a model file: arrays and tables, read with NumPy and the standard library alone."""

from __future__ import annotations

import csv
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidFile, InvalidInput, nearest
from bayesbinn.graph import Graph

SUFFIXES = (".npy", ".npz", ".csv", ".tsv")


def load_inputs(path: Path, graph: Graph) -> NDArray[np.float32]:
    """[batch, *input_shape] from a file: a .npy array, the array `x` (or the only one) of a .npz, or a table.

    A table has a row for each example. If its first row is no numbers, it names the columns; the
    columns that the model was trained on are then taken by name.
    """
    if path.is_dir():
        raise InvalidInput(
            f"{path}: a folder; one file is needed, {', '.join(SUFFIXES)}. "
            "`bayesbinn predict RUN FOLDER` reads folders of images"
        )
    if not path.is_file():
        raise InvalidInput(f"{path}: {'not an ordinary file' if path.exists() else 'there is no such file'}")
    kind = path.suffix.lower()
    if kind in (".npy", ".npz"):
        array = _array(path)
    elif kind in (".csv", ".tsv"):
        array = _table(path, graph.features, "\t" if kind == ".tsv" else ",")
    else:
        raise InvalidInput(f"{path}: {', '.join(SUFFIXES)} files can be read")
    if array.dtype.kind not in "biuf":
        raise InvalidFile(f"{path}: an array of {array.dtype}; numbers are needed")
    if array.ndim == 0 or len(array) == 0:
        raise InvalidFile(f"{path}: no example in it")
    size = prod(graph.input_shape)
    if prod(array.shape[1:]) != size:
        raise InvalidInput(
            f"{path}: each example has the shape {array.shape[1:]}, but the model takes {graph.input_shape}"
        )
    with np.errstate(over="ignore"):  # found below
        inputs = array.astype(np.float32).reshape(-1, *graph.input_shape)
    lost = ~np.isfinite(inputs).reshape(len(inputs), -1).all(axis=1)
    if lost.any():
        raise InvalidFile(f"{path}: example {lost.argmax()} holds NaN, infinity or a number beyond float32")
    return inputs


def _array(path: Path) -> NDArray[Any]:
    try:
        # NumPy leaves a file open that it opened and found damaged.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            names = loaded.files
            name = "x" if "x" in names else names[0] if len(names) == 1 else ""
            if not name:
                raise InvalidFile(f"{path}: it holds {', '.join(names) or 'no arrays'}: save the inputs as x")
            array: NDArray[Any] = loaded[name]
            return array
    except InvalidFile:
        raise
    except Exception as error:  # damaged files make NumPy raise anything: zlib.error, TokenError, MemoryError, ...
        raise InvalidFile(f"{path}: not a whole NumPy file ({' '.join(str(error).split())[:200]})") from None


def _table(path: Path, features: tuple[str, ...], separator: str) -> NDArray[Any]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator)
            lines = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: not a table of text ({error})") from None
    if not lines:
        raise InvalidFile(f"{path}: no example in it")
    first = lines[0][1]
    header = None if all(_is_number(cell) for cell in first) else [cell.strip() for cell in first]
    body = lines if header is None else lines[1:]
    columns = _columns(path, header, features, len(first))
    numbers = np.empty((len(body), len(columns)), np.float64)
    for i, (line, row) in enumerate(body):
        if len(row) != len(first):
            raise InvalidFile(f"{path}: line {line} has {len(row)} columns, the first {len(first)}")
        for j, column in enumerate(columns):
            if not _is_number(row[column]):
                name = header[column] if header else f"{column + 1}"
                raise InvalidFile(f"{path}: line {line}, column {name}: {row[column]!r} is no number")
            numbers[i, j] = float(row[column])
    return numbers


def _columns(path: Path, header: list[str] | None, features: tuple[str, ...], count: int) -> list[int]:
    if header is None or not features:
        return list(range(count))
    for name in features:
        if name not in header:
            raise InvalidInput(f"{path}: no column {name!r}, which the model was trained on.{nearest(name, header)}")
    return [header.index(name) for name in features]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
