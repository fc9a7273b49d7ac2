"""The epoch with the best validation accuracy or RMSE, and the network as it was then."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.posterior import BernoulliPosterior, Weights


def best_epoch(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first epoch with the highest validation accuracy, as in the paper; for regression, the lowest RMSE.

    None if none was measured. NaN, from a network that diverged, is never the best.

    >>> best_epoch([{"epoch": 1, "validation_rmse": 3.0}, {"epoch": 2, "validation_rmse": 2.5}])["epoch"]
    2
    """
    for key, sign in (("validation_accuracy", -1), ("validation_rmse", 1)):
        scored = [row for row in rows if row.get(key) is not None and not math.isnan(row[key])]
        if scored:
            return min(scored, key=lambda row: sign * row[key])
    return None


@dataclass(frozen=True)
class BestNetwork:
    """A copy of a network and its posterior. Binary weights take one byte each."""

    epoch: int
    model: Weights
    natural: Weights | None
    """λ by parameter name; None for full precision."""

    @classmethod
    def of(cls, epoch: int, model: nn.Module, optimizer: BinaryOptimizer) -> BestNetwork:
        """The network as it is now."""
        natural = dict(optimizer.posterior().natural) if optimizer.binary else None
        binary = natural or {}
        state = {
            name: value.detach().to("cpu", torch.int8 if name in binary else value.dtype, copy=True)
            for name, value in model.state_dict().items()
        }
        return cls(epoch, state, natural and {name: value.cpu() for name, value in natural.items()})

    @property
    def posterior(self) -> BernoulliPosterior | None:
        return None if self.natural is None else BernoulliPosterior(self.natural)
