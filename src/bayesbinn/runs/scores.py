"""How good a network is on labeled examples, with the names that the commands report."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesbinn import metrics
from bayesbinn.prediction.predicting import Prediction

MAX_CLASSES = 20
"""With more classes than this, the report does not show the recall of each."""


def class_scores(probabilities: Tensor, targets: Tensor, classes: tuple[str, ...]) -> dict[str, Any]:
    """What accuracy hides when classes are unequal: each class's recall, and the accuracy of guessing."""
    found: dict[str, Any] = {
        "accuracy": 100 * metrics.accuracy(probabilities, targets),
        "balanced accuracy": 100 * metrics.balanced_accuracy(probabilities, targets),
        "majority accuracy": 100 * metrics.majority_accuracy(targets),
    }
    if len(classes) <= MAX_CLASSES:
        recalls = metrics.recall_per_class(probabilities, targets)
        found["recall"] = {name: 100 * recalls[k] for k, name in enumerate(classes) if k in recalls}
    return found


def classification_scores(prediction: Prediction, targets: Tensor) -> dict[str, float]:
    """The scores of a classifier; accuracies in percent."""
    p = prediction.probabilities
    return {
        "accuracy": 100 * metrics.accuracy(p, targets),
        "balanced accuracy": 100 * metrics.balanced_accuracy(p, targets),
        "NLL": metrics.nll(p, targets),
        "Brier": metrics.brier(p, targets),
        "ECE": metrics.ece(p, targets),
    }


def regression_scores(prediction: Prediction, targets: Tensor, unit: float) -> dict[str, float]:
    """RMSE in the unit of the targets, and the share of their variance that the network explains."""
    squares = (prediction.mean.view_as(targets) - targets).square().mean()
    variance = (targets - targets.mean()).square().mean()
    return {"RMSE": float(squares.sqrt()) * unit, "R²": float(1 - squares / variance)}
