"""From the outputs of one or more networks to probabilities and their uncertainty, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Prediction:
    """The same names as `bayesbinn.Prediction` has, as arrays; entropies are in nats."""

    probabilities: Array
    """[batch, classes]: the mean over the networks."""
    entropy: Array
    """[batch]: of `probabilities`, the total uncertainty: aleatoric + mutual information."""
    aleatoric: Array
    """[batch]: the networks' mean entropy: the uncertainty that remains when the weights are known."""
    mutual_information: Array
    """[batch]: how much the networks disagree; 0 for a single network."""

    @property
    def classes(self) -> NDArray[np.int64]:
        """[batch]: the most likely class."""
        likeliest: NDArray[np.int64] = self.probabilities.argmax(axis=-1)
        return likeliest


@dataclass(frozen=True)
class Regression:
    """Mean and unbiased standard deviation over the networks; 0 for a single network."""

    mean: Array
    std: Array

    def total_std(self, residual: float) -> NDArray[np.float64]:
        """The standard deviation of what is predicted, which includes the error that the networks share.

        >>> Regression(np.zeros(2, np.float32), np.array([0, 3], np.float32)).total_std(4.0)
        array([4., 5.])
        """
        total: NDArray[np.float64] = np.sqrt(self.std.astype(np.float64) ** 2 + residual**2)
        return total


def log_probabilities(logits: Array) -> NDArray[np.float64]:
    """log softmax along the last axis; a single logit z is that of class 1 of two.

    >>> np.exp(log_probabilities(np.array([[0.0]], dtype=np.float32)))
    array([[0.5, 0.5]])
    """
    wide = two_classes(logits).astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return result


def two_classes(logits: Array) -> Array:
    """A single logit z as the two logits (0, z); other logits unchanged."""
    return logits if logits.shape[-1] > 1 else np.concatenate([np.zeros_like(logits), logits], axis=-1)


def classified(logits: Array) -> Prediction:
    """[networks, batch, classes] scaled logits → the mean prediction and its uncertainty."""
    logs = log_probabilities(logits)
    each = np.exp(logs)
    mean = each.mean(axis=0)
    aleatoric = -_sum_p_log_p(each, logs).mean(axis=0)
    total = -_sum_p_log_p(mean, np.log(np.maximum(mean, np.finfo(np.float64).tiny)))
    return Prediction(*map(_single, (mean, total, aleatoric, np.maximum(total - aleatoric, 0.0))))


def joined(strips: Sequence[Prediction]) -> Prediction:
    """The predictions in order, joined."""
    return Prediction(*(np.concatenate([getattr(s, f.name) for s in strips]) for f in fields(Prediction)))


def mean_probabilities(logits: Array) -> Array:
    """[networks, batch, classes] scaled logits → the `probabilities` of `classified`, to the bit."""
    return _single(np.exp(log_probabilities(logits)).mean(axis=0))


def mean_logits(logits: Array) -> Array:
    """[networks, batch, classes] scaled logits → the logarithms of the mean probabilities."""
    mean: Array = (np.logaddexp.reduce(log_probabilities(logits), axis=0) - np.log(len(logits))).astype(np.float32)
    return mean


def mean_and_deviation(outputs: Array) -> tuple[Array, Array]:
    """[networks, batch, ...] → mean and unbiased standard deviation over the networks; 0 for a single network."""
    wide = outputs.astype(np.float64)
    std = wide.std(axis=0, ddof=1) if len(wide) > 1 else np.zeros_like(wide[0])
    return _single(wide.mean(axis=0)), _single(std)


def _sum_p_log_p(p: NDArray[np.float64], log_p: NDArray[np.float64]) -> Any:
    """0·log 0 is 0."""
    return np.where(p > 0, p * log_p, p * 0).sum(axis=-1)


def _single(x: NDArray[np.float64]) -> Array:
    return x.astype(np.float32)
