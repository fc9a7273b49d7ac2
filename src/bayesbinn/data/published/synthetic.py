"""The two small data sets in the paper's figures: Snelson's curve (regression) and two moons (two classes)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesbinn.data.dataset import Dataset
from bayesbinn.data.normalise import statistics
from bayesbinn.data.published.files import REMEDY, existing, read_bytes
from bayesbinn.data.published.sources import Member, Source
from bayesbinn.environment import need
from bayesbinn.errors import InvalidFile

SNELSON = Source(
    name="snelson",
    folders=("snelson",),
    members=(
        Member("train_inputs", "cb5e95dc6f7a180f97e0fd0ab6a39279"),
        Member("train_outputs", "a4bc7a2d7b8f2f9fd32cbf04e59bb6b0"),
        Member("test_inputs", "710208b49e72c72c21ec07138463e2fb"),
    ),
    mirrors=("https://www.gatsby.ucl.ac.uk/~snelson/", "http://www.gatsby.ucl.ac.uk/~snelson/"),
    archive="SPGP_dist.zip",
    archive_folder="SPGP_dist",
)


def load_snelson(folder: Path) -> Dataset:
    """200 points of a function of one input, and 301 inputs without targets to predict on."""
    inputs = _column(folder, "train_inputs", 200)
    outputs = _column(folder, "train_outputs", 200)
    mean, std = statistics(inputs)
    target_mean, target_std = statistics(outputs)
    return Dataset(
        name="snelson",
        train_inputs=inputs,
        train_targets=outputs,
        test_inputs=_column(folder, "test_inputs", 301),
        test_targets=None,
        task="regression",
        mean=mean,
        std=std,
        target_mean=float(target_mean),
        target_std=float(target_std),
        features=("x",),
        source=str(folder),
    )


def load_moons() -> Dataset:
    """The paper's 200 points, plus 50 test points from another seed (the paper reports no test accuracy).

    >>> load_moons().train_inputs.shape
    torch.Size([200, 2])
    """
    make = need("sklearn.datasets", "making two moons").make_moons
    (train_x, train_y), (test_x, test_y) = make(200, noise=0.1, random_state=0), make(50, noise=0.1, random_state=1)
    inputs = torch.from_numpy(train_x).float()
    mean, std = statistics(inputs)
    return Dataset(
        name="moons",
        train_inputs=inputs,
        train_targets=torch.from_numpy(train_y).long(),
        test_inputs=torch.from_numpy(test_x).float(),
        test_targets=torch.from_numpy(test_y).long(),
        task="classification",
        mean=mean,
        std=std,
        classes=("upper", "lower"),
        features=("x", "y"),
        source="scikit-learn",
    )


def _column(folder: Path, name: str, count: int) -> Tensor:
    """Read a text file of `count` numbers as float32 [count, 1]."""
    path = existing(folder, name)
    if path is None:
        raise InvalidFile(f"{folder / name}: no such file; {REMEDY}")
    words = read_bytes(path).split()
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError as error:
        raise InvalidFile(f"{path}: {error}; expected one number per line; {REMEDY}") from error
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise InvalidFile(f"{path}: {len(numbers)} numbers; expected {count} finite ones; {REMEDY}")
    return torch.from_numpy(numbers).float().view(-1, 1)
