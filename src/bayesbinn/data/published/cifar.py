"""CIFAR-10 and CIFAR-100: 60,000 small color photographs each, in the publisher's binary version.

A record is one label byte (two for CIFAR-100: coarse, then fine), then 32×32 bytes of red, green and blue.
The pickled version is not supported: unpickling can run any code in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset
from bayesbinn.data.published.files import REMEDY, read_bytes, read_exactly
from bayesbinn.data.published.sources import Member, Source
from bayesbinn.errors import InvalidFile

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SOURCE10 = Source(
    name="cifar10",
    folders=("cifar-10-batches-bin",),
    members=(*(Member(f"data_batch_{i}.bin") for i in range(1, 6)), Member("test_batch.bin")),
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://cave.cs.toronto.edu/kriz/",
        "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/cifar10/",
        "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
    ),
    archive="cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
)

SOURCE100 = Source(
    name="cifar100",
    folders=("cifar-100-binary",),
    members=(Member("train.bin"), Member("test.bin"), Member("fine_label_names.txt")),
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/",
        "https://cave.cs.toronto.edu/kriz/",
        "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/cifar100/",
        "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
    ),
    archive="cifar-100-binary.tar.gz",
    archive_md5="03b5dce01913d631647c71ecec9e9cb8",
)


def load_cifar10(folder: Path) -> Dataset:
    """Load a folder with the six .bin files."""
    train = read_records([folder / f"data_batch_{i}.bin" for i in range(1, 6)], 10_000, (10,))
    test = read_records([folder / "test_batch.bin"], 10_000, (10,))
    return _dataset("cifar10", folder, train, test, CIFAR10_CLASSES, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def load_cifar100(folder: Path) -> Dataset:
    """Load a folder with train.bin, test.bin and the names of the fine classes."""
    names = tuple(read_bytes(folder / "fine_label_names.txt").decode("ascii", "replace").split())
    if len(names) != 100:
        raise InvalidFile(f"{folder / 'fine_label_names.txt'}: {len(names)} names instead of 100; {REMEDY}")
    train = read_records([folder / "train.bin"], 50_000, (20, 100))
    test = read_records([folder / "test.bin"], 10_000, (20, 100))
    return _dataset("cifar100", folder, train, test, names, (0.507, 0.487, 0.441), (0.267, 0.256, 0.276))


def read_records(paths: Sequence[Path], count: int, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Images and last labels of files with `count` records each; `classes` gives the range of each label byte."""
    images = np.empty((len(paths) * count, *SHAPE), np.uint8)
    labels = np.empty(len(paths) * count, np.int64)
    record = len(classes) + PIXELS
    for index, path in enumerate(paths):
        content = read_exactly(path, count * record, f"{count:,} records of {record:,} bytes")
        records = np.frombuffer(content, np.uint8).reshape(count, record)
        for column, allowed in enumerate(classes):
            bad = np.flatnonzero(records[:, column] >= allowed)
            if len(bad):
                label = records[bad[0], column]
                raise InvalidFile(f"{path}: label {label} in record {bad[0]} is not in 0 to {allowed - 1}; {REMEDY}")
        here = slice(index * count, (index + 1) * count)
        images[here] = records[:, len(classes) :].reshape(count, *SHAPE)
        labels[here] = records[:, len(classes) - 1]
    return torch.from_numpy(images), torch.from_numpy(labels)


def _dataset(
    name: str,
    folder: Path,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Dataset:
    return Dataset(
        name=name,
        train_inputs=train[0],
        train_targets=train[1],
        test_inputs=test[0],
        test_targets=test[1],
        task="classification",
        mean=torch.tensor(mean),
        std=torch.tensor(std),
        classes=classes,
        augment=True,
        source=str(folder),
    )
