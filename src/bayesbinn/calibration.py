"""What may need fitting after training: BatchNorm statistics for the weights in use, and the
scale and shifts of the logits."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesbinn.binary import canonical_name
from bayesbinn.errors import CalibrationWarning, InvalidInput
from bayesbinn.logit_fit import FEWEST_ROWS, LogitFit, fit_logits
from bayesbinn.posterior import BernoulliPosterior, LogitScale, Weights
from bayesbinn.prediction import PureNetwork, class_logits, evaluating, sample_outputs

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


# ---- scale and shifts of the logits ----------------------------------------------------------------


@overload
def calibrate(
    model: nn.Module,
    posterior: BernoulliPosterior,
    inputs: Tensor,
    targets: Tensor,
    *,
    samples: int = ...,
    seed: int = ...,
    batch_size: int | None = ...,
    statistics: BatchNormStatistics | None = ...,
) -> BernoulliPosterior: ...


@overload
def calibrate(
    model: nn.Module,
    posterior: None,
    inputs: Tensor,
    targets: Tensor,
    *,
    samples: int = ...,
    seed: int = ...,
    batch_size: int | None = ...,
    statistics: BatchNormStatistics | None = ...,
) -> LogitScale: ...


@overload
def calibrate(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    inputs: Tensor,
    targets: Tensor,
    *,
    samples: int = ...,
    seed: int = ...,
    batch_size: int | None = ...,
    statistics: BatchNormStatistics | None = ...,
) -> BernoulliPosterior | LogitScale: ...


def calibrate(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    inputs: Tensor,
    targets: Tensor,
    *,
    samples: int = 10,
    seed: int = 0,
    batch_size: int | None = None,
    statistics: BatchNormStatistics | None = None,
) -> BernoulliPosterior | LogitScale:
    """The same posterior with calibrated probabilities, by the mode and by the mean; without one, a `LogitScale`.

    The paper's networks end in BatchNorm without gain and bias: their logits have zero mean and unit
    variance whatever they learned. Raw probabilities are underconfident and cannot express that one
    class is more frequent than another. `predict` then uses softmax(factor·(logits + shift)): a factor, and a shift
    for each class where there are enough rows to tell that shifts help. A shift may change which class is
    likeliest: with classes of 95 % and 5 % and inputs that say nothing, every prediction becomes 95 % : 5 %.

    Few rows never lead to extreme probabilities: factor and shifts have priors, and cross-validation decides
    on the shifts (see `bayesbinn.logit_fit`). A class with fewer than 2 rows gets no shift. Under 20 rows, or with
    rows of one class alone, a `CalibrationWarning` says so.

    Args:
        model: a classifier, as in `predict`.
        posterior: its present calibration plays no part. None: the model's weights as they are, such as
            those of a full-precision network; pass the result as ``predict(..., calibration=...)``.
        inputs: validation inputs, not used in training.
        targets: their classes, integers.
        samples: posterior samples behind the mean; 0 leaves the mean's calibration as it is.
        seed: of the samples.
        batch_size: inputs per forward pass; None: all at once. The logits of all samples,
            [samples, inputs, classes], are kept in memory.
        statistics: BatchNorm statistics per sample, if `predict` will use them.

    >>> model = nn.Linear(1, 2, bias=False)
    >>> posterior = BernoulliPosterior({"weight": torch.tensor([[-9.0], [9.0]])})
    >>> x, y = torch.ones(400, 1), (torch.arange(400) % 4 > 0).long()
    >>> calibrated = calibrate(model, posterior, x, y)
    >>> from bayesbinn.prediction import predict
    >>> [round(p, 2) for p in predict(model, calibrated, x[:1]).probabilities[0].tolist()]
    [0.25, 0.75]
    """
    _check_targets(inputs, targets)
    if len(targets) < FEWEST_ROWS:
        warnings.warn(
            f"{len(targets)} validation rows are too few to calibrate: the scale is a cautious guess from the "
            f"accuracy, and classes get no shift; use {FEWEST_ROWS} rows or more",
            CalibrationWarning,
            stacklevel=2,
        )
    elif int(targets.min()) == int(targets.max()):
        warnings.warn(
            f"all {len(targets)} validation rows are of class {int(targets[0])}: they say nothing about the other "
            "classes, so that classes get no shift; use rows of every class",
            CalibrationWarning,
            stacklevel=2,
        )
    mode = _fitted(_all_outputs(model, posterior, inputs, 0, seed, batch_size, None), targets)
    if posterior is None:
        return LogitScale(mode=mode.scale, mode_shift=mode.shift)
    before = posterior.logit_scale
    mean = LogitFit(before.mean, before.mean_shift)
    if samples:
        mean = _fitted(_all_outputs(model, posterior, inputs, samples, seed, batch_size, statistics), targets)
    return posterior.with_logit_scale(LogitScale(mode.scale, mean.scale, mode.shift, mean.shift))


def _check_targets(inputs: Tensor, targets: Tensor) -> None:
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) != len(inputs):
        raise InvalidInput(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)} for {len(inputs)} inputs; "
            "one integer class per input is needed"
        )


def _all_outputs(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
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


def _fitted(logits: Tensor, targets: Tensor) -> LogitFit:
    low, high, classes = int(targets.min()), int(targets.max()), logits.shape[-1]
    if low < 0 or high >= classes:
        raise InvalidInput(f"targets lie between {low} and {high}; the model has classes 0 to {classes - 1}")
    if not bool(torch.isfinite(logits).all()):
        raise InvalidInput("the model's logits are not finite on the validation inputs; look for NaN in the inputs")
    return fit_logits(logits, targets)
