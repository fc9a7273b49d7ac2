"""Arrays in memory: a user's own as NumPy arrays, and a data set as inputs and targets for training and testing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayesbinn.errors import InvalidInput


@dataclass(frozen=True)
class Split:
    """Training and test data; the first axis counts examples."""

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


def numpy_of(values: Any, what: str) -> npt.NDArray[Any]:
    """Convert to a NumPy array. bfloat16, which NumPy lacks, is widened; masked values are rejected."""
    if np.ma.is_masked(values):
        count = int(np.ma.getmaskarray(values).sum())
        raise InvalidInput(f"{what} has {count} masked values; fill them with filled() or remove the examples")
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    return np.asarray(values)
