"""The 1,797 handwritten digits (8×8) that ship inside scikit-learn: no download."""

from __future__ import annotations

import torch

from bayesbinn.data.arrays import Split


def load_digits(seed: int = 0, test_fraction: float = 0.2) -> Split:
    """A stratified split, standardised by the training part's mean and standard deviation.

    >>> split = load_digits()
    >>> split.train_inputs.shape, split.test_inputs.shape
    (torch.Size([1437, 64]), torch.Size([360, 64]))
    """
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    images, labels = datasets.load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=test_fraction, random_state=seed, stratify=labels)
    train_x, test_x = (torch.as_tensor(part, dtype=torch.float32) for part in parts[:2])
    train_y, test_y = (torch.as_tensor(part, dtype=torch.int64) for part in parts[2:])
    mean, std = train_x.mean(), train_x.std()
    return Split((train_x - mean) / std, train_y, (test_x - mean) / std, test_y)
