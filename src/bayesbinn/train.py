"""The only training loop: any model, any method."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbinn.errors import InvalidInput
from bayesbinn.methods.contract import BinaryOptimizer


@dataclass(frozen=True)
class Epoch:
    """What one pass over the data showed."""

    number: int
    lr: float
    train_loss: float
    train_accuracy: float
    """In percent, as the network was trained: sampled weights, batch statistics."""
    flip_ratio: float
    """The share of binary weights whose sign changed during the epoch."""
    seconds: float


def cosine(step: int, steps: int) -> float:
    """The factor on the learning rate in epoch `step` of `steps`, counted from 1; 0 in the last.

    The authors advance their schedule at the start of an epoch, so that the first epoch already
    trains below the initial rate.

    >>> cosine(1, 2), cosine(2, 2)
    (0.5, 0.0)
    """
    return 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / steps, dtype=torch.float64)).item())


def fit(
    model: nn.Module,
    optimizer: BinaryOptimizer,
    inputs: Tensor,
    targets: Tensor,
    *,
    epochs: int,
    batch_size: int,
    schedule: Callable[[int, int], float] = cosine,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    real_optimizer: torch.optim.Optimizer | None = None,
    seed: int = 0,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[Epoch]:
    """Train on tensors in memory; a last incomplete batch is trained on too, unless it holds one example.

    (BatchNorm has no statistics of a single example.)
    """
    if len(inputs) != len(targets) or len(inputs) < 2:
        raise InvalidInput(f"{len(inputs)} inputs and {len(targets)} targets: equal numbers, 2 or more, are needed")
    optimizers = [optimizer] if real_optimizer is None else [optimizer, real_optimizer]
    initial = [[group["lr"] for group in o.param_groups] for o in optimizers]
    generator = torch.Generator().manual_seed(seed)
    history = []
    for number in range(1, epochs + 1):
        for each, rates in zip(optimizers, initial, strict=True):
            for group, rate in zip(each.param_groups, rates, strict=True):
                group["lr"] = rate * schedule(number, epochs)
        order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
        epoch = _one_epoch(model, optimizer, real_optimizer, inputs, targets, order.split(batch_size), loss, number)
        history.append(epoch)
        on_epoch(epoch)
    return history


def _one_epoch(
    model: nn.Module,
    optimizer: BinaryOptimizer,
    real_optimizer: torch.optim.Optimizer | None,
    inputs: Tensor,
    targets: Tensor,
    batches: tuple[Tensor, ...],
    loss: Callable[[Tensor, Tensor], Tensor],
    number: int,
) -> Epoch:
    started = time.perf_counter()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    total, correct, seen = 0.0, 0, 0
    model.train()
    for rows in batches:
        if len(rows) == 1:
            continue
        x, y = inputs[rows], targets[rows]
        if real_optimizer is not None:
            real_optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            output = model(x)
            value = loss(output, y)
            value.backward()
        optimizer.step()
        if real_optimizer is not None:
            real_optimizer.step()
        total += value.item() * len(rows)
        seen += len(rows)
        if output.dim() == 2 and not y.is_floating_point():
            correct += int((output.detach().argmax(1) == y).sum())
    flipped = sum(int((a != p.detach()).sum()) for a, p in zip(before, parameters, strict=True))
    return Epoch(
        number=number,
        lr=optimizer.param_groups[0]["lr"],
        train_loss=total / seen,
        train_accuracy=100 * correct / seen,
        flip_ratio=flipped / sum(p.numel() for p in parameters),
        seconds=time.perf_counter() - started,
    )
