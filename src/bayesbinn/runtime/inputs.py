"""Inputs for a model file: arrays and tables, read with only NumPy and the standard library."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidFile, InvalidInput, nearest
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.graph import Graph
from bayesbinn.runtime.tables import check_names, encoded_strips

SUFFIXES = (".npy", ".npz", ".csv", ".tsv")


# A number as the reader of training data defines it: ASCII digits, no underscores. NaN and infinity are rejected later.
_NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE)


def load_inputs(
    path: Path, graph: Graph, notes: list[str], encoding: TableEncoding | None = None
) -> NDArray[np.float32]:
    """[batch, *input_shape] from a file: a .npy array, the array `x` (or the only one) of a .npz, or a table.

    A table has a row for each example. If its first line names the columns, those that the model was
    trained on are selected by name. With an `encoding` a table may hold whatever the training table held; an array
    has its columns in the model's order, or the codes. Any assumption made is added to `notes`.
    """
    try:
        is_file, is_folder, there = path.is_file(), path.is_dir(), path.exists()
    except OSError as error:  # a name that is too long
        raise InvalidInput(f"{path}: there is no such file ({error.strerror or error})") from None
    if is_folder:
        raise InvalidInput(
            f"{path}: a folder; one file is needed, {', '.join(SUFFIXES)}. "
            "`bayesbinn predict RUN FOLDER` reads folders of images"
        )
    if not is_file:
        raise InvalidInput(f"{path}: {'not an ordinary file' if there else 'there is no such file'}")
    kind = path.suffix.lower()
    if kind in (".npy", ".npz"):
        array = _array(path)
        if encoding is not None:
            _need_rows(path, array)
            return encoding.encode_array(array, str(path))
    elif kind in (".csv", ".tsv") and encoding is not None:
        return np.concatenate(list(encoded_strips(path, encoding, notes)))
    elif kind in (".csv", ".tsv"):
        array = _table(path, graph.features, "\t" if kind == ".tsv" else ",", notes)
    else:
        raise InvalidInput(f"{path}: {', '.join(SUFFIXES)} files can be read")
    if array.dtype.kind not in "biuf":
        raise InvalidFile(f"{path}: an array of {array.dtype}; numbers are needed")
    _need_rows(path, array)
    array = _in_shape(path, array, graph.input_shape)
    with np.errstate(over="ignore"):  # checked below
        inputs = array.astype(np.float32).reshape(-1, *graph.input_shape)
    lost = ~np.isfinite(inputs).reshape(len(inputs), -1).all(axis=1)
    if lost.any():
        raise InvalidFile(f"{path}: example {lost.argmax()} has NaN, infinity or a number too large for float32")
    return inputs


def input_strips(
    path: Path, graph: Graph, notes: list[str], encoding: TableEncoding | None = None
) -> Iterator[NDArray[np.float32]]:
    """The same, some rows at a time if the file is a table to be encoded: a million rows of codes need not fit."""
    if encoding is not None and path.suffix.lower() in (".csv", ".tsv") and os.path.isfile(path):
        yield from encoded_strips(path, encoding, notes)
    else:
        yield load_inputs(path, graph, notes, encoding)


def _need_rows(path: Path, array: NDArray[Any]) -> None:
    if array.ndim == 0 or len(array) == 0:
        raise InvalidFile(f"{path}: it has no examples")


def are_pixels(inputs: NDArray[np.float32]) -> bool:
    """Whether all are whole numbers from 0 to 255."""
    return bool(((inputs >= 0) & (inputs <= 255) & (inputs == np.rint(inputs))).all())


def _in_shape(path: Path, array: NDArray[Any], wanted: tuple[int, ...]) -> NDArray[Any]:
    """The array with its axes in the model's order; `bayesbinn predict` accepts and rejects the same shapes."""
    found = array.shape[1:]
    if found == wanted:
        return array
    last = _channels_last(found, wanted)
    if last and array.dtype == np.uint8:
        return array.transpose(0, 3, 1, 2)
    if not found or not _fits(found, wanted):
        advice = "; if its channels come last, save it with transpose(0, 3, 1, 2)" if last else ""
        raise InvalidInput(f"{path}: each example has the shape {found}, but the model takes {wanted}{advice}")
    return array


def _channels_last(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether these can only be images [H, W, C] for a model that takes [C, H, W]."""
    return len(found) == 3 and found[0] not in (1, 3) and found[2] in (1, 3) and (found[2], *found[:2]) == wanted


def _fits(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Axes of size 1 may be missing, or all axes may be flattened; we never guess another order of the axes."""
    if len(found) == 1:
        return found[0] == prod(wanted)
    return [size for size in found if size != 1] == [size for size in wanted if size != 1]


def _array(path: Path) -> NDArray[Any]:
    try:
        # If NumPy opens a file itself and finds it damaged, it leaves it open.
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
        raise InvalidFile(f"{path}: not a valid NumPy file ({' '.join(str(error).split())[:200]})") from None


def _table(path: Path, features: tuple[str, ...], separator: str, notes: list[str]) -> NDArray[Any]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator)
            lines = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidFile(f"{path}: not a text table ({error})") from None
    if not lines:
        raise InvalidFile(f"{path}: it has no examples")
    first = [cell.strip() for cell in lines[0][1]]
    header = first if _names_columns(first, features) else None
    body = lines if header is None else lines[1:]
    columns = _unnamed_columns(path, first, features, notes) if header is None else _columns(path, header, features)
    numbers = np.empty((len(body), len(columns)), np.float64)
    for i, (line, row) in enumerate(body):
        if len(row) != len(first):
            raise InvalidFile(f"{path}: line {line} has {len(row)} columns, the first line has {len(first)}")
        for j, column in enumerate(columns):
            cell = row[column].strip()
            if not _is_number(cell):
                name = header[column] if header else f"{column + 1}"
                raise InvalidFile(f"{path}: line {line}, column {name}: {row[column]!r} is not a number")
            numbers[i, j] = float(cell)
    return numbers


def _names_columns(first: list[str], features: tuple[str, ...]) -> bool:
    """Whether a table's first line is a header: columns may be named by numbers, as pandas does."""
    if not all(map(_is_number, first)):
        return True
    if features:
        return set(features) <= set(first)
    counted = [str(i) for i in range(len(first) + 1)]
    return first in (counted[:-1], counted[1:])


def _unnamed_columns(path: Path, first: list[str], features: tuple[str, ...], notes: list[str]) -> list[int]:
    """All columns of a table without a header, in order."""
    if features and len(first) != len(features):
        raise InvalidInput(
            f"{path}: its first line has {len(first)} numbers and does not name the model's {len(features)} columns; "
            "add a header line"
        )
    order = "; columns are matched to the model's by position" if features else ""
    notes.append(f"{path}: its first line has only numbers, so it is read as data{order}")
    return list(range(len(first)))


def _columns(path: Path, header: list[str], features: tuple[str, ...]) -> list[int]:
    """The columns that the model was trained on, by name; if it has no names, all except row numbers."""
    check_names(path, header)
    for name in features:
        if name not in header:
            raise InvalidInput(f"{path}: no column {name!r}, which the model was trained on.{nearest(name, header)}")
    if features:
        return [header.index(name) for name in features]
    return [column for column, name in enumerate(header) if name]


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None
