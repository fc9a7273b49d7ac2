"""Prediction by the posterior's mode or by the mean over samples, with the uncertainty split into its parts.

A model is called as a pure function of its weights (`PureNetwork`): nothing in it is written to.
Sample `i` of a seed is always ``posterior.draw(seed, i)``, so that neither the size of the
batches nor the way the samples are grouped changes what is predicted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesbinn.binary import canonical_name
from bayesbinn.errors import InvalidInput
from bayesbinn.posterior import BernoulliPosterior, LogitScale, Weights

if TYPE_CHECKING:
    from bayesbinn.calibration import BatchNormStatistics

Task = Literal["classification", "regression"]

# Bytes for the samples that run at once. Vectorising saves the overhead of small networks; on a
# CPU, work beyond the caches gains nothing (large convolutions even lose), so samples then run
# one by one. An accelerator needs more work at once to be busy.
CPU_BUDGET = 1 << 24
ACCELERATOR_BUDGET = 1 << 30

_FIELDS = {
    "classification": ("probabilities", "entropy", "aleatoric", "mutual_information"),
    "regression": ("mean", "std"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What `predict` returns: for classification `probabilities`, `classes` and the entropies, for regression
    `mean` and `std`. Asking one task for the other's result is an error."""

    task: Task
    samples: int
    """How many posterior samples are behind it; 0 is the mode."""
    tensors: Mapping[str, Tensor]

    @property
    def probabilities(self) -> Tensor:
        """[batch, classes]: the mean of the samples' probabilities."""
        return self._get("probabilities")

    @property
    def classes(self) -> Tensor:
        """[batch]: the likeliest class."""
        return self.probabilities.argmax(dim=-1)

    @property
    def entropy(self) -> Tensor:
        """[batch]: entropy of `probabilities` in nats, the total uncertainty: aleatoric + mutual information."""
        return self._get("entropy")

    @property
    def aleatoric(self) -> Tensor:
        """[batch]: the samples' mean entropy in nats: what stays uncertain once the weights are known."""
        return self._get("aleatoric")

    @property
    def mutual_information(self) -> Tensor:
        """[batch]: how much the samples disagree, in nats: what knowing the weights would tell. 0 at the mode."""
        return self._get("mutual_information")

    @property
    def mean(self) -> Tensor:
        """The mean of the samples' outputs, in the shape of the model's output."""
        return self._get("mean")

    @property
    def std(self) -> Tensor:
        """The samples' unbiased standard deviation: 0 at the mode, NaN for a single sample."""
        return self._get("std")

    def _get(self, name: str) -> Tensor:
        if name not in self.tensors:
            allowed = ", ".join(_FIELDS[self.task])
            raise InvalidInput(f"a {self.task} prediction has no {name!r}, only {allowed}; see predict(task=...)")
        return self.tensors[name]

    def __len__(self) -> int:
        return len(self.tensors[_FIELDS[self.task][0]])

    def __repr__(self) -> str:
        source = f"mean of {self.samples} samples" if self.samples else "mode"
        return f"Prediction({self.task} of {len(self)} inputs, {source})"


def predict(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    x: Tensor,
    samples: int = 0,
    *,
    task: Task = "classification",
    seed: int = 0,
    batch_size: int | None = None,
    statistics: BatchNormStatistics | None = None,
    memory_budget: int | None = None,
    calibration: LogitScale | None = None,
) -> Prediction:
    """Predict by the posterior's mode (``samples=0``) or by the mean over `samples` draws from it.

    The probabilities of one network are softmax(factor·(logits + shift)), with the factor and the shifts
    that `calibrate` fitted. The shifts express how frequent the classes are, so they may change which
    class is likeliest. Probabilities are averaged, never logits. The model runs in eval mode, and neither its
    weights, buffers, gradients and training flags nor torch's random state change.

    Args:
        model: returns logits [batch, classes]; one logit, [batch] or [batch, 1], is that of class
            1 of two. For regression any shape [batch, ...].
        posterior: what the binary weights are drawn from; None: the model's weights as they are.
        x: the inputs, along the first axis.
        samples: how many samples to average over.
        task: "classification" or "regression".
        seed: of the samples. The same seed draws the same networks.
        batch_size: inputs per forward pass; None: all at once.
        statistics: BatchNorm statistics per sample, from ``recalibrate(..., samples, seed=seed)``.
        memory_budget: bytes that the samples of one vectorised pass may take (an estimate). By
            default 16 MiB on a CPU, where more is not faster, and 1 GiB elsewhere. If not even two
            samples fit, or `torch.func.vmap` cannot run the model, samples run one by one.
        calibration: factor and shifts of the logits; None: those of the posterior, or none without one.
            For a model without a posterior: what ``calibrate(model, None, ...)`` returned.

    >>> model = nn.Linear(2, 3, bias=False)
    >>> posterior = BernoulliPosterior({"weight": torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 0.0]])})
    >>> prediction = predict(model, posterior, torch.tensor([[5.0, 0.0], [0.0, 1.0]]), samples=100)
    >>> prediction
    Prediction(classification of 2 inputs, mean of 100 samples)
    >>> prediction.classes[0].item()
    0
    >>> parts = prediction.aleatoric + prediction.mutual_information
    >>> torch.allclose(parts, prediction.entropy)
    True
    """
    if task not in _FIELDS:
        raise InvalidInput(f"task={task!r}: it must be 'classification' or 'regression'")
    if posterior is not None:
        posterior.warn_if_saturated(samples)
    scale = calibration_of(posterior, calibration).of(samples)
    moments, dtype = _Moments(x), torch.float32
    with evaluating(model):
        for rows, outputs in sample_outputs(
            model,
            posterior,
            x,
            samples,
            seed=seed,
            batch_size=batch_size,
            statistics=statistics,
            memory_budget=memory_budget,
        ):
            dtype = torch.float64 if outputs.dtype is torch.float64 else torch.float32
            moments.add(rows, _wide(outputs) if task == "regression" else _probabilities_and_entropy(outputs, *scale))
    tensors = (_regression if task == "regression" else _classification)(moments, samples)
    _check_defined(x, tensors[_FIELDS[task][0]])
    return Prediction(task, samples, MappingProxyType({name: value.to(dtype) for name, value in tensors.items()}))


def _check_defined(x: Tensor, predicted: Tensor) -> None:
    """Refuse NaN, whose likeliest class would be called 0."""
    lost = ~torch.isfinite(predicted if predicted.dim() == 1 else predicted.flatten(1).sum(1))
    if bool(lost.any()):
        row = int(lost.nonzero()[0])
        whole = not x.is_floating_point() or bool(torch.isfinite(x[row]).all())
        reason = "the network's output is not finite" if whole else "the input has a NaN or infinite value"
        raise InvalidInput(f"input {row} has no prediction ({int(lost.sum())} such inputs): {reason}; correct it")


# ---- a model as a function ---------------------------------------------------------------------


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


# ---- samples -------------------------------------------------------------------------------------


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


# ---- averages ------------------------------------------------------------------------------------


class _Moments:
    """Mean and sum of squared deviations over samples, merged group by group."""

    def __init__(self, x: Tensor) -> None:
        self._x, self._groups = x, 0
        self.mean = self.squares = self._count = torch.empty(0)

    def add(self, rows: slice, values: Tensor) -> None:
        """`values` [samples, rows, ...] are further samples of these rows."""
        if self._groups == 0:
            self.mean = values.new_zeros(len(self._x), *values.shape[2:])
            self.squares = torch.zeros_like(self.mean)
            self._count = values.new_zeros(len(self._x), *[1] * (values.ndim - 2))
        self._groups += 1
        before, new, mean = self._count[rows], len(values), values.mean(dim=0)
        step = mean - self.mean[rows]
        self.squares[rows] += (values - mean).square().sum(dim=0) + step.square() * before * new / (before + new)
        self.mean[rows] += step * new / (before + new)
        self._count[rows] += new


def calibration_of(posterior: BernoulliPosterior | None, given: LogitScale | None) -> LogitScale:
    """The calibration to use: the given one, the posterior's, or none."""
    return given or (LogitScale() if posterior is None else posterior.logit_scale)


def _probabilities_and_entropy(outputs: Tensor, scale: float, shift: tuple[float, ...]) -> Tensor:
    """[samples, batch, classes + 1]: what is averaged over samples."""
    logits = class_logits(outputs)
    if shift and len(shift) != logits.shape[-1]:
        raise InvalidInput(
            f"the calibration has shifts for {len(shift)} classes, the model has {logits.shape[-1]}; "
            "calibrate this model"
        )
    p = torch.softmax(shifted(logits, shift) * scale, dim=-1)
    return torch.cat([p, entropy(p).unsqueeze(-1)], dim=-1)


def _classification(moments: _Moments, samples: int) -> dict[str, Tensor]:
    probabilities, aleatoric = moments.mean[:, :-1], moments.mean[:, -1]
    total = entropy(probabilities)
    # Never below 0 by Jensen's inequality; rounding can miss that by an ulp.
    information = (total - aleatoric).clamp(min=0) if samples else torch.zeros_like(total)
    return {
        "probabilities": probabilities,
        "entropy": total,
        "aleatoric": total - information,
        "mutual_information": information,
    }


def _regression(moments: _Moments, samples: int) -> dict[str, Tensor]:
    # At the mode the squares are 0; one sample has no unbiased estimate: 0/0.
    variance = moments.squares / (samples - 1) if samples else moments.squares
    return {"mean": moments.mean, "std": variance.sqrt()}


def class_logits(outputs: Tensor) -> Tensor:
    """Logits [samples, batch, classes] from a classifier's outputs; one logit is that of class 1 of two.

    >>> class_logits(torch.tensor([[2.0, -1.0]])).tolist()
    [[[0.0, 2.0], [0.0, -1.0]]]
    """
    if outputs.ndim == 2:
        outputs = outputs.unsqueeze(-1)
    if outputs.ndim != 3:
        shape = tuple(outputs.shape[1:])
        raise InvalidInput(f"the model returned shape {shape}; classification needs [batch, classes] or [batch]")
    z = _wide(outputs)
    return torch.cat([torch.zeros_like(z), z], dim=-1) if z.shape[-1] == 1 else z


def shifted(logits: Tensor, shift: Sequence[float]) -> Tensor:
    """logits + shift along the last axis; an empty shift is none."""
    return logits + torch.tensor(shift, dtype=logits.dtype, device=logits.device) if len(shift) else logits


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p·log p over the last axis, in nats.

    >>> round(entropy(torch.tensor([0.5, 0.5, 0.0])).item(), 4)
    0.6931
    """
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(dim=-1)


def _wide(outputs: Tensor) -> Tensor:
    """float64, so that the order of summation does not show; Apple's GPUs have none."""
    return outputs.to(torch.float32 if outputs.device.type == "mps" else torch.float64)
