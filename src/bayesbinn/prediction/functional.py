"""A trained network as a pure function of its weights, and its outputs under posterior samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesbinn.binary import canonical_name
from bayesbinn.errors import InvalidInput
from bayesbinn.posterior import BernoulliPosterior, Weights

if TYPE_CHECKING:
    from bayesbinn.prediction.batchnorm import BatchNormStatistics


# Bytes for the samples that run at once. Vectorising saves the overhead of small networks; on a
# CPU, work beyond the caches gains nothing (large convolutions even lose), so samples then run
# one by one. An accelerator needs more work at once to be busy.
CPU_BUDGET = 1 << 24


ACCELERATOR_BUDGET = 1 << 30


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients; every training flag and the random state come back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices):
            yield
    finally:
        for module, training in flags:
            module.training = training


class PureNetwork:
    """A model as a function of its weights and buffers: calls write to copies, never to the model.

    Tensors are given by canonical name; parameters that are not given are the model's own.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrapped(model)
        named = [*self.model.named_parameters(remove_duplicate=False), *self.model.named_buffers()]
        self._actual = {canonical_name(name): (name, tensor) for name, tensor in named}

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """One network. `tensors` may be written to by the model (BatchNorm in training mode)."""
        output = functional_call(self.model, {**self._buffers(), **self._own(tensors)}, (x,))
        return _checked_output(output, x)

    def stacked(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Many networks at once: `tensors` and the result have one more axis, the first."""
        buffers, own = self._buffers(), self._own(tensors)
        call = vmap(lambda each: functional_call(self.model, {**buffers, **each}, (x,)), randomness="error")
        output: Tensor = call(own)
        return output

    def _own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        named = {}
        for canonical, value in tensors.items():
            name, own = self._actual[canonical]
            named[name] = value.to(own.device, own.dtype)
        return named

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _checked_output(output: Any, x: Tensor) -> Tensor:
    if not isinstance(output, Tensor):
        raise InvalidInput(f"the model returned a {type(output).__name__}; it must return one tensor")
    if output.ndim == 0 or len(output) != len(x):
        raise InvalidInput(
            f"the model returned shape {tuple(output.shape)} for {len(x)} inputs; the first axis must be the inputs'"
        )
    return output


def sample_outputs(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    x: Tensor,
    samples: int,
    *,
    seed: int,
    batch_size: int | None = None,
    statistics: BatchNormStatistics | None = None,
    memory_budget: int | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows of x, outputs [some samples, rows, ...])``, all rows before the next samples.

    The mode counts as one sample. To be iterated inside `evaluating(model)`.
    """
    _check_inputs(posterior, x, samples, batch_size, memory_budget)
    network = PureNetwork(model)
    if posterior is not None:
        posterior.targets(network.model)
    if statistics is not None:
        statistics.check(network.model, posterior, samples, seed)
    if memory_budget is None:
        memory_budget = CPU_BUDGET if x.device.type == "cpu" else ACCELERATOR_BUDGET
    size = len(x) if batch_size is None else batch_size
    batches = [slice(start, min(start + size, len(x))) for start in range(0, len(x), size)]

    def tensors(index: int) -> Weights:
        drawn = {} if posterior is None else posterior.draw(seed, index) if samples else posterior.mode()
        return drawn if statistics is None else {**drawn, **statistics.buffers(index)}

    # The first sample runs alone and shows how much memory one needs.
    first, at_once = tensors(0), 1
    for rows in batches:
        with _LargestTensor() as largest:  # type: ignore[no-untyped-call, unused-ignore]
            outputs = _without_randomness(network, first, x[rows])
        if rows.start == 0 and samples > 1:
            weights = sum(value.nbytes for value in first.values())
            # Weights exist singly and stacked; an operation holds its input, its output and some work space.
            at_once = max(1, memory_budget // (2 * weights + 3 * largest.bytes))
        yield rows, outputs.unsqueeze(0)

    done, vectorised = 1, at_once > 1
    while done < samples:
        group = [tensors(index) for index in range(done, min(done + at_once, samples))]
        stack = {name: torch.stack([each[name] for each in group]) for name in first} if vectorised else None
        for rows in batches:
            found = None if stack is None else _try_vectorised(network, stack, x[rows])
            if found is None:
                stack, vectorised = None, False
                found = torch.stack([network(each, x[rows]) for each in group])
            yield rows, found
        done += len(group)


def _try_vectorised(network: PureNetwork, stack: Weights, x: Tensor) -> Tensor | None:
    """All networks of a stack in one pass; None if `vmap` cannot run the model, or only slowly."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            return network.stacked(stack, x)
    except Exception as error:
        if "randomness error mode" in str(error):
            raise InvalidInput(_RANDOM) from error
        # Whatever it was: if it is the model's own error, running one by one will show it.
        return None


_RANDOM = (
    "the model draws random numbers in eval mode, so that no prediction could be repeated; "
    "use nn.Dropout, which is off in eval mode, or pass training=self.training"
)


def _without_randomness(network: PureNetwork, tensors: Weights, x: Tensor) -> Tensor:
    before = torch.get_rng_state()
    output = network(tensors, x)
    if not torch.equal(before, torch.get_rng_state()):
        raise InvalidInput(_RANDOM)
    return output


class _LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Notes the size of the largest tensor that any operation returns."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.bytes = max(self.bytes, leaf.nbytes)
        return result


def _check_inputs(
    posterior: BernoulliPosterior | None, x: Any, samples: int, batch_size: int | None, memory_budget: int | None
) -> None:
    if samples < 0:
        raise InvalidInput(f"samples={samples}: it must be 0 (the mode) or more")
    if posterior is None and samples:
        raise InvalidInput(f"samples={samples} without a posterior: pass one, or samples=0 for the weights as they are")
    if not isinstance(x, Tensor):
        raise InvalidInput(f"x is a {type(x).__name__}; pass a torch tensor")
    if x.ndim == 0 or len(x) == 0:
        raise InvalidInput(f"x has shape {tuple(x.shape)}; at least one input along the first axis is needed")
    if batch_size is not None and batch_size < 1:
        raise InvalidInput(f"batch_size={batch_size}: it must be 1 or more, or None for all inputs at once")
    if memory_budget is not None and memory_budget < 0:
        raise InvalidInput(f"memory_budget={memory_budget}: it must be a number of bytes")
