"""The epoch with the best validation accuracy, and the network as it was then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.posterior import BernoulliPosterior, Weights


def best_epoch(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first epoch with the highest validation accuracy, as the paper selects; None where none was measured."""
    scored = [row for row in rows if row.get("validation_accuracy") is not None]
    return max(scored, key=lambda row: row["validation_accuracy"]) if scored else None


@dataclass(frozen=True)
class BestNetwork:
    """A copy of a network and of its posterior. Binary weights take a byte each."""

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
