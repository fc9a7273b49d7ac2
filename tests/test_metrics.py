"""Metrics against hand-computed values, torchmetrics and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, brier_score_loss, log_loss, recall_score, roc_auc_score
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from bayesbinn import metrics
from bayesbinn.errors import InvalidInput

# Confidences 0.9, 0.6, 0.5, 0.7; right, wrong, right, wrong.
HAND_P = np.array([[0.9, 0.05, 0.05], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.7, 0.1, 0.2]])
HAND_Y = np.array([0, 2, 2, 1])


def random_predictions(seed: int, inputs: int = 500, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(inputs, classes, generator=generator), dim=1)
    return p, torch.where(
        torch.rand(inputs, generator=generator) < 0.5,
        p.argmax(1),
        torch.randint(classes, (inputs,), generator=generator),
    )


def test_recall_and_balanced_accuracy_match_scikit_learn() -> None:
    p, y = random_predictions(3)
    y[:300] = 2
    recalls = metrics.recall_per_class(p, y)
    np.testing.assert_allclose(list(recalls.values()), recall_score(y, p.argmax(1), average=None))
    assert metrics.balanced_accuracy(p, y) == pytest.approx(balanced_accuracy_score(y, p.argmax(1)))
    assert metrics.majority_accuracy(y) == pytest.approx(float((y == 2).float().mean()))
    assert metrics.recall_per_class(HAND_P, HAND_Y) == {0: 1.0, 1: 0.0, 2: 0.5}
    with pytest.raises(InvalidInput, match="one integer class per input"):
        metrics.majority_accuracy(np.array([0.5]))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (metrics.accuracy, 0.5),
        (metrics.nll, -(np.log(0.9) + np.log(0.3) + np.log(0.5) + np.log(0.1)) / 4),
        (metrics.brier, (0.015 + (0.01 + 0.36 + 0.49) + (0.04 + 0.09 + 0.25) + (0.49 + 0.81 + 0.04)) / 4),
        # Every confidence has its own bin: (|1 − 0.9| + |0 − 0.6| + |1 − 0.5| + |0 − 0.7|) / 4.
        (metrics.ece, 0.475),
    ],
)
def test_hand_computed_values(metric: Callable[..., float], expected: float) -> None:
    assert metric(HAND_P, HAND_Y) == pytest.approx(expected, abs=1e-9)
    tensors = torch.tensor(HAND_P, dtype=torch.float32, requires_grad=True), torch.tensor(HAND_Y)
    assert metric(*tensors) == pytest.approx(expected, abs=1e-6)
    assert isinstance(metric(*tensors), float)


def test_ece_with_two_bins_by_hand() -> None:
    # All four confidences share the upper bin: |0.5 − 0.675|.
    assert metrics.ece(HAND_P, HAND_Y, n_bins=2) == pytest.approx(0.175)


@pytest.mark.parametrize("seed", range(5))
def test_against_torchmetrics_and_scikit_learn(seed: int) -> None:
    p, y = random_predictions(seed)
    classes = p.shape[1]
    assert metrics.accuracy(p, y) == pytest.approx(float(multiclass_accuracy(p, y, classes, average="micro")))
    for bins in (1, 10, 15):
        theirs = float(multiclass_calibration_error(p, y, classes, n_bins=bins, norm="l1"))
        assert metrics.ece(p, y, n_bins=bins) == pytest.approx(theirs, abs=1e-6)
    wide = p.double() / p.double().sum(dim=1, keepdim=True)
    assert metrics.nll(wide, y) == pytest.approx(log_loss(y, wide, labels=range(classes)))
    theirs = brier_score_loss(y.numpy(), wide.numpy(), labels=range(classes), scale_by_half=False)
    assert metrics.brier(wide, y) == pytest.approx(theirs)


@pytest.mark.parametrize(("dtype", "bins"), [(torch.float32, 10), (torch.float64, 4)])
def test_confidences_on_the_edges_of_bins_fall_as_in_torchmetrics(dtype: torch.dtype, bins: int) -> None:
    """0.5 to 0.8 are edges of ten bins, 0.5 and 0.75 of four, and 1 is the last edge."""
    p = torch.tensor(
        [[0.5, 0.5], [0.6, 0.4], [0.7, 0.3], [0.75, 0.25], [0.2, 0.8], [1.0, 0.0], [0.95, 0.05]], dtype=dtype
    )
    y = torch.tensor([0, 1, 1, 0, 1, 0, 1])
    theirs = float(multiclass_calibration_error(p, y, 2, n_bins=bins, norm="l1"))
    assert metrics.ece(p, y, n_bins=bins) == pytest.approx(theirs, abs=1e-7)
    assert metrics.ece(p.numpy(), y.numpy(), n_bins=bins) == pytest.approx(theirs, abs=1e-7)


def test_nll_stays_finite_if_a_probability_was_rounded_to_zero() -> None:
    assert metrics.nll(np.array([[1.0, 0.0]]), np.array([1])) == pytest.approx(87.3365, abs=1e-3)


def test_half_precision_probabilities_are_accepted() -> None:
    p, y = random_predictions(0)
    assert metrics.accuracy(p.bfloat16(), y) == pytest.approx(metrics.accuracy(p, y), abs=0.02)


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_against_scikit_learn(ties: bool) -> None:
    inside, outside = torch.randn(200), torch.randn(90) + 0.8
    if ties:
        inside, outside = inside.round(), outside.round()
    labels = [0] * 200 + [1] * 90
    expected = roc_auc_score(labels, torch.cat([inside, outside]))
    assert 0.6 < expected < 0.9
    assert metrics.ood_auroc(inside, outside) == pytest.approx(expected)
    assert metrics.ood_auroc(outside, inside) == pytest.approx(1 - expected)


def test_auroc_by_hand() -> None:
    assert metrics.ood_auroc([0.0, 1.0], [2.0, 3.0]) == 1
    assert metrics.ood_auroc([5.0], [5.0, 5.0]) == 0.5


def test_flip_ratio_counts_weights_and_not_parameters() -> None:
    before = {"a": torch.tensor([[1.0, -1.0], [1.0, 1.0]]), "b": torch.ones(6)}
    after = {"b": torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0, 1.0]), "a": torch.tensor([[1.0, 1.0], [-1.0, 1.0]])}
    assert metrics.flip_ratio(before, after) == pytest.approx(3 / 10)
    assert metrics.flip_ratio(before, before) == 0


@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        (np.ones(3), np.zeros(3, int), r"probabilities have shape \(3,\); \[inputs, classes\]"),
        (np.ones((0, 3)), np.zeros(0, int), r"probabilities have shape \(0, 3\)"),
        (HAND_P, HAND_Y[:3], r"targets have shape \(3,\) for 4 inputs"),
        (HAND_P, HAND_Y[:, None], r"targets have shape \(4, 1\)"),
        (HAND_P, HAND_Y.astype(float), "targets are float64; they must be integers"),
        (HAND_P, HAND_Y + 1, "targets range from 1 to 3; the classes are 0 to 2"),
        (HAND_P, HAND_Y - 1, "targets range from -1 to 1"),
        (np.log(HAND_P), HAND_Y, "apply softmax to logits first"),
        (HAND_P * 2, HAND_Y, r"row sums from 2 to 2; values must be 0 or more and each row must sum to 1"),
        (HAND_P * np.nan, HAND_Y, "apply softmax"),
    ],
)
@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.nll, metrics.brier, metrics.ece])
def test_bad_predictions_get_one_line(metric: Callable[..., float], p: Any, y: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        metric(p, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ece(HAND_P, HAND_Y, n_bins=0), "n_bins=0"),
        (lambda: metrics.ood_auroc([], [1.0]), r"scores_in has shape \(0,\)"),
        (lambda: metrics.ood_auroc([1.0], [[1.0]]), r"scores_out has shape \(1, 1\)"),
        (lambda: metrics.ood_auroc([1.0], [float("nan")]), "scores_out contains NaN"),
        (lambda: metrics.flip_ratio({}, {}), "no weights"),
        (
            lambda: metrics.flip_ratio({"fc.weight": [1]}, {"fc1.weight": [1]}),
            "'fc.weight' is only in `before`.*'fc1.wei",
        ),
        (lambda: metrics.flip_ratio({"a": [1]}, {"a": [1], "b": [1]}), "'b' is only in `after`"),
        (lambda: metrics.flip_ratio({"a": [1, 1]}, {"a": [1]}), r"'a' has shape \(2,\) before and \(1,\) after"),
        (lambda: metrics.flip_ratio({"a": [1.0]}, {"a": [0.5]}), "'a' has values other than -1 and \\+1"),
    ],
)
def test_other_bad_input_gets_one_line(call: Callable[[], float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()
