"""The only training loop: any model, any method, any batches."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from bayesbinn import ranks
from bayesbinn.errors import InvalidInput, StuckTraining
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.models.side_by_side import each_alone, is_side_by_side, together
from bayesbinn.train.dropout import faster_dropout
from bayesbinn.train.schedules import cosine as cosine

Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]


@dataclass
class Totals:
    """Sums over the batches of an epoch so far, as the network was trained: sampled weights, batch statistics."""

    loss: float = 0.0
    correct: int = 0
    seen: int = 0
    batches: int = 0

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.seen, 1)

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / max(self.seen, 1)


def correct_predictions(output: Tensor, targets: Tensor) -> int:
    """How many classes are correct; 0 for regression. A single logit decides between two classes."""
    output = output.detach()
    if output.dim() == 3:
        output = together(output)
    if output.dim() == 2 and output.shape[1] > 1 and not targets.is_floating_point():
        return int((output.argmax(1) == targets).sum())
    if output.numel() == targets.numel() and not targets.is_floating_point():
        return int(((output.flatten() > 0) == (targets > 0)).sum())
    return 0


def train_batches(
    model: nn.Module,
    optimizer: BinaryOptimizer,
    batches: Iterable[Batch],
    totals: Totals,
    *,
    loss: Loss = F.cross_entropy,
    real_optimizer: torch.optim.Optimizer | None = None,
    mc_samples: int = 1,
    sizes: Iterable[int] | None = None,
    before_batch: Callable[[], None] = lambda: None,
    after_batch: Callable[[], None] = lambda: None,
) -> None:
    """Train on each batch in turn, adding to `totals`. The callbacks run before and after every batch.

    Data-parallel ranks pass their shares, and in `sizes` the number of examples in each batch over all ranks: the mean
    of their gradients is then the mean over the batch, even if the shares differ in size. If every rank has the whole
    batch, only rank 0 counts it.
    """
    model.train()
    side_by_side = is_side_by_side(model)
    device = next(model.parameters()).device
    faster: AbstractContextManager[None] | None = None
    for (x, y), size in zip(batches, repeat(None) if sizes is None else sizes, strict=False):
        x, y = x.to(device), y.to(device)
        weight = None if size is None or len(x) == size else len(x) * ranks.world() / size
        faster = faster or faster_dropout(model, len(x))
        before_batch()
        if real_optimizer is not None:
            real_optimizer.zero_grad()
        for _ in range(mc_samples):
            with optimizer.sampled_params(train=True):
                with faster:
                    output = model(x)
                value = loss(*each_alone(output, y)) if side_by_side else loss(output, y)
                # Each network learns from its own loss, of which `value` is the mean.
                whole = value * output.shape[1] if side_by_side else value
                (whole if weight is None else whole * weight).backward()
        optimizer.step()
        if real_optimizer is not None:
            _average_gradients(real_optimizer, mc_samples)
            real_optimizer.step()
        if weight is not None or ranks.rank() == 0:
            totals.loss += value.item() * len(x)
            totals.correct += correct_predictions(output, y)
            totals.seen += len(x)
        totals.batches += 1
        after_batch()


def _average_gradients(optimizer: torch.optim.Optimizer, samples: int) -> None:
    """Average the real parameters' gradients, which add up over the samples; the method averages the binary ones."""
    if samples > 1:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= samples


def set_learning_rates(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Set every group to `factor` times its initial rate, which is stored in the group."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


SMALL_STEP = 1 << 25
"""Weights times examples in a step, below which several threads mostly wait for each other."""


@contextmanager
def training_threads(model: nn.Module, batch_size: int) -> Iterator[None]:
    """One thread for steps so small that several would mostly wait for each other; otherwise torch's setting."""
    threads = torch.get_num_threads()
    weights = sum(parameter.numel() for parameter in model.parameters())
    is_small = weights * batch_size < SMALL_STEP
    if any(isinstance(layer, _ConvNd) for layer in model.modules()):
        is_small = False  # a convolution uses each weight for many pixels
    torch.set_num_threads(1 if is_small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Epoch:
    """The metrics of one pass over the data."""

    number: int
    lr: float
    train_loss: float
    train_accuracy: float
    """In percent."""
    flip_ratio: float
    """The share of binary weights whose sign changed during the epoch."""
    seconds: float


def fit(
    model: nn.Module,
    optimizer: BinaryOptimizer,
    inputs: Tensor,
    targets: Tensor,
    *,
    epochs: int,
    batch_size: int,
    schedule: Callable[[int, int], float] = cosine,
    loss: Loss = F.cross_entropy,
    real_optimizer: torch.optim.Optimizer | None = None,
    seed: int = 0,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[Epoch]:
    """Train on tensors in memory, in a new random order every epoch.

    A last batch of a single example is left out, because BatchNorm needs more than one, unless `batch_size` is 1.
    """
    if len(inputs) != len(targets) or len(inputs) < 2:
        raise InvalidInput(f"{len(inputs)} inputs and {len(targets)} targets: need equal numbers, at least 2")
    optimizers = [optimizer] if real_optimizer is None else [optimizer, real_optimizer]
    generator = torch.Generator().manual_seed(seed)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    history = []
    for number in range(1, epochs + 1):
        started = time.perf_counter()
        set_learning_rates(optimizers, schedule(number, epochs))
        before = [p.detach().clone() for p in parameters]
        order = torch.randperm(len(inputs), generator=generator).to(inputs.device).split(batch_size)
        totals = Totals()
        batches = ((inputs[rows], targets[rows]) for rows in order if len(rows) > 1 or batch_size == 1)
        train_batches(model, optimizer, batches, totals, loss=loss, real_optimizer=real_optimizer)
        epoch = Epoch(
            number=number,
            lr=optimizer.param_groups[0]["lr"],
            train_loss=totals.mean_loss,
            train_accuracy=totals.accuracy,
            flip_ratio=flips(before, parameters),
            seconds=time.perf_counter() - started,
        )
        history.append(epoch)
        on_epoch(epoch)
    warn_if_stuck([epoch.train_loss for epoch in history], history[-1].train_accuracy if history else 0.0, targets)
    return history


def stuck_at_chance(losses: Sequence[float], accuracy: float, majority: float, examples: int) -> bool:
    """Whether the network learned nothing: no better than the largest class, and a loss that did not fall.

    `losses` are the training losses by epoch, `accuracy` is that of the last epoch, in percent like `majority`, the
    share of the largest class. Better means by three standard errors; a loss falls if it ends 5 % below its start.

    >>> stuck_at_chance([1.22, 1.23], accuracy=15.0, majority=39.9, examples=142)
    True
    >>> stuck_at_chance([1.22, 0.81], accuracy=35.0, majority=39.9, examples=142)
    False
    """
    if len(losses) < 2 or examples == 0:
        return False
    share = majority / 100
    margin = 300 * math.sqrt(share * (1 - share) / examples)
    return accuracy <= majority + margin and losses[-1] > 0.95 * losses[0]


def warn_if_stuck(losses: Sequence[float], accuracy: float, targets: Tensor, stacklevel: int = 3) -> None:
    """Warn if a classifier learned nothing in training; `targets` are its training classes."""
    if targets.is_floating_point() or targets.ndim != 1 or not len(targets):
        return
    majority = 100 * float(targets.unique(return_counts=True)[1].max()) / len(targets)
    if stuck_at_chance(losses, accuracy, majority, len(targets)):
        warnings.warn(
            f"training is stuck at chance: accuracy {accuracy:.1f} %, but the largest class has {majority:.1f} %, and "
            f"the loss did not fall ({losses[0]:.3f}, then {losses[-1]:.3f}); change lr, and with BayesBiNN use "
            "only certainty=100, or lr=1e-3 with temperature=1e-10",
            StuckTraining,
            stacklevel=stacklevel,
        )


def flips(before: Iterable[Tensor], after: Iterable[Tensor]) -> float:
    """The share of weights whose sign differs."""
    pairs = list(zip(before, after, strict=True))
    changed = sum(int(((a >= 0) != (b.detach() >= 0)).sum()) for a, b in pairs)
    return changed / sum(a.numel() for a, _ in pairs)
