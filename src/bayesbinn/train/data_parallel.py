"""Data-parallel training: several processes, started by torchrun, each work on a share of the same batch.

    torchrun --nproc-per-node 2 -m bayesbinn train mnist

Every rank has the whole network and the whole data set. Batch k of an epoch is the same set of examples for any
number of ranks, and each rank takes a contiguous share of it; DistributedDataParallel averages the gradients, so that
all ranks take the same step. By default they also draw the same noise: together they behave like one process with the
whole batch. Only rank 0 reads and writes the run's folder.

BatchNorm sees its rank's share of the batch, unless `sync_batchnorm` is set. The running statistics that are evaluated
and saved are then rank 0's.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from inspect import signature
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bayesbinn import ranks
from bayesbinn.data import Part
from bayesbinn.errors import BayesbinnError, InvalidInput
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.train.loop import Batch, Totals

TIMEOUT = 300.0
"""Seconds without an answer after which another rank counts as lost."""

# Training does not use BatchNorm's running statistics, so they need not be sent. Newer versions of torch renamed this.
_BUFFERS_AT_EVERY_BATCH = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)

_replicas: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")


class LostRank(BayesbinnError, ConnectionError):
    """Another rank has ended or does not answer."""


# ---- joining and leaving -----------------------------------------------------------------------------


@contextmanager
def session(timeout: float = TIMEOUT) -> Iterator[None]:
    """Join the ranks that torchrun has started, for the duration of a ``with`` block.

    A process started without torchrun is on its own, and nothing happens. When another rank is lost, every rank that
    notices raises `LostRank`.
    """
    place = _place()
    if place is None:
        yield
        return
    rank, world, local_rank = place
    try:
        _join(local_rank, timeout)
        yield
        dist.barrier()  # a rank that leaves while another still talks to it can abort at exit
    except ranks.RefusedByRankZero:
        sys.exit(2)
    except BayesbinnError as error:
        if rank and error.args:
            error.args = (f"rank {rank}: {error}",)
        raise
    except RuntimeError as error:
        if not _is_about_another_rank(error):
            raise
        reason = " ".join(str(error).partition("\n")[0].split())
        raise LostRank(
            f"rank {rank} of {world} lost the others ({reason}); the same command resumes from the last checkpoint"
        ) from None
    finally:
        _leave()


def _leave() -> None:
    """End the group.

    Gloo's threads are joined when the last reference to the group is dropped. DistributedDataParallel's reducer has
    one, and drops it while holding the interpreter lock. A gloo thread that needs that lock to free a tensor would then
    deadlock with it. So drop the reducers first; the other references are dropped without the lock.
    """
    for replica in list(_replicas):
        vars(replica).update(reducer=None, logger=None)
    if dist.is_initialized():
        dist.destroy_process_group()


def _place() -> tuple[int, int, int] | None:
    """Rank, number of ranks and rank on this machine, as set by torchrun; None for a single process."""
    if "RANK" not in os.environ:
        return None
    advice = "start with `torchrun --nproc-per-node N -m bayesbinn train ...`, or unset RANK"
    missing = [name for name in _ENVIRONMENT if name not in os.environ]
    if missing:
        raise InvalidInput(f"RANK is set, but {missing[0]} is not; {advice}")
    try:
        rank, world, local_rank, port = (int(os.environ[name]) for name in _NUMBERS)
    except ValueError:
        rank, world, local_rank, port = -1, 0, 0, 0
    if not 0 <= rank < world or local_rank < 0 or not 0 < port < 65536:
        found = ", ".join(f"{name}={os.environ[name]}" for name in _NUMBERS)
        raise InvalidInput(f"{found}: RANK must be 0 to WORLD_SIZE - 1, MASTER_PORT 1 to 65535; {advice}")
    return None if world == 1 else (rank, world, local_rank)


def _join(local_rank: int, timeout: float) -> None:
    backend = "gloo"
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise InvalidInput(
                f"no GPU for rank {local_rank} on this machine, which has {torch.cuda.device_count()}; start "
                "one rank per GPU, or set CUDA_VISIBLE_DEVICES='' to train on CPUs"
            )
        torch.cuda.set_device(local_rank)
        backend = "cpu:gloo,cuda:nccl"  # counts and decisions are in CPU memory
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))


def _is_about_another_rank(error: RuntimeError) -> bool:
    # Gloo raises plain RuntimeErrors that name its source files or the connection.
    kinds = (dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError)
    return isinstance(error, kinds) or any(word in str(error).lower() for word in ("gloo", "connection", "nccl"))


def device() -> torch.device:
    """Where this rank computes: on its GPU if the machine has any, else on the CPU; a single process uses the CPU."""
    if ranks.world() > 1 and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


# ---- one network on all ranks ------------------------------------------------------------------------


def prepared(model: nn.Module, sync_batchnorm: bool) -> nn.Module:
    """The model on this rank's device; with `sync_batchnorm`, its BatchNorm sees the whole batch."""
    if sync_batchnorm and ranks.world() > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model.to(device())


def replicated(
    model: nn.Module, optimizer: BinaryOptimizer, real_optimizer: torch.optim.Optimizer | None = None
) -> nn.Module:
    """The model as all ranks train it together. Call it once; a single process gets the model itself."""
    if ranks.world() == 1:
        return model
    kind = _OwnNoise if optimizer.independent_noise else DistributedDataParallel
    buffers: dict[str, Any] = {_BUFFERS_AT_EVERY_BATCH: False}
    replica = kind(model, **buffers)
    _replicas.add(replica)
    if optimizer.independent_noise and real_optimizer is not None:
        real_optimizer.register_step_pre_hook(_average_gradients)
    return replica


class _OwnNoise(DistributedDataParallel):
    """Leaves the gradients as they are.

    With independent noise each rank has a different s: the mean of s⊙g, which the optimizer takes, is not the mean of s
    times the mean of g. Hiding the binary parameters from DistributedDataParallel instead would leave it no parameters
    in the paper's networks, which is an error.
    """

    def forward(self, *inputs: Any, **named: Any) -> Any:
        forward: Any = super().forward  # torch does not type it
        with self.no_sync():
            return forward(*inputs, **named)


def _average_gradients(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                ranks.average(parameter.grad)


def share_buffers(model: nn.Module) -> None:
    """Copy rank 0's running statistics to every rank."""
    for buffer in model.buffers():
        ranks.broadcast(buffer)


def separate_dropout(seed: int, epoch: int, batch: int) -> None:
    """Start torch's random stream for one batch, so that no two ranks drop the same units.

    On CPUs, rank 0 continues the stream that the checkpoint stores, as a single process does.
    """
    if ranks.rank() or device().type == "cuda":
        state = np.random.SeedSequence([seed, epoch, batch, ranks.rank()]).generate_state(1, np.uint64)
        torch.manual_seed(int(state[0]))


# ---- one result from all ranks -----------------------------------------------------------------------


def own_batches(part: Part, batch_size: int) -> Iterator[Batch]:
    """This rank's batches of an evaluation: whole ones, so that the sums are those of one process."""
    where = device()
    for index in range(ranks.rank(), len(part.batches(batch_size)), ranks.world()):
        x, y = next(iter(part.batches(batch_size, start=index)))
        yield x.to(where), y.to(where)


def total_of(totals: Totals) -> Totals:
    """The sums over all ranks. Each counts the batches, but only its own examples."""
    loss, correct, seen = ranks.summed([totals.loss, totals.correct, totals.seen])
    return Totals(loss, int(correct), int(seen), totals.batches)


def part_of(totals: Totals) -> Totals:
    """What this rank continues from, so that `total_of` gives `totals` again: rank 0 takes everything."""
    return totals if ranks.rank() == 0 else Totals(batches=totals.batches)
