"""The networks that a posterior describes, and their outputs.

The mode, or the samples 0, 1, … of a seed, with the model's BatchNorm statistics or with separate ones.
Prediction, calibration, packing and the evaluation of task streams all use this, so that they mean the same networks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesbinn.errors import InvalidInput
from bayesbinn.models.side_by_side import SideBySide
from bayesbinn.posterior import BernoulliPosterior, LogitScale, Weights
from bayesbinn.prediction.functional import PureNetwork

if TYPE_CHECKING:
    from bayesbinn.prediction.batchnorm import BatchNormStatistics

# Bytes for the samples that run at once. Vectorizing saves the overhead of small networks. On a CPU,
# it gains nothing beyond the caches (large convolutions even get slower), so samples then run one by
# one. An accelerator needs more work at once to stay busy.
CPU_BUDGET = 1 << 24
ACCELERATOR_BUDGET = 1 << 30


class Ensemble:
    """One network (the posterior's mode, or the model as it is) or `samples` draws from the posterior.

    Args:
        model: all networks share its other parameters and buffers.
        posterior: where the binary weights come from; None: the model's weights as they are.
        samples: 0: the mode. C: the samples 0 to C - 1 of `seed`.
        seed: seed of the samples; the same seed gives the same networks.
        statistics: BatchNorm statistics of these networks, from ``recalibrate(..., samples, seed=seed)``; None: the
            model's running statistics for all of them.

    >>> posterior = BernoulliPosterior({"weight": torch.tensor([[3.0, -3.0]])})
    >>> mode = Ensemble(nn.Linear(2, 1, bias=False), posterior)
    >>> len(mode), mode.tensors(0)
    (1, {'weight': tensor([[ 1., -1.]])})
    """

    def __init__(
        self,
        model: nn.Module,
        posterior: BernoulliPosterior | None,
        samples: int = 0,
        seed: int = 0,
        statistics: BatchNormStatistics | None = None,
    ) -> None:
        if samples < 0:
            raise InvalidInput(f"samples={samples}: it must be 0 (the mode) or more")
        if posterior is None and samples:
            raise InvalidInput(
                f"samples={samples} without a posterior: pass one, or samples=0 for the weights as they are"
            )
        self.model, self.network = model, PureNetwork(model)
        inner = self.network.model
        self.side_by_side = inner.networks if isinstance(inner, SideBySide) else 0
        """How many networks the model is; 0: it is an ordinary one."""
        self.posterior, self.samples, self.seed, self.statistics = posterior, samples, seed, statistics
        if posterior is not None:
            posterior.targets(self.network.model)
        if statistics is not None:
            statistics.check(self.network.model, posterior, samples, seed)

    def __len__(self) -> int:
        """How many networks there are; the mode counts as one."""
        return max(self.samples, 1)

    def tensors(self, index: int) -> Weights:
        """The parameters and buffers in which a network differs from the model, by canonical name."""
        if self.posterior is None:
            weights = {}
        else:
            weights = self.posterior.draw(self.seed, index) if self.samples else self.posterior.mode()
        return weights if self.statistics is None else {**weights, **self.statistics.buffers(index)}

    def calibration(self, given: LogitScale | None = None) -> tuple[float, tuple[float, ...]]:
        """Factor and shifts for these networks' logits: from the given calibration, the posterior, or none."""
        own = LogitScale() if self.posterior is None else self.posterior.logit_scale
        return (given or own).of(self.samples)

    def outputs(
        self, x: Tensor, *, batch_size: int | None = None, memory_budget: int | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``(rows of x, outputs [some networks, rows, ...])``, all rows before the next networks.

        Of a model that is several networks side by side, each counts. Iterate it inside `evaluating(model)`.
        """
        for rows, outputs in self._outputs(x, batch_size, memory_budget):
            yield rows, outputs.transpose(1, 2).flatten(0, 1) if self.side_by_side else outputs

    def _outputs(self, x: Tensor, batch_size: int | None, memory_budget: int | None) -> Iterator[tuple[slice, Tensor]]:
        _check_inputs(x, batch_size, memory_budget)
        if memory_budget is None:
            memory_budget = CPU_BUDGET if x.device.type == "cpu" else ACCELERATOR_BUDGET
        size = len(x) if batch_size is None else batch_size
        batches = [slice(start, min(start + size, len(x))) for start in range(0, len(x), size)]

        # The first network runs by itself and shows how much memory one needs.
        first, at_once = self.tensors(0), 1
        for rows in batches:
            with _LargestTensor() as largest:  # type: ignore[no-untyped-call, unused-ignore]
                outputs = _without_randomness(self.network, first, x[rows])
            if rows.start == 0 and len(self) > 1:
                weights = sum(value.nbytes for value in first.values())
                # Weights exist both separately and stacked; an operation holds its input, its output and workspace.
                at_once = max(1, memory_budget // (2 * weights + 3 * largest.bytes))
            yield rows, outputs.unsqueeze(0)

        done, vectorized = 1, at_once > 1
        while done < len(self):
            group = [self.tensors(index) for index in range(done, min(done + at_once, len(self)))]
            stack = {name: torch.stack([each[name] for each in group]) for name in first} if vectorized else None
            for rows in batches:
                found = None if stack is None else _try_vectorized(self.network, stack, x[rows])
                if found is None:
                    stack, vectorized = None, False
                    found = torch.stack([self.network(each, x[rows]) for each in group])
                yield rows, found
            done += len(group)


def _try_vectorized(network: PureNetwork, stack: Weights, x: Tensor) -> Tensor | None:
    """All networks of a stack in one pass; None if `vmap` cannot run the model, or would be slow."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")
            return network.stacked(stack, x)
    except Exception as error:
        if "randomness error mode" in str(error):
            raise InvalidInput(_RANDOM) from error
        # If it is the model's own error, running the networks one by one will show it.
        return None


_RANDOM = (
    "the model draws random numbers in eval mode, so its predictions are not reproducible; "
    "use nn.Dropout, which is off in eval mode, or pass training=self.training"
)


def _without_randomness(network: PureNetwork, tensors: Weights, x: Tensor) -> Tensor:
    before = torch.get_rng_state()
    output = network(tensors, x)
    if not torch.equal(before, torch.get_rng_state()):
        raise InvalidInput(_RANDOM)
    return output


class _LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Records the size of the largest tensor that any operation returns."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.bytes = max(self.bytes, leaf.nbytes)
        return result


def _check_inputs(x: Any, batch_size: int | None, memory_budget: int | None) -> None:
    if not isinstance(x, Tensor):
        raise InvalidInput(f"x is a {type(x).__name__}; pass a torch tensor")
    if x.ndim == 0 or len(x) == 0:
        raise InvalidInput(f"x has shape {tuple(x.shape)}; at least one input along the first axis is needed")
    if batch_size is not None and batch_size < 1:
        raise InvalidInput(f"batch_size={batch_size}: it must be 1 or more, or None for all inputs at once")
    if memory_budget is not None and memory_budget < 0:
        raise InvalidInput(f"memory_budget={memory_budget}: it must be a number of bytes")
