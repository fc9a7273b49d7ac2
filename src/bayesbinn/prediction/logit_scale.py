"""Calibration of a trained network: the scale and the shifts of its logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor, nn

from bayesbinn.errors import CalibrationWarning, InvalidInput
from bayesbinn.posterior import BernoulliPosterior, LogitScale
from bayesbinn.prediction.batchnorm import BatchNormStatistics
from bayesbinn.prediction.ensemble import Ensemble
from bayesbinn.prediction.functional import evaluating
from bayesbinn.prediction.logit_fit import FEWEST_ROWS, LogitFit, fit_logits
from bayesbinn.prediction.predicting import class_logits


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
    on_progress: Callable[[float], None] = ...,
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
    on_progress: Callable[[float], None] = ...,
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
    on_progress: Callable[[float], None] = ...,
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
    on_progress: Callable[[float], None] = lambda share: None,
) -> BernoulliPosterior | LogitScale:
    """The same posterior with calibrated probabilities, for the mode and for the mean; without one, a `LogitScale`.

    The paper's networks end in BatchNorm without gain and bias: their logits have zero mean and unit
    variance whatever they learned. Raw probabilities are underconfident and cannot express that one
    class is more frequent than another. `predict` then uses softmax(factor·(logits + shift)): a factor, and a shift
    for each class if there are enough rows to show that shifts help. A shift may change which class is
    most likely: with classes of 95 % and 5 % and inputs that say nothing, every prediction becomes 95 % : 5 %.

    Few rows never lead to extreme probabilities: factor and shifts have priors, and cross-validation decides
    on the shifts (see `bayesbinn.prediction.logit_fit`). A class with fewer than 2 rows gets no shift. With fewer than
    20 rows, or rows of one class only, you get a `CalibrationWarning`.

    Args:
        model: a classifier, as in `predict`.
        posterior: its current calibration is ignored. None: the model's weights as they are, such as
            those of a full-precision network; pass the result as ``predict(..., calibration=...)``.
        inputs: validation inputs, not used in training.
        targets: their classes, integers.
        samples: posterior samples to average for the mean; 0 leaves the mean's calibration as it is.
        seed: seed of the samples.
        batch_size: inputs per forward pass; None: all at once. The logits of all samples,
            [samples, inputs, classes], are kept in memory.
        statistics: BatchNorm statistics per sample, if `predict` will use them.
        on_progress: called after every forward pass with the share of them that is done, from 0 to 1.

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
            f"accuracy, and classes get no shift; use at least {FEWEST_ROWS} rows",
            CalibrationWarning,
            stacklevel=2,
        )
    elif int(targets.min()) == int(targets.max()):
        warnings.warn(
            f"all {len(targets)} validation rows are of class {int(targets[0])} and say nothing about the other "
            "classes, so classes get no shift; use rows of every class",
            CalibrationWarning,
            stacklevel=2,
        )
    ensemble = Ensemble(model, posterior)
    # The last gains of networks side by side learned the logits' unit with the cross-entropy.
    centre = 1.0 if ensemble.side_by_side else None
    # Samples of a saturated posterior are the mode, so that their mean needs no passes.
    all_alike = posterior is not None and posterior.saturated and statistics is None
    others = samples if posterior is not None and not all_alike else 0
    shares = 1 + others
    outputs = _all_outputs(ensemble, inputs, batch_size, lambda share: on_progress(share / shares))
    mode = _fitted(outputs, targets, centre)
    if posterior is None:
        return LogitScale(mode=mode.scale, mode_shift=mode.shift)
    before = posterior.logit_scale
    mean = mode if samples else LogitFit(before.mean, before.mean_shift)
    if others:
        ensemble = Ensemble(model, posterior, samples, seed, statistics)
        outputs = _all_outputs(ensemble, inputs, batch_size, lambda share: on_progress((1 + others * share) / shares))
        mean = _fitted(outputs, targets, centre)
    return posterior.with_logit_scale(LogitScale(mode.scale, mean.scale, mode.shift, mean.shift))


def _check_targets(inputs: Tensor, targets: Tensor) -> None:
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) != len(inputs):
        raise InvalidInput(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)} for {len(inputs)} inputs; "
            "one integer class per input is needed"
        )


def _all_outputs(
    ensemble: Ensemble, inputs: Tensor, batch_size: int | None, on_progress: Callable[[float], None]
) -> Tensor:
    """Two or more logits per input: [samples, inputs, classes]."""
    groups: list[list[Tensor]] = []
    done, total = 0, len(ensemble) * max(1, ensemble.side_by_side) * len(inputs)
    with evaluating(ensemble.model):
        for rows, outputs in ensemble.outputs(inputs, batch_size=batch_size):
            if rows.start == 0:
                groups.append([])
            groups[-1].append(class_logits(outputs))
            done += len(outputs) * (rows.stop - rows.start)
            on_progress(done / total)
    return torch.cat([torch.cat(group, dim=1) for group in groups])


def _fitted(logits: Tensor, targets: Tensor, centre: float | None) -> LogitFit:
    low, high, classes = int(targets.min()), int(targets.max()), logits.shape[-1]
    if low < 0 or high >= classes:
        raise InvalidInput(f"targets range from {low} to {high}; the model has classes 0 to {classes - 1}")
    if not bool(torch.isfinite(logits).all()):
        raise InvalidInput("the model's logits are not finite on the validation inputs; check the inputs for NaN")
    return fit_logits(logits, targets, centre=centre)
