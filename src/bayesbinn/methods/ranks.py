"""Data-parallel ranks: who we are, and what rank 0 decides. A single process is rank 0 of 1."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def world() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this rank."""
    return dist.get_rank() if world() > 1 else 0


def broadcast(tensor: Tensor) -> None:
    """Every rank gets rank 0's values."""
    if world() > 1:
        dist.broadcast(tensor, src=0)


def from_rank_zero(number: int) -> int:
    """Rank 0's number, on every rank."""
    box = [number]
    if world() > 1:
        dist.broadcast_object_list(box, src=0)
    return box[0]


def average(tensor: Tensor) -> None:
    """Replace a tensor by its mean over the ranks."""
    if world() > 1:
        dist.all_reduce(tensor)
        tensor /= world()
