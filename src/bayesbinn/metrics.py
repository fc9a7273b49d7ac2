"""How accurate and how well calibrated predictions are. All functions take torch tensors or NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bayesbinn.errors import InvalidInput, nearest

Array = npt.NDArray[Any]

# The rounding error that a row of float16 probabilities may have.
_SUM_TOLERANCE = 1e-2


def accuracy(probabilities: Any, targets: Any) -> float:
    """The fraction of inputs whose most likely class is the target.

    >>> accuracy(np.array([[0.8, 0.2], [0.6, 0.4]]), np.array([0, 1]))
    0.5
    """
    p, y = _checked(probabilities, targets)
    return float((p.argmax(axis=1) == y).mean())


def recall_per_class(probabilities: Any, targets: Any) -> dict[int, float]:
    """The fraction of each class's inputs that are classified correctly. Classes without inputs are omitted.

    >>> p = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.9, 0.1]])
    >>> recall_per_class(p, np.array([0, 0, 1, 1]))
    {0: 1.0, 1: 0.5}
    """
    p, y = _checked(probabilities, targets)
    correct = p.argmax(axis=1) == y
    return {int(label): float(correct[y == label].mean()) for label in np.unique(y)}


def balanced_accuracy(probabilities: Any, targets: Any) -> float:
    """The mean recall over the classes, so that a rare class counts as much as a common one.

    Always guessing the same one of k classes gives 1/k, however common that class is.

    >>> balanced_accuracy(np.array([[0.8, 0.2], [0.6, 0.4], [0.7, 0.3]]), np.array([0, 0, 1]))
    0.5
    """
    recalls = recall_per_class(probabilities, targets)
    return sum(recalls.values()) / len(recalls)


def majority_accuracy(targets: Any) -> float:
    """The accuracy of always guessing the most common class. A model below this has learned nothing.

    >>> majority_accuracy(np.array([0, 1, 1, 1]))
    0.75
    """
    y = _numpy(targets)
    if y.ndim != 1 or y.size == 0 or not np.issubdtype(y.dtype, np.integer):
        raise InvalidInput(f"targets are {y.dtype} of shape {y.shape}; one integer class per input is needed")
    return float(np.unique(y, return_counts=True)[1].max() / y.size)


def nll(probabilities: Any, targets: Any) -> float:
    """Negative log-likelihood: the mean of −log p(target), in nats.

    A probability rounded to 0 counts as the smallest normal float32, so that the result
    stays finite (at most 87.3 per input).

    >>> round(nll(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1])), 4)  # (log 2 + log 4/3) / 2
    0.4904
    """
    p, y = _checked(probabilities, targets)
    picked = np.maximum(p[np.arange(len(y)), y], np.finfo(np.float32).tiny)
    return float(-np.log(picked).mean())


def brier(probabilities: Any, targets: Any) -> float:
    """The mean of Σₖ (pₖ − [k is the target])²: 0 is perfect, 2 is the worst.

    >>> round(brier(np.array([[0.8, 0.2]]), np.array([1])), 4)  # 0.8² + 0.8²
    1.28
    """
    p, y = _checked(probabilities, targets)
    difference = p.copy()
    difference[np.arange(len(y)), y] -= 1
    return float(np.square(difference).sum(axis=1).mean())


def ece(probabilities: Any, targets: Any, n_bins: int = 15) -> float:
    """Expected calibration error: Σ over bins of (share of inputs)·|accuracy − mean confidence|.

    Confidence is the probability of the most likely class. The bins have equal width and include their lower edge; a
    confidence of exactly 1 has a separate bin. This is the definition in torchmetrics, up to the rounding of the edges.

    >>> p = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    >>> round(ece(p, np.array([0, 1, 1, 1])), 4)  # ½·|0.5 − 0.9| + ½·|1 − 0.6|
    0.4
    """
    p, y = _checked(probabilities, targets)
    if n_bins < 1:
        raise InvalidInput(f"n_bins={n_bins}: must be 1 or more")
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    # The float32 number 0.7 is below the float64 edge 0.7: round the edges the way the confidences were rounded.
    wide = "float64" in str(getattr(probabilities, "dtype", "float64"))
    edges = np.linspace(0, 1, n_bins + 1).astype(np.float64 if wide else np.float32)
    index = np.searchsorted(edges, confidence.clip(0, 1), side="right") - 1
    gaps = np.bincount(index, weights=correct - confidence, minlength=n_bins + 1)
    return float(np.abs(gaps).sum() / len(y))


def ood_auroc(scores_in: Any, scores_out: Any) -> float:
    """How well a score separates unfamiliar from familiar inputs: P(score_out > score_in), with ties counting half.

    A higher score means "more out of distribution": entropy or mutual information, not confidence.

    >>> ood_auroc(np.array([0.1, 0.2, 0.4]), np.array([0.3, 0.9]))  # 5 of 6 pairs in order
    0.8333333333333334
    """
    inside, outside = (_scores(name, s) for name, s in (("scores_in", scores_in), ("scores_out", scores_out)))
    inside = np.sort(inside)
    below = np.searchsorted(inside, outside, side="left") + np.searchsorted(inside, outside, side="right")
    return float(below.mean() / (2 * len(inside)))


def flip_ratio(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """The fraction of binary weights whose sign differs between two points in time, such as two training steps.

    Both are weights of ±1 by parameter name, as ``posterior.mode()`` returns them.

    >>> flip_ratio({"w": np.array([1, -1, 1, 1])}, {"w": np.array([1, 1, 1, 1])})
    0.25
    """
    if not before:
        raise InvalidInput("flip_ratio got no weights")
    for name in sorted(before.keys() ^ after.keys()):
        there, other = ("before", after) if name in before else ("after", before)
        raise InvalidInput(f"{name!r} is only in `{there}`; both need the same names.{nearest(name, other)}")
    flipped = total = 0
    for name in before:
        old, new = _weights(name, before[name]), _weights(name, after[name])
        if old.shape != new.shape:
            raise InvalidInput(f"{name!r} has shape {old.shape} before and {new.shape} after")
        flipped += int((old != new).sum())
        total += old.size
    return flipped / total


def _numpy(values: Any) -> Array:
    """Convert to NumPy; torch floats are widened first because NumPy has no bfloat16."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
        return np.asarray(values.numpy())
    return np.asarray(values)


def _checked(probabilities: Any, targets: Any) -> tuple[Array, Array]:
    p, y = _numpy(probabilities).astype(np.float64), _numpy(targets)
    if p.ndim != 2 or 0 in p.shape:
        raise InvalidInput(f"probabilities have shape {p.shape}; [inputs, classes] is needed")
    if y.shape != p.shape[:1]:
        raise InvalidInput(f"targets have shape {y.shape} for {len(p)} inputs; one class per input is needed")
    if not np.issubdtype(y.dtype, np.integer):
        raise InvalidInput(f"targets are {y.dtype}; they must be integers, with classes counted from 0")
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise InvalidInput(f"targets range from {y.min()} to {y.max()}; the classes are 0 to {p.shape[1] - 1}")
    sums = p.sum(axis=1)
    if not (np.isfinite(sums).all() and p.min() >= 0 and np.abs(sums - 1).max() <= _SUM_TOLERANCE):
        raise InvalidInput(
            f"probabilities range from {p.min():g} to {p.max():g} with row sums from {sums.min():g} to {sums.max():g}; "
            "values must be 0 or more and each row must sum to 1; apply softmax to logits first"
        )
    return p, y


def _scores(name: str, values: Any) -> Array:
    scores = _numpy(values)
    if scores.ndim != 1 or scores.size == 0:
        raise InvalidInput(f"{name} has shape {scores.shape}; one score per input is needed")
    if np.isnan(scores).any():
        raise InvalidInput(f"{name} contains NaN")
    return scores


def _weights(name: str, values: Any) -> Array:
    weights = _numpy(values)
    if not (np.abs(weights) == 1).all():
        raise InvalidInput(f"{name!r} has values other than -1 and +1; pass binary weights")
    return weights
