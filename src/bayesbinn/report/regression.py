"""How good a regression is on the test rows: predicted against true, residuals, and the coverage of its intervals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesbinn.posterior import LogitScale
from bayesbinn.report.blocks import Block, Drawing, Missing, Row, Section, Table
from bayesbinn.report.drawing import QUIET, SERIES, canvas, drawn, short, thinned
from bayesbinn.runs.evaluate import deviations, networks_averaged, predicted, samples_worth_drawing
from bayesbinn.runs.scores import regression_scores
from bayesbinn.runs.trained import Trained

LEVELS = (50, 80, 90, 95)
"""Percent of the rows that an interval should contain."""
MAX_DOTS = 400
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Regressed:
    """A regression's predictions of the test rows, in the unit of the targets."""

    label: str
    true: Floats
    predicted: Floats
    std: Floats | None
    """None if the run has not measured its error."""
    spread: Floats | None
    """How much the networks differ; None if there is only one."""
    scores: dict[str, float]
    networks: int
    """How many networks the prediction is the mean of; 0: it is that of a single one."""

    @property
    def residuals(self) -> Floats:
        return self.predicted - self.true


def gather(trained: Trained, x: Tensor, y: Tensor, data_dir: Path | None) -> Regressed:
    """Predict the test rows, with the standard deviation that the run measured."""
    card, samples = trained.card, samples_worth_drawing(trained, None)
    found = predicted(trained, x, samples, LogitScale(), data_dir)
    std, spread = deviations(trained, found, samples)

    def in_unit(values: Tensor) -> Floats:
        return (values.flatten().double() * card.target_std + card.target_mean).numpy()

    scores = regression_scores(found, y, card.target_std)
    known, apart = (None if each is None else each.double().numpy() for each in (std, spread))
    return Regressed(
        card.label or "target",
        in_unit(y),
        in_unit(found.mean),
        known,
        apart,
        scores,
        networks_averaged(trained, samples),
    )


def coverage(regressed: Regressed, level: float) -> float:
    """The percentage of targets inside the central normal interval of `level` percent."""
    assert regressed.std is not None
    width = NormalDist().inv_cdf(0.5 + level / 200)
    return 100 * float((np.abs(regressed.residuals) <= width * regressed.std).mean())


def sections(regressed: Regressed) -> list[Section]:
    """Scores, drawings and coverage."""
    rows = [[name, f"{value:.4g}"] for name, value in regressed.scores.items()]
    rows.append(["mean absolute error", f"{np.abs(regressed.residuals).mean():.4g}"])
    caption = f"{len(regressed.true):,} test rows, in the unit of {regressed.label}"
    scores = Section("Test scores", [Table(caption, ["score", "value"], rows)])
    drawings = Section("Errors", [Row([_draw_scatter(regressed), _draw_residuals(regressed)])])
    return [scores, drawings, Section("Coverage", _coverage(regressed))]


def _coverage(regressed: Regressed) -> list[Block]:
    if regressed.std is None:
        return [
            Missing(
                "the run has not measured the error of these weights; it does so at its end, with at least 10 "
                "validation rows"
            )
        ]
    rows = [[f"{level} %", f"{coverage(regressed, level):.1f} %"] for level in LEVELS]
    caption = "Share of test targets inside the interval around the prediction, if errors are normal"
    return [Table(caption, ["interval", "targets inside"], rows)]


def _draw_scatter(regressed: Regressed) -> Drawing:
    with canvas(height=3.3) as (figure, axes):
        axis = axes[0, 0]
        pairs = thinned(list(zip(regressed.true, regressed.predicted, strict=True)), MAX_DOTS)
        both = [float(value) for pair in pairs for value in pair]
        axis.plot([min(both), max(both)], [min(both), max(both)], color=QUIET, linewidth=0.9, linestyle=":")
        axis.plot(*zip(*pairs, strict=True), linestyle="", marker="o", markersize=3, color=SERIES[0], alpha=0.6)
        axis.set_xlabel(f"true {short(regressed.label)}")
        axis.set_ylabel("predicted")
        said = ", ".join(f"{name} {value:.4g}" for name, value in regressed.scores.items())
        alt = f"Predicted against true {regressed.label}: {said}."
        some = f" {MAX_DOTS} of {len(regressed.true):,} rows." if len(regressed.true) > MAX_DOTS else ""
        return drawn(figure, "scatter", alt, f"Predicted against true. On the dotted line they are equal.{some}")


def _draw_residuals(regressed: Regressed) -> Drawing:
    with canvas(height=3.3) as (figure, axes):
        axis = axes[0, 0]
        counts, edges = np.histogram(regressed.residuals, bins=30)
        axis.stairs(counts, edges, color=SERIES[0], fill=True)
        axis.axvline(0, color=QUIET, linewidth=0.9, linestyle=":")
        axis.set_xlabel("predicted − true")
        axis.set_ylabel("test rows")
        mean, std = float(regressed.residuals.mean()), float(regressed.residuals.std())
        alt = f"Histogram of the residuals: mean {mean:.4g}, standard deviation {std:.4g}."
        return drawn(figure, "residuals", alt, f"Residuals: mean {mean:.4g}, standard deviation {std:.4g}.")
