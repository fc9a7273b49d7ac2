"""New inputs to predict on, read from a file and fitted to what a model was trained on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbinn.data.own.encoded import encode_table
from bayesbinn.data.own.images import SUFFIXES as IMAGES
from bayesbinn.data.own.images import is_image, read_images, stack
from bayesbinn.data.own.labels import some
from bayesbinn.data.own.npy import read_npy, read_npz
from bayesbinn.data.own.npz import inputs_of, to_predict_on
from bayesbinn.data.own.tables import SUFFIXES as TABLES
from bayesbinn.data.own.tables import is_number, numbers_of_columns, read_table
from bayesbinn.data.published.files import existing_path
from bayesbinn.errors import InvalidFile, InvalidInput, nearest
from bayesbinn.modelfile.encoding import TableEncoding

Array = NDArray[np.generic]


def load_inputs(
    path: str | os.PathLike[str],
    shape: Sequence[int],
    *,
    features: Sequence[str] = (),
    encoding: TableEncoding | None = None,
    notes: list[str] | None = None,
    label: str | None = None,
) -> tuple[Tensor, list[str]]:
    """Inputs [N, *shape] as stored, not yet normalized, and a name for each: its file, or its row counted from 0.

    A table provides the columns `features`, in that order, or all columns if there are no names; others are ignored.
    With an `encoding`, its columns become codes; columns that training did not have, except the `label`, are named in
    `notes`. A `.npz` file provides the array `x`, or its only array; a `.npy` file has just one.
    Images are one file, or a folder with all its subfolders.
    """
    where = existing_path(path)
    kind = where.suffix.lower()
    if where.is_dir() or kind in IMAGES:
        return _images(where, tuple(shape))
    if kind in TABLES:
        inputs = _columns(where, features) if encoding is None else encode_table(where, encoding, notes, label)
    elif kind == ".npz":
        ((name, array),) = read_npz(where, to_predict_on).items()
        inputs = inputs_of(where, name, array) if encoding is None else _encoded(where, array, encoding)
    elif kind == ".npy":
        array = read_npy(where)
        inputs = inputs_of(where, "the array", array) if encoding is None else _encoded(where, array, encoding)
    else:
        raise InvalidInput(f"{where}: {', '.join(TABLES)}, .npz, .npy, an image or a folder of images can be read")
    if not _fits(tuple(inputs.shape[1:]), tuple(shape)):
        raise InvalidInput(
            f"{where}: each example has the shape {tuple(inputs.shape[1:])}, but the model takes {tuple(shape)}"
        )
    return inputs.view(-1, *shape), [str(row) for row in range(len(inputs))]


def _encoded(path: Path, array: Array, encoding: TableEncoding) -> Tensor:
    if array.ndim == 0 or len(array) == 0:
        raise InvalidFile(f"{path}: it has no examples")
    return torch.from_numpy(encoding.encode_array(array, str(path)))


def _fits(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Axes of size 1 may be left out, or all axes flattened; other axes are never reordered by guessing."""
    if len(found) == 1 or len(wanted) == 1:
        return prod(found) == prod(wanted)
    return [size for size in found if size != 1] == [size for size in wanted if size != 1]


def _columns(path: Path, features: Sequence[str]) -> Tensor:
    """The columns that the model was trained on, by name; if the model has no names, all columns in order."""
    table = read_table(path, [])
    there: list[str] = table.column_names
    if not features and _are_cells(there):
        raise InvalidInput(
            f"{path}: its first line, {some(there)}, holds numbers: is it a row? A header line must name the columns"
        )
    known = set(there)
    missing = [name for name in features if name not in known]
    if missing:
        wanted = set(features)
        others = [name for name in there if name not in wanted]
        more = f" ({len(missing)} are missing: {some(missing)})" if len(missing) > 1 else ""
        raise InvalidInput(
            f"{path}: no column {missing[0]!r}, which the model was trained on{more}.{nearest(missing[0], others)}"
        )
    return numbers_of_columns(path, table, list(features) or there)


def _are_cells(names: list[str]) -> bool:
    """Whether a header is all numbers, except numbers that count the columns, as pandas writes them."""
    counted = [str(i) for i in range(len(names) + 1)]
    return names not in (counted[:-1], counted[1:]) and all(map(is_number, names))


def _images(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, list[str]]:
    if len(shape) != 3:
        raise InvalidInput(f"{path}: the model takes {shape}, not images: give a table or a .npz file")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if is_image(p))
    if not files:
        raise InvalidFile(f"{path}: no image in it ({' '.join(sorted(IMAGES))})")
    pixels = read_images(files)
    inputs = stack(list(pixels.values()), 1 if all(i.ndim == 2 for i in pixels.values()) else 3)
    if inputs.shape[2:] != shape[1:] or inputs.shape[1] > shape[0]:
        raise InvalidInput(
            f"{path}: images of {tuple(inputs.shape[1:])} (channels, height, width), but the model takes {shape}"
        )
    names = [os.fspath(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    names = [name.encode("utf-8", "backslashreplace").decode() for name in names]  # names may have any bytes
    return inputs.expand(-1, shape[0], -1, -1).contiguous(), names
