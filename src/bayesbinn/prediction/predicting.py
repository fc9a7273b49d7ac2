"""Prediction by the posterior's mode or by the mean over samples, with the uncertainty split into its parts.

The model is called as a pure function of its weights (`PureNetwork`) and never written to.
Network `i` of a seed is always ``posterior.draw(seed, i)`` (`Ensemble`), so neither the size of the
batches nor the grouping of the samples changes the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from bayesbinn.errors import InvalidInput
from bayesbinn.posterior import BernoulliPosterior, LogitScale
from bayesbinn.prediction.ensemble import Ensemble
from bayesbinn.prediction.functional import evaluating

if TYPE_CHECKING:
    from bayesbinn.prediction.batchnorm import BatchNormStatistics

Task = Literal["classification", "regression"]


_FIELDS = {
    "classification": ("probabilities", "entropy", "aleatoric", "mutual_information"),
    "regression": ("mean", "std"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What `predict` returns: for classification `probabilities`, `classes` and the entropies, for regression
    `mean` and `std`. Asking for a result of the other task is an error."""

    task: Task
    samples: int
    """How many posterior samples were averaged; 0 is the mode."""
    tensors: Mapping[str, Tensor]

    @property
    def probabilities(self) -> Tensor:
        """[batch, classes]: the mean of the samples' probabilities."""
        return self._get("probabilities")

    @property
    def classes(self) -> Tensor:
        """[batch]: the most likely class."""
        return self.probabilities.argmax(dim=-1)

    @property
    def entropy(self) -> Tensor:
        """[batch]: entropy of `probabilities` in nats, the total uncertainty: aleatoric + mutual information."""
        return self._get("entropy")

    @property
    def aleatoric(self) -> Tensor:
        """[batch]: the samples' mean entropy in nats: the uncertainty that remains when the weights are known."""
        return self._get("aleatoric")

    @property
    def mutual_information(self) -> Tensor:
        """[batch]: how much the samples disagree, in nats: the uncertainty about the weights. 0 at the mode."""
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
    class is most likely. Probabilities are averaged, never logits. The model runs in eval mode; its weights,
    buffers, gradients and training flags and torch's random state do not change.

    Args:
        model: returns logits [batch, classes]; a single logit, [batch] or [batch, 1], is that of class
            1 of two. For regression, any shape [batch, ...].
        posterior: where the binary weights come from; None: the model's weights as they are.
        x: the inputs, along the first axis.
        samples: how many samples to average over.
        task: "classification" or "regression".
        seed: seed of the samples. The same seed draws the same networks.
        batch_size: inputs per forward pass; None: all at once.
        statistics: BatchNorm statistics per sample, from ``recalibrate(..., samples, seed=seed)``.
        memory_budget: bytes that the samples of one vectorized pass may take (an estimate). By
            default 16 MiB on a CPU, where more is not faster, and 1 GiB elsewhere. If fewer than two
            samples fit, or `torch.func.vmap` cannot run the model, samples run one by one.
        calibration: factor and shifts of the logits; None: those of the posterior, if there is one.
            For a model without a posterior, pass the result of ``calibrate(model, None, ...)``.

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
    ensemble = Ensemble(model, posterior, samples, seed, statistics)
    scale = ensemble.calibration(calibration)
    moments, dtype = _Moments(x), torch.float32
    with evaluating(model):
        for rows, outputs in ensemble.outputs(x, batch_size=batch_size, memory_budget=memory_budget):
            dtype = torch.float64 if outputs.dtype is torch.float64 else torch.float32
            moments.add(rows, _wide(outputs) if task == "regression" else _probabilities_and_entropy(outputs, *scale))
    averaged = samples if ensemble.side_by_side < 2 else len(ensemble) * ensemble.side_by_side
    tensors = (_regression if task == "regression" else _classification)(moments, averaged)
    _check_defined(x, tensors[_FIELDS[task][0]])
    return Prediction(task, samples, MappingProxyType({name: value.to(dtype) for name, value in tensors.items()}))


def _check_defined(x: Tensor, predicted: Tensor) -> None:
    """Reject NaN, for which argmax would return class 0."""
    lost = ~torch.isfinite(predicted if predicted.dim() == 1 else predicted.flatten(1).sum(1))
    if bool(lost.any()):
        row = int(lost.nonzero()[0])
        whole = not x.is_floating_point() or bool(torch.isfinite(x[row]).all())
        reason = "the network's output is not finite" if whole else "the input has a NaN or infinite value"
        raise InvalidInput(f"input {row} has no prediction ({int(lost.sum())} such inputs): {reason}; fix it")


# ---- averages ------------------------------------------------------------------------------------


class _Moments:
    """Mean and sum of squared deviations over samples, merged group by group."""

    def __init__(self, x: Tensor) -> None:
        self._x, self._groups = x, 0
        self.mean = self.squares = self._count = torch.empty(0)

    def add(self, rows: slice, values: Tensor) -> None:
        """Add `values` [samples, rows, ...], more samples of these rows."""
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


def _probabilities_and_entropy(outputs: Tensor, scale: float, shift: tuple[float, ...]) -> Tensor:
    """[samples, batch, classes + 1]: the values to average over samples."""
    logits = class_logits(outputs)
    if shift and len(shift) != logits.shape[-1]:
        raise InvalidInput(
            f"the calibration has shifts for {len(shift)} classes, the model has {logits.shape[-1]}; "
            "calibrate this model"
        )
    p = torch.softmax(shifted(logits, shift) * scale, dim=-1)
    return torch.cat([p, entropy(p).unsqueeze(-1)], dim=-1)


def _classification(moments: _Moments, averaged: int) -> dict[str, Tensor]:
    probabilities, aleatoric = moments.mean[:, :-1], moments.mean[:, -1]
    total = entropy(probabilities)
    # By Jensen's inequality this is never below 0, except for rounding errors.
    information = (total - aleatoric).clamp(min=0) if averaged else torch.zeros_like(total)
    return {
        "probabilities": probabilities,
        "entropy": total,
        "aleatoric": total - information,
        "mutual_information": information,
    }


def _regression(moments: _Moments, averaged: int) -> dict[str, Tensor]:
    # At the mode the squares are 0; one sample has no unbiased estimate: 0/0.
    variance = moments.squares / (averaged - 1) if averaged else moments.squares
    return {"mean": moments.mean, "std": variance.sqrt()}


def class_logits(outputs: Tensor) -> Tensor:
    """Logits [samples, batch, classes] from a classifier's outputs; a single logit is that of class 1 of two.

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
    """logits + shift along the last axis; an empty shift means no shift."""
    return logits + torch.tensor(shift, dtype=logits.dtype, device=logits.device) if len(shift) else logits


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p·log p over the last axis, in nats.

    >>> round(entropy(torch.tensor([0.5, 0.5, 0.0])).item(), 4)
    0.6931
    """
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(dim=-1)


def _wide(outputs: Tensor) -> Tensor:
    """float64, so that the order of summation does not matter; Apple GPUs do not support it."""
    return outputs.to(torch.float32 if outputs.device.type == "mps" else torch.float64)
