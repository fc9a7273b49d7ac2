"""How a run learned: accuracy or RMSE, loss and flips by epoch, over the authors' curves if there are any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayesbinn.experiments.config import Experiment, load_experiment, preset_names
from bayesbinn.paper.figure_curves import authors_curves
from bayesbinn.paper.published import DATASETS, EPOCHS
from bayesbinn.report.blocks import Block, Drawing, Missing, Row, Section, Text
from bayesbinn.report.drawing import DASHES, QUIET, SERIES, canvas, drawn, logarithmic, thinned, whole_numbers
from bayesbinn.runs.best_epoch import best_epoch

_ACCURACIES = {
    "train_accuracy": "train",
    "validation_accuracy": "validation",
    "test_accuracy": "test",
    "test_accuracy_mean": "test (mean)",
}
_ERRORS = {"validation_rmse": "validation", "test_rmse": "test"}
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curves:
    """Points (epoch, value) by name."""

    scores: Mapping[str, Points]
    unit: str
    """What the scores are: accuracy in percent, or RMSE."""
    loss: Points
    flips: Points
    """The share of binary weights whose sign changed during the epoch, in percent."""
    authors: Mapping[str, Points]
    """The authors' mean over seeds, by part; empty if this is not an experiment of the paper."""
    best: int | None
    """The epoch with the best validation score."""


def gather(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> Curves:
    """The curves in a run's metrics."""
    of_regression = bool(rows) and "validation_rmse" in rows[0]
    names = _ERRORS if of_regression else _ACCURACIES
    scores = {name: points for key, name in names.items() if (points := _points(rows, key))}
    if scores.get("test (mean)") == scores.get("test"):  # a posterior that is a single network
        scores.pop("test (mean)", None)
    binary = experiment.method.name != "float"
    best = best_epoch([dict(row) for row in rows])
    return Curves(
        scores,
        "RMSE" if of_regression else "Accuracy in percent",
        _points(rows, "train_loss"),
        [(epoch, 100 * value) for epoch, value in _points(rows, "flip_ratio")] if binary else [],
        _authors(experiment, len(rows)),
        None if best is None else best["epoch"],
    )


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> Points:
    found = [(float(row["epoch"]), row.get(key)) for row in rows]
    return [(epoch, float(value)) for epoch, value in found if value is not None and math.isfinite(value)]


def _authors(experiment: Experiment, epochs: int) -> dict[str, Points]:
    """The authors' curves, if the data, the network, the method and its settings are the paper's."""
    dataset = experiment.data.name
    if dataset not in DATASETS or dataset not in preset_names() or experiment.method.name != "bayesbinn":
        return {}
    paper = load_experiment(dataset, method="bayesbinn")
    if experiment.model != paper.model or experiment.method.settings != paper.method.settings:
        return {}
    found = {}
    for (name, part), values in authors_curves().items():
        if name == dataset:
            mean = values.mean(axis=0)[:epochs]
            found[part] = [(float(epoch), float(value)) for epoch, value in enumerate(mean, 1)]
    return found


def section(curves: Curves, experiment: Experiment) -> Section:
    """The drawings."""
    if not curves.loss:
        return Section("Training", [Missing("no epoch is finished yet")])
    blocks: list[Block] = [_draw_scores(curves)]
    if curves.scores:
        blocks.append(_draw_line(curves.loss, "loss", "training loss", "The training loss by epoch."))
    if curves.flips:
        blocks.append(_draw_flips(curves))
    about: list[Block] = [Row(blocks)]
    if curves.authors and experiment.training.epochs != EPOCHS:
        own = experiment.training.epochs
        said = f"The authors' schedule has {EPOCHS} epochs, this one {own}: the learning rate in a given epoch differs."
        about.append(Text(said))
    return Section("Training", about)


def _draw_scores(curves: Curves) -> Drawing:
    if not curves.scores:
        return _draw_line(curves.loss, "scores", "training loss", "The training loss by epoch.")
    with canvas() as (figure, axes):
        axis = axes[0, 0]
        for index, (name, points) in enumerate(curves.scores.items()):
            _line(axis, points, name, SERIES[index], DASHES[index])
        for index, (name, points) in enumerate(curves.authors.items()):
            _line(axis, points, f"{name}, authors", SERIES[index], DASHES[2], width=1.0)
        if curves.best is not None:
            axis.axvline(curves.best, color=QUIET, linewidth=0.8, linestyle=":")
        axis.set_xlabel("epoch")
        whole_numbers(axis)
        axis.set_ylabel(curves.unit)
        axis.legend(ncols=2 if curves.authors else 1)
        last = ", ".join(f"{name} {points[-1][1]:.4g}" for name, points in curves.scores.items())
        caption = f"{curves.unit} by epoch."
        if curves.best is not None:
            caption += f" The vertical line marks epoch {curves.best}, the best on validation rows."
        if curves.authors:
            caption += " Dotted: the mean of the authors' five runs."
        alt = f"{curves.unit} over {int(curves.loss[-1][0])} epochs. At the end: {last}."
        return drawn(figure, "curves", alt, caption)


def _draw_flips(curves: Curves) -> Drawing:
    with canvas() as (figure, axes):
        axis = axes[0, 0]
        shown = [(epoch, value) for epoch, value in curves.flips if value > 0]
        _line(axis, shown, "flips", SERIES[3], "-")
        if shown:
            logarithmic(axis)
        axis.set_xlabel("epoch")
        whole_numbers(axis)
        axis.set_ylabel("weights that flipped, %")
        first, last = curves.flips[0][1], curves.flips[-1][1]
        alt = f"Share of binary weights that flipped in an epoch: {first:.3g} % in the first, {last:.3g} % in the last."
        caption = (
            "The share of binary weights whose sign changed during the epoch. Epochs without a change are left out."
        )
        return drawn(figure, "flips", alt, caption)


def _draw_line(points: Points, name: str, label: str, caption: str) -> Drawing:
    with canvas() as (figure, axes):
        axis = axes[0, 0]
        _line(axis, points, label, SERIES[0], "-")
        axis.set_xlabel("epoch")
        whole_numbers(axis)
        axis.set_ylabel(label)
        alt = f"Curve of the {label}: {points[0][1]:.4g} in the first epoch, {points[-1][1]:.4g} in the last."
        return drawn(figure, name, alt, caption)


def _line(axis: Any, points: Points, label: str, color: str, dashes: Any, width: float = 1.5) -> None:
    shown = thinned(points)
    marker = "o" if len(shown) < 4 else None
    x, y = zip(*shown, strict=True) if shown else ((), ())
    axis.plot(x, y, label=label, color=color, linestyle=dashes, linewidth=width, marker=marker, markersize=4)
