"""What a full run of an experiment takes: floating-point operations, bytes, and hours, here and on a GPU on paper."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch

from bayesbinn import models
from bayesbinn.experiments.config import load_experiment
from bayesbinn.packing.sizes import summary

GPU = "an NVIDIA A100"
GPU_FLOPS = 19.5e12
"""Peak in float32 without tensor cores."""
GPU_SHARE = 0.3
"""Of the peak that networks of this size reach; a guess."""
GPU_BYTES = 1.555e12
"""Per second, of its 40 GB model."""
STEP_BYTES = 24
"""Per weight and step that the optimizer moves at least: λ and the weight read and written, the gradient written and
read, four bytes each."""

_SETS = {
    "mnist": (54_000, (1, 28, 28), 10),
    "cifar10": (45_000, (3, 32, 32), 10),
    "cifar100": (45_000, (3, 32, 32), 100),
}
"""Training examples without the validation part, shape of an example, classes."""


@dataclass(frozen=True)
class Cost:
    """Of one full run: one seed, all epochs of the preset."""

    epochs: int
    weights: int
    flops: float
    """Of forward and backward passes: 6 for each multiply-add of the forward pass."""
    bytes_moved: float
    """By the optimizer, see `STEP_BYTES`."""

    @property
    def gpu_seconds(self) -> float:
        """On paper: both terms, one after the other."""
        return self.flops / (GPU_SHARE * GPU_FLOPS) + self.bytes_moved / GPU_BYTES


def cost_of(preset: str) -> Cost:
    """Of BayesBiNN with a preset on an image set.

    >>> cost_of("mnist").weights
    10014720
    """
    experiment = load_experiment(preset, method="bayesbinn")
    examples, shape, classes = _SETS[experiment.data.name]
    if experiment.data.validation == 0:
        examples = {"mnist": 60_000}.get(experiment.data.name, 50_000)
    with torch.random.fork_rng([]):
        model = getattr(models, experiment.model.name)(classes)
    total = summary(model, example_input=torch.zeros(2, *shape)).total
    assert total.macs is not None
    epochs, batch = experiment.training.epochs, experiment.training.batch_size
    steps = epochs * ceil(examples / batch)
    return Cost(epochs, total.binary, 6.0 * total.macs * examples * epochs, float(STEP_BYTES * total.binary * steps))
