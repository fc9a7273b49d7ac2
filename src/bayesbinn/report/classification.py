"""How good a classifier is on the test rows: scores, confusion, calibration, and accuracy if it may refuse rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbinn import metrics
from bayesbinn.posterior import LogitScale
from bayesbinn.prediction.predicting import Prediction
from bayesbinn.report.blocks import Block, Drawing, Matrix, Missing, Row, Section, Table, Text
from bayesbinn.report.drawing import DASHES, QUIET, SERIES, canvas, drawn, thinned
from bayesbinn.runs.evaluate import networks_averaged, predicted, samples_worth_drawing
from bayesbinn.runs.scores import MAX_CLASSES, classification_scores
from bayesbinn.runs.trained import Trained

BINS = 10
MAX_CONFUSIONS = 15
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scored:
    """A classifier's predictions of the test rows, before and after calibration."""

    classes: tuple[str, ...]
    targets: NDArray[np.int64]
    networks: int
    """How many networks the probabilities are the mean of; 0: they are those of a single one."""
    raw: Prediction
    calibrated: Prediction
    calibration: LogitScale
    notes: tuple[str, ...]

    @property
    def how(self) -> str:
        """What predicts, in words."""
        return f"the mean of {self.networks} networks" if self.networks else "the most likely network"

    @property
    def is_calibrated(self) -> bool:
        return self.calibration != LogitScale()


@dataclass(frozen=True)
class Reliability:
    """Accuracy and mean confidence in bins of equal width; empty bins are left out."""

    confidence: Sequence[float]
    accuracy: Sequence[float]
    share: Sequence[float]
    """The share of the rows in each bin."""
    ece: float


def gather(trained: Trained, x: Tensor, y: Tensor, data_dir: Path | None) -> Scored:
    """Predict the test rows twice, as trained and calibrated."""
    samples = samples_worth_drawing(trained, None)
    calibration, notes = trained.find_calibration(data_dir)
    raw = predicted(trained, x, samples, LogitScale(), data_dir)
    calibrated = raw if calibration == LogitScale() else predicted(trained, x, samples, calibration, data_dir)
    return Scored(
        trained.card.classes, y.numpy(), networks_averaged(trained, samples), raw, calibrated, calibration, notes
    )


def reliability(probabilities: Tensor, targets: NDArray[np.int64]) -> Reliability:
    """The points of a reliability diagram."""
    p = probabilities.double().numpy()
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == targets
    index = np.minimum((confidence * BINS).astype(int), BINS - 1)
    used = [b for b in range(BINS) if (index == b).any()]
    return Reliability(
        [float(confidence[index == b].mean()) for b in used],
        [float(correct[index == b].mean()) for b in used],
        [float((index == b).mean()) for b in used],
        metrics.ece(probabilities, targets),
    )


def refusal(probabilities: Tensor, targets: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The share of rows refused, least confident first, and the accuracy on the others, both in percent.

    >>> import torch
    >>> p = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    >>> [each.tolist() for each in refusal(p, np.array([0, 1]))]
    [[0.0, 50.0], [50.0, 100.0]]
    """
    p = probabilities.double().numpy()
    order = np.argsort(-p.max(axis=1), kind="stable")
    correct = (p.argmax(axis=1) == targets)[order]
    kept = np.arange(len(correct), 0, -1)
    accuracy = correct.cumsum()[::-1] / kept
    return 100 * (1 - kept / len(correct)), 100 * accuracy


def scores_section(scored: Scored) -> Section:
    """Scores, and the accuracy of guessing the most common class."""
    columns = {"as trained": scored.raw, "calibrated": scored.calibrated}
    if not scored.is_calibrated:
        columns.pop("calibrated")
    found = {name: classification_scores(each, torch.from_numpy(scored.targets)) for name, each in columns.items()}
    keys = next(iter(found.values())).keys()
    rows = [[key, *(f"{found[name][key]:.4g}" for name in found)] for key in keys]
    rows.append(
        [
            "accuracy of guessing the most common class",
            *[f"{100 * metrics.majority_accuracy(scored.targets):.4g}"] * len(found),
        ]
    )
    caption = f"{len(scored.targets):,} test rows, predicted by {scored.how}; accuracies in percent"
    blocks: list[Block] = [Table(caption, ["score", *found], rows)]
    blocks += [Text(f"Note: {note}.") for note in scored.notes]
    return Section("Test scores", blocks)


def confusion_section(scored: Scored) -> Section:
    """A matrix for up to 20 classes, and the most common mistakes."""
    count, guesses = len(scored.classes), scored.calibrated.classes.numpy()
    table = np.zeros((count, count), dtype=np.int64)
    np.add.at(table, (scored.targets, guesses), 1)
    blocks: list[Block] = []
    if count <= MAX_CLASSES:
        shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        blocks.append(
            Matrix(
                "Confusion matrix: true classes in rows, predicted classes in columns, numbers of test rows",
                "true ╲ predicted",
                scored.classes,
                scored.classes,
                table.tolist(),
                shares.tolist(),
            )
        )
    wrong = table.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[: MAX_CONFUSIONS if count > MAX_CLASSES else 5]
    pairs = [divmod(int(place), count) for place in order]
    rows = [
        [scored.classes[t], scored.classes[g], str(wrong[t, g]), f"{100 * wrong[t, g] / table[t].sum():.1f} %"]
        for t, g in pairs
        if wrong[t, g]
    ]
    if rows:
        head = ["true", "predicted as", "rows", "of its class"]
        blocks.append(Table("The most common mistakes", head, rows, words=2))
    else:
        blocks.append(Text("Every test row is classified correctly."))
    return Section("Confusion", blocks)


def certainty_section(scored: Scored) -> Section:
    """Reliability before and after calibration, and accuracy against refusal."""
    blocks: list[Block] = [Row([_draw_reliability(scored), _draw_refusal(scored)])]
    if not scored.is_calibrated:
        blocks.append(Missing("the diagram after calibration: the run has no validation rows to calibrate on"))
    return Section("Certainty", blocks)


def _draw_reliability(scored: Scored) -> Drawing:
    shown = {"as trained": reliability(scored.raw.probabilities, scored.targets)}
    if scored.is_calibrated:
        shown["calibrated"] = reliability(scored.calibrated.probabilities, scored.targets)
    with canvas(height=3.3) as (figure, axes):
        axis = axes[0, 0]
        axis.plot([0, 1], [0, 1], color=QUIET, linewidth=0.9, linestyle=":")
        for index, (name, each) in enumerate(shown.items()):
            label = f"{name}, ECE {each.ece:.3f}"
            color = SERIES[1 - index]
            axis.plot(each.confidence, each.accuracy, color=color, linestyle=DASHES[1 - index], label=label)
            sizes = [6 + 120 * share for share in each.share]
            axis.scatter(each.confidence, each.accuracy, s=sizes, color=color, marker="os"[index], alpha=0.8)
        axis.set_xlim(0, 1.02)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("confidence")
        axis.set_ylabel("accuracy")
        axis.legend(loc="best")
        said = "; ".join(f"{name}: expected calibration error {each.ece:.3f}" for name, each in shown.items())
        caption = (
            "Reliability: of predictions with a confidence of 0.8, 80 % should be correct. Larger marks hold more rows."
        )
        return drawn(figure, "reliability", f"Reliability diagram of the test rows. {said}.", caption)


def _draw_refusal(scored: Scored) -> Drawing:
    refused, accuracy = refusal(scored.calibrated.probabilities, scored.targets)
    with canvas(height=3.3) as (figure, axes):
        axis = axes[0, 0]
        points = thinned(list(zip(refused, accuracy, strict=True)))
        axis.plot(*zip(*points, strict=True), color=SERIES[2])
        axis.set_xlim(0, 100)
        axis.set_xlabel("rows refused, least certain first, %")
        axis.set_ylabel("accuracy on the others, %")
        at = {
            share: float(accuracy[np.searchsorted(refused, share)]) for share in (0, 5, 10, 20) if share <= refused[-1]
        }
        said = ", ".join(f"{value:.2f} % when {share} % are refused" for share, value in at.items())
        caption = f"Accuracy if uncertain rows are refused: {said}."
        return drawn(figure, "refusal", f"Accuracy against the share of refused test rows: {said}.", caption)
