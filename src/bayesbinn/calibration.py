"""What may need fitting after training: BatchNorm statistics for the weights in use, and the scale of the logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesbinn.binary import canonical_name
from bayesbinn.errors import InvalidInput
from bayesbinn.posterior import BernoulliPosterior, LogitScale, Weights
from bayesbinn.prediction import PureNetwork, class_logits, evaluating, sample_outputs

# Logits of unit variance want a factor of 5 to 10, those of a wide layer without BatchNorm one of 1e-2.
_SCALES = (1e-4, 1e3)


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


# ---- BatchNorm -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class BatchNormStatistics:
    """Running means and variances for the mode (`samples` = 0) or for every one of `samples` posterior samples.

    Made by `recalibrate`, used by ``predict(..., statistics=...)``.
    """

    samples: int
    seed: int
    tensors: Mapping[str, Tensor]
    """[samples, channels] by buffer name, such as ``"1.running_mean"``; the mode counts as one sample."""
    fingerprint: int | None
    """Of the posterior's λ; None: the model's weights as they were."""

    def __repr__(self) -> str:
        layers = sum(name.endswith("running_mean") for name in self.tensors)
        source = f"{self.samples} samples of seed {self.seed}" if self.samples else "the mode"
        return f"BatchNormStatistics({layers} layers, {source})"

    def buffers(self, index: int) -> Weights:
        """The buffers of one sample."""
        return {name: value[index] for name, value in self.tensors.items()}

    def check(self, model: nn.Module, posterior: BernoulliPosterior | None, samples: int, seed: int) -> None:
        """Refuse to be used with other weights than those the statistics were taken with."""
        if (samples == 0) != (self.samples == 0) or samples > self.samples:
            have = f"{self.samples} samples" if self.samples else "the mode"
            want = f"{samples} samples" if samples else "the mode"
            raise InvalidInput(f"the statistics are of {have}, the prediction is by {want}; recalibrate for that")
        if samples and seed != self.seed:
            raise InvalidInput(f"the statistics are of seed {self.seed}, the prediction of seed {seed}; use one seed")
        if self.fingerprint != _fingerprint(posterior):
            raise InvalidInput("the statistics are of another posterior; recalibrate with the one used here")
        own = {canonical_name(name): buffer for name, buffer in model.named_buffers()}
        for name, value in self.tensors.items():
            if name not in own or own[name].shape != value.shape[1:]:
                found = tuple(own[name].shape) if name in own else "nothing"
                raise InvalidInput(
                    f"the statistics are of another model: {name!r} has shape {tuple(value.shape[1:])}, here {found}"
                )


def recalibrate(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    batches: Iterable[Any],
    samples: int = 0,
    *,
    seed: int = 0,
) -> BatchNormStatistics:
    """Re-estimate BatchNorm's running statistics for the weights that predict.

    Training gathers them from relaxed samples that change all the time. Here BatchNorm runs in
    training mode and everything else (dropout) in eval mode, with fixed weights; mean and variance
    are the plain averages over the given batches, each batch counting once.

    The mode's statistics do not fit the samples of a spread posterior: for a network on digits with
    a median |λ| of 0.2, the mean over samples had 10 % accuracy with them and 97 % with its own.
    `calibrate` comes after this.

    Args:
        model: any model with BatchNorm.
        posterior: as in `predict`; None: the model's weights as they are.
        batches: inputs, or tuples whose first element is the inputs, such as a `DataLoader`
            yields. Iterated once. Every batch needs two examples or more.
        samples: 0: for the mode; the model's buffers are overwritten, too. C: for each of the
            first C samples of `seed`; the model stays as it is.
        seed: of the samples; `predict` needs the same.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1, affine=False))
    >>> posterior = BernoulliPosterior({"0.weight": torch.tensor([[3.0, 3.0]])})
    >>> recalibrate(model, posterior, [torch.tensor([[1.0, 1.0], [3.0, 3.0]])])
    BatchNormStatistics(1 layers, the mode)
    >>> model[1].running_mean, model[1].running_var
    (tensor([4.]), tensor([8.]))
    """
    if samples < 0:
        raise InvalidInput(f"samples={samples}: it must be 0 (the mode) or more")
    if posterior is None and samples:
        raise InvalidInput(f"samples={samples} without a posterior: pass one, or samples=0 for the weights as they are")
    network = PureNetwork(model)
    layers = _layers_with_statistics(network.model)
    if posterior is not None:
        posterior.targets(network.model)

    states = [_empty_statistics(layers) for _ in range(max(samples, 1))]
    weights = [_compact(_weights(posterior, samples, seed, index)) for index in range(len(states))]
    count = 0
    with evaluating(model), _averaging(layers.values()):
        for batch in batches:
            x = batch[0] if isinstance(batch, (tuple, list)) else batch
            count += 1
            for state, drawn in zip(states, weights, strict=True):
                _accumulate(network, {**drawn, **state}, x, count)
    if count == 0:
        raise InvalidInput("recalibrate got no batches; pass at least one batch of training inputs")

    tensors = {
        name: torch.stack([state[name] for state in states])
        for name in states[0]
        if not name.endswith("num_batches_tracked")
    }
    if samples == 0:
        own = {canonical_name(name): buffer for name, buffer in network.model.named_buffers()}
        for name, value in states[0].items():
            own[name].copy_(value)
    return BatchNormStatistics(samples, seed, MappingProxyType(tensors), _fingerprint(posterior))


def _layers_with_statistics(model: nn.Module) -> dict[str, _BatchNorm]:
    layers = {
        canonical_name(f"{name}." if name else ""): module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }
    if not layers:
        raise InvalidInput(
            f"{type(model).__name__} has no BatchNorm layer with running statistics; there is nothing to recalibrate"
        )
    return layers


def _empty_statistics(layers: Mapping[str, _BatchNorm]) -> Weights:
    state = {}
    for prefix, layer in layers.items():
        for name, buffer in layer.named_buffers(recurse=False):
            if name in _STATISTICS:
                state[prefix + name] = torch.zeros_like(buffer)
    return state


def _weights(posterior: BernoulliPosterior | None, samples: int, seed: int, index: int) -> Weights:
    if posterior is None:
        return {}
    return posterior.draw(seed, index) if samples else posterior.mode()


def _compact(weights: Weights) -> Weights:
    """±1 in one byte each: every sample's weights stay in memory while the batches pass once."""
    return {name: value.to(torch.int8) for name, value in weights.items()}


class _averaging:
    """BatchNorm in training mode with momentum None, torch's word for the plain average."""

    def __init__(self, layers: Iterable[_BatchNorm]) -> None:
        self._layers = list(layers)

    def __enter__(self) -> None:
        self._momenta = [layer.momentum for layer in self._layers]
        for layer in self._layers:
            layer.training, layer.momentum = True, None

    def __exit__(self, *_: object) -> None:
        for layer, momentum in zip(self._layers, self._momenta, strict=True):
            layer.momentum = momentum


def _accumulate(network: PureNetwork, tensors: Weights, x: Tensor, count: int) -> None:
    try:
        network(tensors, x)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InvalidInput(
            f"batch {count} has one example, which has no variance; drop it (DataLoader(drop_last=True))"
        ) from error


def _fingerprint(posterior: BernoulliPosterior | None) -> int | None:
    """A sum over the bits of λ, in integers so that it does not depend on the order of summation."""
    if posterior is None:
        return None
    return sum(int(value.view(torch.int32).sum(dtype=torch.int64)) for value in posterior.natural.values())


# ---- the scale of the logits -----------------------------------------------------------------------


def calibrate(
    model: nn.Module,
    posterior: BernoulliPosterior,
    inputs: Tensor,
    targets: Tensor,
    *,
    samples: int = 10,
    seed: int = 0,
    batch_size: int | None = None,
    statistics: BatchNormStatistics | None = None,
) -> BernoulliPosterior:
    """The same posterior with a logit scale for the mode and one for the mean, fitted by NLL.

    The paper's networks end in BatchNorm without gain: their logits have unit variance whatever
    they learned, and their probabilities are far too modest. Two numbers repair that. Accuracy by
    the mode stays as it is.

    If all n validation inputs are classified correctly, by every sample, then the NLL would want
    an infinite scale. Laplace's rule of succession is used instead: the mean confidence becomes
    (n + 1)/(n + 2).

    Args:
        model: a classifier, as in `predict`.
        posterior: its present logit scale plays no part.
        inputs: validation inputs, not used in training.
        targets: their classes, integers.
        samples: posterior samples behind the mean; 0 leaves the mean's scale as it is.
        seed: of the samples.
        batch_size: inputs per forward pass; None: all at once. The logits of all samples,
            [samples, inputs, classes], are kept in memory.
        statistics: BatchNorm statistics per sample, if `predict` will use them.

    >>> model = nn.Linear(1, 2, bias=False)
    >>> posterior = BernoulliPosterior({"weight": torch.tensor([[-9.0], [9.0]])})
    >>> x = torch.tensor([[1.0], [1.0], [1.0], [1.0]])
    >>> scaled = calibrate(model, posterior, x, torch.tensor([1, 1, 1, 0]))
    >>> round(scaled.logit_scale.mode, 3)  # ½·log 3: then the probability is ¾
    0.549
    """
    _check_targets(inputs, targets)
    mode = _fitted_scale(_all_outputs(model, posterior, inputs, 0, seed, batch_size, None), targets)
    mean = posterior.logit_scale.mean
    if samples:
        outputs = _all_outputs(model, posterior, inputs, samples, seed, batch_size, statistics)
        mean = _fitted_scale(outputs, targets)
    return posterior.with_logit_scale(LogitScale(mode, mean))


def mean_nll(logits: Tensor, targets: Tensor, scale: float) -> float:
    """−log of the mean over samples of softmax(scale·logits), averaged over inputs; logits [samples, inputs, classes].

    >>> round(mean_nll(torch.zeros(1, 3, 2), torch.tensor([0, 1, 1]), scale=2.0), 4)
    0.6931
    """
    log_p = torch.log_softmax(logits * scale, dim=-1)
    picked = log_p.gather(-1, targets.expand(len(logits), -1).unsqueeze(-1)).squeeze(-1)
    return float((math.log(len(logits)) - picked.logsumexp(dim=0)).mean())


def mean_confidence(logits: Tensor, scale: float) -> float:
    """The likeliest class's mean probability, averaged over inputs; logits [samples, inputs, classes]."""
    return float(torch.softmax(logits * scale, dim=-1).mean(dim=0).amax(dim=-1).mean())


def _check_targets(inputs: Tensor, targets: Tensor) -> None:
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) != len(inputs):
        raise InvalidInput(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)} for {len(inputs)} inputs; "
            "one integer class per input is needed"
        )


def _all_outputs(
    model: nn.Module,
    posterior: BernoulliPosterior,
    inputs: Tensor,
    samples: int,
    seed: int,
    batch_size: int | None,
    statistics: BatchNormStatistics | None,
) -> Tensor:
    """Two or more logits per input: [samples, inputs, classes]."""
    groups: list[list[Tensor]] = []
    with evaluating(model):
        for rows, outputs in sample_outputs(
            model, posterior, inputs, samples, seed=seed, batch_size=batch_size, statistics=statistics
        ):
            if rows.start == 0:
                groups.append([])
            groups[-1].append(class_logits(outputs))
    return torch.cat([torch.cat(group, dim=1) for group in groups])


def _fitted_scale(logits: Tensor, targets: Tensor) -> float:
    low, high, classes = int(targets.min()), int(targets.max()), logits.shape[-1]
    if low < 0 or high >= classes:
        raise InvalidInput(f"targets lie between {low} and {high}; the model has classes 0 to {classes - 1}")
    targets = targets.to(logits.device, torch.int64)
    if bool((logits.argmax(dim=-1) == targets).all()):
        goal = (len(targets) + 1) / (len(targets) + 2)
        return minimum_on_log_scale(lambda scale: (mean_confidence(logits, scale) - goal) ** 2, *_SCALES)
    return minimum_on_log_scale(lambda scale: mean_nll(logits, targets, scale), *_SCALES)


def minimum_on_log_scale(function: Callable[[float], float], low: float, high: float, points: int = 33) -> float:
    """Where a function of a positive number is least: a scan, then Brent's method around the best point.

    The NLL of the mode is convex in the scale; that of the mean need not be, hence the scan.

    >>> round(minimum_on_log_scale(lambda s: (s - 3) ** 2, 0.01, 100), 4)
    3.0
    """
    grid = np.linspace(math.log(low), math.log(high), points)
    best = int(np.argmin([function(math.exp(g)) for g in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, points - 1)])
    found = minimize_scalar(lambda g: function(math.exp(g)), bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(float(found.x))
