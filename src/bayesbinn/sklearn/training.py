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

from bayesbinn.binary import split_parameters
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.methods.registry import get_method
from bayesbinn.models.side_by_side import SideBySide, each_alone
from bayesbinn.train.schedules import cosine

REAL_RATE = 1e-2
"""Adam's rate for the gains and shifts of BatchNorm."""
MAX_STATISTICS_ROWS = 10_000
"""The most rows from which BatchNorm's final statistics are computed."""
ROWS_AT_ONCE = 4096
FOLDS = 4
"""How many folds there are if extra networks leave out one each."""


@dataclass(frozen=True)
class Sample:
    """Encoded rows: inputs [rows, inputs], classes or standardized quantities, and weights whose mean is 1."""

    x: Tensor
    y: Tensor
    weights: Tensor
    equal: bool
    """Whether all weights are the same."""
    fold: Tensor | None = None
    """The fold of each row, for networks that learn from all other folds; None if there are no such networks."""

    @staticmethod
    def of(
        x: NDArray[np.float32],
        y: NDArray[Any],
        weights: NDArray[np.float64],
        fold: NDArray[np.int64] | None = None,
    ) -> Sample:
        targets = torch.from_numpy(y.astype(np.int64 if y.dtype.kind in "iu" else np.float32))
        equal = not len(weights) or bool((weights == weights[0]).all())
        share = weights / weights.mean() if len(weights) else weights
        folds = None if fold is None else torch.from_numpy(fold)
        return Sample(torch.from_numpy(x), targets, torch.from_numpy(share.astype(np.float32)), equal, folds)

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: Tensor) -> Sample:
        """Some of the rows; weights keep their scale, so that a batch of light rows counts little."""
        fold = None if self.fold is None else self.fold[index]
        return Sample(self.x[index], self.y[index], self.weights[index], self.equal, fold)

    def effective_size(self) -> float:
        """Kish's (Σw)²/Σw²: how many rows of equal weight these are worth, whatever the weights' unit."""
        return float(self.weights.sum() ** 2 / self.weights.square().sum())


@dataclass
class Trainer:
    """Networks, their optimizers, and their progress.

    After the `kept` networks, which predict, there may be one for each fold of the rows. It does not learn from its
    fold, so its outputs there are those for new rows, and calibration needs no separate rows.
    """

    network: SideBySide
    kept: int
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
        folds: int = 0,
    ) -> Trainer:
        """Untrained networks; `size` is N, the number of training rows."""
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            network = SideBySide(sizes, networks + folds, copies)
        binary, real_ones = split_parameters(network)
        chosen = get_method(method)
        optimizer = chosen.create(binary, train_set_size=max(1.0, size), seed=seed, **settings)  # type: ignore[arg-type]
        real = torch.optim.Adam([parameter for _, parameter in real_ones], lr=REAL_RATE, fused=True)
        return Trainer(network, networks, method, optimizer, real, np.random.default_rng(seed))

    def epoch(self, sample: Sample, batch_size: int, rate: float) -> float:
        """Train on every row once, at `rate` times the initial rates; returns the mean loss."""
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
        """Take one step on a batch."""
        share = None if batch.equal and len(batch) > 1 else batch.weights / batch.weights.sum()
        self.real.zero_grad()
        with self.optimizer.sampled_params(train=True):
            loss = self._loss(self.network(batch.x, share), batch)
            loss.backward()
        self.optimizer.step()
        self.real.step()
        folds = self.network.networks - self.kept
        learning = self.network.networks if batch.fold is None else self.kept + folds - 1
        return float(loss.detach()) / learning

    def _loss(self, outputs: Tensor, batch: Sample) -> Tensor:
        """The mean over rows, summed over networks: each is trained as if it were alone."""
        each = losses(outputs, batch.y)
        if batch.fold is not None:
            places = torch.arange(-self.kept, self.network.networks - self.kept)
            each = each * (batch.fold.unsqueeze(1) != places)
        return (each.sum() if batch.equal else (each * batch.weights.unsqueeze(1)).sum()) / len(batch)

    def settle(self, sample: Sample) -> None:
        """Set BatchNorm's statistics to those of the training rows (or some of them), for the weights that predict."""
        if len(sample) > MAX_STATISTICS_ROWS:
            step = len(sample) / MAX_STATISTICS_ROWS
            sample = sample.rows((torch.arange(MAX_STATISTICS_ROWS) * step).long())
        self.network.settle(sample.x, sample.weights / sample.weights.sum())

    def outputs(self, sample: Sample) -> Tensor:
        """[networks, rows, outputs] of the networks that predict; call `settle` first."""
        return self._all_outputs(sample)[: self.kept]

    def outputs_for_new_rows(self, sample: Sample) -> Tensor:
        """[1, rows, outputs]: each row's output by the network that did not learn its fold; call `settle` first."""
        assert sample.fold is not None
        return self._all_outputs(sample)[self.kept + sample.fold, torch.arange(len(sample))].unsqueeze(0)

    def _all_outputs(self, sample: Sample) -> Tensor:
        return torch.cat([self.network.outputs(x) for x in sample.x.split(ROWS_AT_ONCE)], dim=1)

    def held_out_loss(self, training: Sample, held_out: Sample) -> float:
        """The mean loss on held-out rows, with the networks as they would predict now."""
        self.settle(training)
        each = losses(self.outputs(held_out).transpose(0, 1), held_out.y).mean(dim=1)
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
    """[rows, networks] for outputs [rows, networks, outputs]: cross-entropy for classes, otherwise squared error."""
    predicted, targets = each_alone(outputs, y)
    if y.is_floating_point():
        each = (predicted.squeeze(1) - targets).square()
    else:
        each = F.cross_entropy(predicted, targets, reduction="none")
    return each.view(outputs.shape[:2])


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
    """Train with a cosine schedule; with `patience`, keep the networks of the best epoch. Returns the epochs."""
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
