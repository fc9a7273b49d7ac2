"""The mean of λ over the last epochs: a network that depends less on the noise of the last steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesbinn.data import Part
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.config import Experiment, TrainingSettings
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.posterior import Weights
from bayesbinn.prediction.batchnorm import recalibrate

_BATCH = 1000


def check_averaging(experiment: Experiment, optimizer: BinaryOptimizer) -> None:
    """Reject averaging for a method without λ, or across the tasks of a stream."""
    epochs = experiment.training.average_epochs
    if epochs <= 1:
        return
    if experiment.continual is not None:
        raise InvalidInput(f"training.average_epochs={epochs}: a stream of tasks keeps its last λ; use 0")
    if not all("natural" in optimizer.state[p] for group in optimizer.param_groups for p in group["params"]):
        raise InvalidInput(
            f"training.average_epochs={epochs}: method {experiment.method.name!r} has no λ to average; use 0, or the "
            "methods bayesbinn and bimu"
        )


@dataclass
class NaturalAverage:
    """A sum of λ, by parameter name, over a number of epochs."""

    count: int = 0
    total: Weights = field(default_factory=dict)

    def after_epoch(
        self, epoch: int, training: TrainingSettings, model: nn.Module, optimizer: BinaryOptimizer, part: Part
    ) -> None:
        """Collect λ in the last epochs; after the final one, apply the mean."""
        if training.average_epochs <= 1 or epoch <= training.epochs - training.average_epochs:
            return
        self.add(optimizer)
        if epoch == training.epochs:
            self.write(model, optimizer, part.batches(_BATCH, drop_single=True))
            self.count, self.total = 0, {}

    def add(self, optimizer: BinaryOptimizer) -> None:
        """Add the current λ."""
        for name, natural in optimizer.posterior().natural.items():
            self.total[name] = self.total[name] + natural if name in self.total else natural.clone()
        self.count += 1

    def write(self, model: nn.Module, optimizer: BinaryOptimizer, batches: Iterable[Any]) -> None:
        """Set the optimizer to the mean λ, the model to its mode, and BatchNorm to the statistics of that mode."""
        state = optimizer.state_dict()
        for index, name in enumerate(_names(optimizer)):
            mean: Tensor = self.total[name] / self.count
            state["state"][index] = {**state["state"][index], "natural": mean}
        optimizer.load_state_dict(state)
        if any(isinstance(layer, _BatchNorm) for layer in model.modules()):
            with torch.random.fork_rng([]):
                recalibrate(model, None, batches)


def _names(optimizer: BinaryOptimizer) -> list[str]:
    """The names of the parameters in the order of a state_dict."""
    return list(optimizer.posterior().natural)
