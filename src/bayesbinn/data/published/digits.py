"""The 1,797 handwritten digits (8×8) that ship with scikit-learn, so no download is needed."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesbinn.data.arrays import Split
from bayesbinn.data.dataset import Dataset
from bayesbinn.environment import need


def load_digits(seed: int = 0, test_fraction: float = 0.2) -> Split:
    """A stratified split, standardized by the training part's mean and standard deviation.

    >>> split = load_digits()
    >>> split.train_inputs.shape, split.test_inputs.shape
    (torch.Size([1437, 64]), torch.Size([360, 64]))
    """
    train_x, test_x, train_y, test_y = _divide(seed, test_fraction)
    mean, std = train_x.mean(), train_x.std()
    return Split((train_x - mean) / std, train_y, (test_x - mean) / std, test_y)


def digits() -> Dataset:
    """The same as a `Dataset`: one row of 64 gray values (0 to 16) per image."""
    train_x, test_x, train_y, test_y = _divide(0, 0.2)
    return Dataset(
        name="digits",
        train_inputs=train_x,
        train_targets=train_y,
        test_inputs=test_x,
        test_targets=test_y,
        task="classification",
        mean=train_x.mean().view(1),
        std=train_x.std().view(1),
        classes=tuple("0123456789"),
        source="scikit-learn",
        notes=("test part: a stratified fifth, held out with a fixed seed",),
    )


def _divide(seed: int, test_fraction: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = need("sklearn.datasets", "loading digits").load_digits(return_X_y=True)
    divide = need("sklearn.model_selection", "loading digits").train_test_split
    parts = divide(images, labels, test_size=test_fraction, random_state=seed, stratify=labels)
    train_x, test_x = (torch.as_tensor(part, dtype=torch.float32) for part in parts[:2])
    train_y, test_y = (torch.as_tensor(part, dtype=torch.int64) for part in parts[2:])
    return train_x, test_x, train_y, test_y
