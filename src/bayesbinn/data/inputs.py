"""New inputs to predict on, read from a file and fitted to what a model was trained on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data.folders import SUFFIXES as IMAGES
from bayesbinn.data.folders import check_sizes, pixels_of, stack
from bayesbinn.data.npz import inputs_of, read_npz
from bayesbinn.data.tables import SUFFIXES as TABLES
from bayesbinn.data.tables import numbers_of, read_table
from bayesbinn.errors import InvalidFile, InvalidInput, nearest


def load_inputs(
    path: str | os.PathLike[str], shape: Sequence[int], *, features: Sequence[str] = ()
) -> tuple[Tensor, list[str]]:
    """Inputs [N, *shape] as stored, not yet normalised, and a name for each: its file, or its row from 0.

    From a table the columns `features` are taken, in that order, and others are passed over; without
    names, all columns. From a `.npz` file the array `x` is taken, or the only one. Images are one
    file, or a folder with all its subfolders.
    """
    where = Path(path).expanduser()
    kind = where.suffix.lower()
    if not where.exists():
        raise InvalidInput(f"{where}: no such file or folder")
    if where.is_dir() or kind in IMAGES:
        return _images(where, tuple(shape))
    if kind in TABLES:
        inputs = _columns(where, features)
    elif kind == ".npz":
        arrays = read_npz(where)
        name = "x" if "x" in arrays else next(iter(arrays), "")
        if name != "x" and len(arrays) != 1:
            raise InvalidFile(f"{where}: it holds {', '.join(sorted(arrays)) or 'no arrays'}: save the inputs as x")
        inputs = inputs_of(where, name, arrays[name])
    else:
        raise InvalidInput(f"{where}: {', '.join(TABLES)}, .npz, an image or a folder of images can be read")
    if inputs[0].numel() != prod(shape):
        raise InvalidInput(
            f"{where}: each example has the shape {tuple(inputs.shape[1:])}, but the model takes {tuple(shape)}"
        )
    return inputs.view(-1, *shape), [str(row) for row in range(len(inputs))]


def _columns(path: Path, features: Sequence[str]) -> Tensor:
    table = read_table(path, [])
    names = list(features) or table.column_names
    for name in names:
        if name not in table.column_names:
            raise InvalidInput(
                f"{path}: no column {name!r}, which the model was trained on.{nearest(name, table.column_names)}"
            )
    columns = [numbers_of(path, name, table.column(name)) for name in names]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def _images(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, list[str]]:
    if len(shape) != 3:
        raise InvalidInput(f"{path}: the model takes {shape}, not images: give a table or a .npz file")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGES)
    if not files:
        raise InvalidFile(f"{path}: no image in it ({' '.join(sorted(IMAGES))})")
    pixels = {file: pixels_of(file) for file in files}
    check_sizes(pixels)
    inputs = stack(list(pixels.values()), 1 if all(i.ndim == 2 for i in pixels.values()) else 3)
    if inputs.shape[2:] != shape[1:] or inputs.shape[1] > shape[0]:
        raise InvalidInput(
            f"{path}: images of {tuple(inputs.shape[1:])} (channels, height, width), but the model takes {shape}"
        )
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    return inputs.expand(-1, shape[0], -1, -1).contiguous(), names
