"""MNIST: 70,000 handwritten digits, 28×28, in its publishers' IDX files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset
from bayesbinn.data.published.files import REMEDY, existing, read_exactly
from bayesbinn.data.published.sources import Member, Source
from bayesbinn.errors import InvalidFile

SIDE = 28
TRAIN, TEST = 60_000, 10_000

SOURCE = Source(
    name="mnist",
    folders=("mnist", "MNIST/raw"),
    members=(
        Member("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
        Member("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
        Member("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
        Member("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
)


def load_mnist(folder: Path) -> Dataset:
    """Load a folder with the four files, gzipped or not."""
    parts = []
    for prefix, count in (("train", TRAIN), ("t10k", TEST)):
        parts.append(read_idx(folder, f"{prefix}-images-idx3-ubyte", (count, SIDE, SIDE))[:, None])
        parts.append(_labels(folder, f"{prefix}-labels-idx1-ubyte", count))
    return Dataset(
        name="mnist",
        train_inputs=parts[0],
        train_targets=parts[1],
        test_inputs=parts[2],
        test_targets=parts[3],
        task="classification",
        mean=torch.tensor([0.1307]),
        std=torch.tensor([0.3081]),
        classes=tuple("0123456789"),
        source=str(folder),
    )


def read_idx(folder: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    """Read a uint8 tensor of the expected shape.

    IDX: two zero bytes, the type (8: unsigned byte), the number of axes, each length as a big-endian
    uint32, then the data.
    """
    path = existing(folder, name)
    if path is None:
        raise InvalidFile(f"{folder / name}: no such file, with or without .gz; {REMEDY}")
    header = struct.Struct(f">HBB{len(shape)}I")
    size = header.size + int(np.prod(shape))
    content = read_exactly(path, size, f"a header and {'×'.join(map(str, shape))} bytes")
    zero, kind, axes, *lengths = header.unpack_from(content)
    if (zero, kind, axes) != (0, 8, len(shape)):
        raise InvalidFile(
            f"{path}: the file starts with {content[:4].hex(' ')}, but this kind of IDX file starts with "
            f"00 00 08 {len(shape):02x}; {REMEDY}"
        )
    if tuple(lengths) != shape:
        raise InvalidFile(f"{path}: the header says {tuple(lengths)}, but MNIST has {shape}; {REMEDY}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header.size).reshape(shape).copy())


def _labels(folder: Path, name: str, count: int) -> Tensor:
    labels = read_idx(folder, name, (count,)).long()
    if int(labels.max()) > 9:
        row = int((labels > 9).nonzero()[0])
        raise InvalidFile(
            f"{existing(folder, name)}: label {int(labels[row])} of example {row} is not in 0 to 9; {REMEDY}"
        )
    return labels
