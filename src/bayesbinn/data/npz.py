"""NumPy archives: a user's own arrays, in one piece or already divided into training and test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset, Task
from bayesbinn.data.labels import Values
from bayesbinn.data.own import Examples, build
from bayesbinn.errors import InvalidFile

WHOLE = ("x", "y")
DIVIDED = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_x", "train_y", "test_x", "test_y"),
    ("train_inputs", "train_targets", "test_inputs", "test_targets"),
)


def load_npz(path: Path, task: Task | None = None) -> Dataset:
    """Arrays `x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`.

    uint8 arrays of three or four axes are images, [N, H, W], [N, C, H, W] or [N, H, W, C].
    """
    arrays = read_npz(path)
    for names in DIVIDED:
        if arrays.keys() >= set(names):
            x_train, y_train, x_test, y_test = (arrays[name] for name in names)
            train = Examples(inputs_of(path, names[0], x_train), _labels(y_train))
            return build(path, train, Examples(inputs_of(path, names[2], x_test), _labels(y_test)), task=task)
    if arrays.keys() >= set(WHOLE):
        return build(path, Examples(inputs_of(path, "x", arrays["x"]), _labels(arrays["y"])), task=task)
    raise InvalidFile(
        f"{path}: it holds {', '.join(sorted(arrays)) or 'no arrays'}: "
        "save x and y, or x_train, y_train, x_test and y_test, with numpy.savez"
    )


def read_npz(path: Path) -> dict[str, Values]:
    """All arrays, by their names in small letters."""
    try:
        # NumPy leaves a file open that it cannot read, so it is opened here.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name.lower(): archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidFile(f"{path}: not a readable .npz file: {reason}: write it again with numpy.savez") from error


def _labels(array: Values) -> Values:
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def inputs_of(path: Path, name: str, array: Values) -> Tensor:
    """uint8 images as they are, everything else as finite float32."""
    if array.dtype.kind not in "biuf" or array.ndim < 2 or array.size == 0:
        raise InvalidFile(
            f"{path}: {name} has type {array.dtype} and shape {array.shape}: "
            "numbers with one row for each example are needed, [N, columns] or images"
        )
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return _channels_first(path, name, array)
    with np.errstate(over="ignore"):  # an overflow becomes infinite
        numbers = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    if not bool(torch.isfinite(numbers).all()):
        row = int((~torch.isfinite(numbers.flatten(1))).any(1).nonzero()[0])
        raise InvalidFile(f"{path}: {name}[{row}] has a NaN or infinite value: fill it or remove the example")
    return numbers


def _channels_first(path: Path, name: str, array: Values) -> Tensor:
    """uint8 images as [N, C, H, W], whichever axis holds the 1 or 3 channels."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in (1, 3):
        if array.shape[3] not in (1, 3):
            raise InvalidFile(
                f"{path}: {name} has shape {array.shape}: images need 1 or 3 channels, [N, C, H, W] or [N, H, W, C]"
            )
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(array))
