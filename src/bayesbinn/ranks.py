"""Data-parallel ranks: which rank this is, and what rank 0 decides. A single process is rank 0 of 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from bayesbinn.errors import BayesbinnError

T = TypeVar("T")

_alone = False


class RefusedByRankZero(BayesbinnError):
    """Rank 0 has raised this error and reports it to the user."""


def world() -> int:
    """The number of ranks."""
    return dist.get_world_size() if not _alone and dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The index of this rank."""
    return dist.get_rank() if world() > 1 else 0


@contextmanager
def alone() -> Iterator[None]:
    """Within this block, the process is rank 0 of 1: work that one rank does for all must not wait for the others."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def decided(action: Callable[[], T]) -> T:
    """Call `action` on rank 0 and return its result on every rank. If it raises, every rank raises."""
    if world() == 1:
        return action()
    box: list[Any] = [None, None]
    failure: Exception | None = None
    if rank() == 0:
        try:
            with alone():
                box[0] = action()
        except Exception as error:
            box[1], failure = str(error), error
    dist.broadcast_object_list(box, src=0)
    if failure is not None:
        raise failure
    if box[1] is not None:
        raise RefusedByRankZero(box[1])
    result: T = box[0]
    return result


def broadcast(tensor: Tensor) -> None:
    """Copy rank 0's values to every rank."""
    if world() > 1:
        dist.broadcast(tensor, src=0)


def from_rank_zero(number: int) -> int:
    """Rank 0's number, on every rank."""
    return decided(lambda: number)


def average(tensor: Tensor) -> None:
    """Replace a tensor by its mean over the ranks."""
    if world() > 1:
        dist.all_reduce(tensor)
        tensor /= world()


def summed(numbers: Sequence[float]) -> list[float]:
    """The sums over the ranks; sums of counts are exact."""
    if world() == 1:
        return list(numbers)
    totals = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(totals)
    return [float(total) for total in totals]
