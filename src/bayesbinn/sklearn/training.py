"""Training of networks side by side on weighted rows, by any method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.methods.registry import get_method
from bayesbinn.sklearn.network import SideBySide
from bayesbinn.train.schedules import cosine

REAL_RATE = 1e-2
"""Adam's rate for the gains and shifts of BatchNorm."""
MAX_STATISTICS_ROWS = 10_000
"""Rows that the final statistics of BatchNorm are taken from."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Sample:
    """Encoded rows: inputs [rows, inputs], classes or standardised quantities, and weights with the mean 1."""

    x: Tensor
    y: Tensor
    weights: Tensor
    equal: bool
    """Whether all weights are the same."""

    @staticmethod
    def of(x: NDArray[np.float32], y: NDArray[Any], weights: NDArray[np.float64]) -> Sample:
        targets = torch.from_numpy(y.astype(np.int64 if y.dtype.kind in "iu" else np.float32))
        equal = not len(weights) or bool((weights == weights[0]).all())
        share = weights / weights.mean() if len(weights) else weights
        return Sample(torch.from_numpy(x), targets, torch.from_numpy(share.astype(np.float32)), equal)

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: Tensor) -> Sample:
        """Some of the rows; weights keep their scale, so that a batch of light rows counts little."""
        return Sample(self.x[index], self.y[index], self.weights[index], self.equal)

    def effective_size(self) -> float:
        """Kish's (Σw)²/Σw²: how many rows of equal weight these are worth, whatever the weights' unit."""
        return float(self.weights.sum() ** 2 / self.weights.square().sum())


@dataclass
class Trainer:
    """Networks, what trains them, and how far they are."""

    network: SideBySide
    method: str
    optimizer: BinaryOptimizer
    real: torch.optim.Optimizer
    rng: np.random.Generator
    losses: list[float] = field(default_factory=list)

    @staticmethod
    def new(
        sizes: tuple[int, ...],
        networks: int,
        copies: int,
        method: str,
        settings: dict[str, Any],
        size: float,
        seed: int,
    ) -> Trainer:
        """Networks at their start; `size` is N, the number of training rows."""
        generator = torch.Generator().manual_seed(seed % (1 << 62))
        network = SideBySide(sizes, networks, copies, generator, convolve=method == "lrnet")
        named = [(f"layer{layer}", weight) for layer, weight in enumerate(network.weights)]
        chosen = get_method(method)
        optimizer = chosen.create(named, train_set_size=max(1.0, size), seed=seed, **settings)  # type: ignore[arg-type]
        real = torch.optim.Adam(network.real_parameters(), lr=REAL_RATE, fused=True)
        return Trainer(network, method, optimizer, real, np.random.default_rng(seed))

    def epoch(self, sample: Sample, batch_size: int, rate: float) -> float:
        """Every row once, at `rate` times the initial rates; returns the mean loss."""
        for optimizer in (self.optimizer, self.real):
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * rate
        total = 0.0
        order = torch.from_numpy(self.rng.permutation(len(sample)))
        for index in order.tensor_split(math.ceil(len(sample) / batch_size)):
            total += self.step(sample.rows(index)) * len(index)
        self.losses.append(total / len(sample))
        return self.losses[-1]

    def step(self, batch: Sample) -> float:
        """One step on a batch."""
        share = None if batch.equal and len(batch) > 1 else batch.weights / batch.weights.sum()
        x = batch.x.t()
        self.real.zero_grad()
        with self.optimizer.sampled_params(train=True):
            loss = self._loss(self.network(x, share), batch)
            loss.backward()
        self.optimizer.step()
        self.real.step()
        return float(loss.detach()) / self.network.networks

    def _loss(self, outputs: Tensor, batch: Sample) -> Tensor:
        """The mean over rows, summed over networks: each is trained as if it were alone."""
        each = losses(outputs, batch.y)
        return (each.sum() if batch.equal else (each * batch.weights).sum()) / len(batch)

    def folded(self, sample: Sample) -> list[tuple[Tensor, Tensor]]:
        """BatchNorm with the statistics of the training rows, or of some of them, for the weights that predict."""
        if len(sample) > MAX_STATISTICS_ROWS:
            step = len(sample) / MAX_STATISTICS_ROWS
            sample = sample.rows((torch.arange(MAX_STATISTICS_ROWS) * step).long())
        return self.network.folded(sample.x.t(), sample.weights / sample.weights.sum())

    def outputs(self, sample: Sample, folded: list[tuple[Tensor, Tensor]]) -> Tensor:
        """[networks, rows, outputs]."""
        strips = [self.network.outputs(x.t(), folded) for x in sample.x.split(ROWS_AT_ONCE)]
        return torch.cat(strips, dim=1)

    def held_out_loss(self, training: Sample, held_out: Sample) -> float:
        """The mean loss on rows that are not trained on, by the networks as they would predict now."""
        outputs = self.outputs(held_out, self.folded(training)).transpose(1, 2)
        each = losses(outputs, held_out.y).mean(dim=0)
        return float((each * held_out.weights).sum() / held_out.weights.sum())

    def snapshot(self) -> list[Tensor]:
        """Copies of all parameters."""
        return [parameter.detach().clone() for parameter in self.network.parameters()]

    @torch.no_grad()
    def restore(self, snapshot: list[Tensor]) -> None:
        """Write a snapshot back."""
        for parameter, value in zip(self.network.parameters(), snapshot, strict=True):
            parameter.copy_(value)


def losses(outputs: Tensor, y: Tensor) -> Tensor:
    """[networks, rows] for outputs [networks, outputs, rows]: cross-entropy of classes, half the squared error else."""
    targets = y.expand(len(outputs), -1)
    if y.is_floating_point():
        return 0.5 * (outputs.squeeze(1) - targets).square()
    return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Budget:
    """How long to train."""

    epochs: int
    batch_size: int
    patience: int | None = None
    """Epochs without an improvement on the validation rows after which training stops; None: never."""


def train(
    trainer: Trainer,
    training: Sample,
    validation: Sample,
    budget: Budget,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> int:
    """Train with a cosine schedule; with a patience the networks of the best epoch are kept. Returns the epochs."""
    best, best_loss, best_epoch = None, math.inf, 0
    for epoch in range(1, budget.epochs + 1):
        loss = trainer.epoch(training, budget.batch_size, cosine(epoch, budget.epochs))
        on_epoch(epoch, loss)
        if budget.patience is None or not len(validation):
            continue
        found = trainer.held_out_loss(training, validation)
        if found < best_loss:
            best, best_loss, best_epoch = trainer.snapshot(), found, epoch
        elif epoch - best_epoch >= budget.patience:
            break
    if best is not None:
        trainer.restore(best)
    return epoch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """A fixed number of threads, so that the same rows give the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
