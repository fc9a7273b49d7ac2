"""NumPy archives: a user's own arrays, in one piece or already divided into training and test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset, Task
from bayesbinn.data.own.build import Examples, build
from bayesbinn.data.own.labels import Values, some
from bayesbinn.data.own.npy import read_npy_folder, read_npz
from bayesbinn.errors import InvalidFile

WHOLE = ("x", "y")
DIVIDED = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_x", "train_y", "test_x", "test_y"),
    ("train_inputs", "train_targets", "test_inputs", "test_targets"),
)


def load_npz(path: Path, task: Task | None = None) -> Dataset:
    """Arrays `x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`: of an archive, or a folder of .npy files.

    uint8 arrays of three or four axes are images, [N, H, W], [N, C, H, W] or [N, H, W, C].
    """
    arrays = (read_npy_folder if path.is_dir() else read_npz)(path, _to_train_on)
    names = list(arrays)
    parts = (
        Examples(inputs_of(path, inputs, arrays[inputs]), _labels(arrays[labels]))
        for inputs, labels in zip(names[::2], names[1::2], strict=True)
    )
    return build(path, *parts, task=task)


def _to_train_on(path: Path, there: Sequence[str]) -> Sequence[str]:
    """Inputs and labels in turn."""
    for names in (*DIVIDED, WHOLE):
        if set(names) <= set(there):
            return names
    raise InvalidFile(
        f"{path}: it holds {some(there) or 'no arrays'}: "
        "save x and y, or x_train, y_train, x_test and y_test, with numpy.savez"
    )


def to_predict_on(path: Path, there: Sequence[str]) -> Sequence[str]:
    """`x`, or the only array."""
    if "x" in there:
        return ["x"]
    if len(there) == 1:
        return there
    raise InvalidFile(f"{path}: it holds {some(there) or 'no arrays'}: save the inputs as x")


def _labels(array: Values) -> Values:
    """A column of labels as a row; a single label, which has no axis, as one of length 1."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else np.atleast_1d(array)


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
