"""Two moons: predictions of STE, BayesBiNN's mode and its mean, between, near and far from the data."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbinn import metrics
from bayesbinn.paper.drawing import BLACK, machine, markdown_table, new_figure, save_figure, save_text, written
from bayesbinn.paper.gather import Budget
from bayesbinn.paper.toy import (
    COLUMNS,
    SAMPLES,
    Trio,
    as_drawn,
    compact,
    comparison_rows,
    expanded,
    spent_of,
    standardized,
    trained,
)
from bayesbinn.prediction.predicting import Prediction, predict

MARGIN = 0.3
STEP = 0.01
DRAWN_STEP = 0.05
"""Of the grid that the figure shows, which its JSON file keeps."""
FAR = 0.5
"""A grid point is far from the data if no training point is nearer than this (standardized units)."""
NEAR = 0.1
_BATCH = 20_000

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """The plane around the data, in standardized units."""

    across: Tensor
    up: Tensor
    distance: Tensor
    """Distance from each point to the nearest training point."""

    @classmethod
    def around(cls, points: Tensor, step: float) -> Grid:
        low, high = points.min(0).values - MARGIN, points.max(0).values + MARGIN
        across, up = (torch.arange(float(a), float(b), step) for a, b in zip(low, high, strict=True))
        grid = cls(across, up, torch.empty(0))
        distance = torch.cat([torch.cdist(part, points).min(1).values for part in grid.points().split(_BATCH)])
        return cls(across, up, distance)

    def points(self) -> Tensor:
        """All points, row by row, [up · across, 2]."""
        up, across = torch.meshgrid(self.up, self.across, indexing="ij")
        return torch.stack([across.flatten(), up.flatten()], 1)


def predictions(trio: Trio, x: Tensor) -> dict[str, Prediction]:
    """Predictions of STE, the mode and the mean; the mean averages sampled probabilities."""
    found = (
        predict(trio.ste, None, x, batch_size=_BATCH),
        predict(trio.bayes, trio.posterior, x, batch_size=_BATCH),
        predict(trio.bayes, trio.posterior, x, samples=SAMPLES, seed=trio.seed, batch_size=_BATCH),
    )
    return dict(zip(COLUMNS, found, strict=True))


def measure(trio: Trio, grid: Grid, on_grid: dict[str, Prediction]) -> dict[str, dict[str, float]]:
    """Predictive entropy far from and near the data, and accuracy, for each predictor."""
    x, y = standardized(trio)
    at_data = predictions(trio, x)
    return {
        name: {
            "Entropy far from the data": float(on_grid[name].entropy[grid.distance > FAR].mean()),
            "Entropy near the data": float(on_grid[name].entropy[grid.distance < NEAR].mean()),
            "Train accuracy": 100 * metrics.accuracy(at_data[name].probabilities, y),
        }
        for name in COLUMNS
    }


def reproduce_moons(name: str, budget: Budget, out: Path) -> Iterator[str]:
    """Train both methods and measure every seed; then draw the contours of the first."""
    numbers = as_drawn(out / f"{name}.json", budget)
    if numbers is None or any(budget.runs.glob("moons-*/checkpoint.pt")):
        numbers = yield from _measured(name, budget)
    paths = save_text(out, name, _markdown(numbers), numbers)
    yield written([*paths, *_draw(name, numbers, out)])


def _measured(name: str, budget: Budget) -> Generator[str, None, dict[str, Any]]:
    trios, spent = yield from trained("moons", budget)
    points, labels = standardized(trios[0])
    grid, coarse = Grid.around(points, STEP), Grid.around(points, DRAWN_STEP)
    measured = [measure(trio, grid, predictions(trio, grid.points())) for trio in trios]
    shown = predictions(trios[0], coarse.points())
    shape = (len(coarse.up), len(coarse.across))
    drawn = {
        "seed": trios[0].seed,
        "across": compact(coarse.across.tolist()),
        "up": compact(coarse.up.tolist()),
        "probability of class 1": {
            title: [compact(row, 3) for row in found.probabilities[:, 1].reshape(shape).tolist()]
            for title, found in shown.items()
        },
        "points": [compact(column.tolist()) for column in points.T],
        "labels": compact(labels.tolist()),
    }
    return {
        "name": name,
        "far": FAR,
        "near": NEAR,
        "far share": float((grid.distance > FAR).float().mean()),
        "samples": SAMPLES,
        "epochs": spent.epochs,
        "last epoch": spent.reached,
        "seconds": spent.seconds,
        "machine": machine(),
        "seeds": {str(trio.seed): values for trio, values in zip(trios, measured, strict=True)},
        "drawn": drawn,
    }


def _markdown(numbers: Mapping[str, Any]) -> str:
    measured = list(numbers["seeds"].values())
    head, rows = comparison_rows(
        measured, spent_of(numbers), lambda value: _three_digits(value.mean, value.std), numbers["machine"]
    )
    return (
        f"# Two moons: STE, BayesBiNN's mode and its mean\n\n{markdown_table(head, rows)}\n\n"
        f"- Entropy of the predicted class in nats (at most ln 2 = 0.693), averaged over a grid "
        f"with step {STEP:g} over the range of the data ± {MARGIN:g}, in standardized units. Far: no training point "
        f"within {FAR:g} ({100 * numbers['far share']:.0f} % of the grid). Near: a training point within {NEAR:g}.\n"
        f"- The mean is over the probabilities of {SAMPLES} posterior samples. The figure shows seed "
        f"{numbers['drawn']['seed']}.\n"
        "- The paper shows this figure without numbers: STE is more overconfident, the mean is unsure away from the "
        "data.\n"
    )


def _three_digits(mean: float, std: float | None) -> str:
    return f"{mean:.3f}" if std is None else f"{mean:.3f} ± {std:.3f}"


def _draw(name: str, numbers: Mapping[str, Any], out: Path) -> list[Path]:
    drawn = numbers["drawn"]
    across, up, labels = (expanded(drawn[key]) for key in ("across", "up", "labels"))
    points = [expanded(column) for column in drawn["points"]]
    with new_figure(1, 3, size=(6.75, 2.55), sharex=True, sharey=True) as (figure, axes):
        for axis, title in zip(axes[0], COLUMNS, strict=True):
            probability = np.stack([expanded(row) for row in drawn["probability of class 1"][title]])
            filled = _contours(axis, across, up, probability)
            for label, marker, face in ((0, "o", "white"), (1, "^", BLACK)):
                rows = labels == label
                edge = BLACK if label == 0 else "white"
                look = {"s": 9, "marker": marker, "c": face, "edgecolors": edge, "linewidths": 0.5, "zorder": 3}
                axis.scatter(*(column[rows] for column in points), **look)
            axis.set_title(title)
            axis.set_xlabel("$x_1$ (standardized)")
            axis.set_aspect("equal")
            axis.set_xticks([-2, -1, 0, 1, 2])
            axis.set_yticks([-2, -1, 0, 1, 2])
        axes[0, 0].set_ylabel("$x_2$ (standardized)")
        bar = figure.colorbar(
            filled, ax=axes[0].tolist(), ticks=[0, 0.25, 0.5, 0.75, 1], pad=0.015, aspect=22, shrink=0.82
        )
        bar.set_label("P(class ▲)")
        bar.outline.set_linewidth(0.5)
        return save_figure(figure, out, name)


def _contours(axis: Any, across: Array, up: Array, probability: Array) -> Any:
    """Cividis gets lighter from end to end, so that it also works in gray; the line is the decision boundary."""
    place = (across, up, probability)
    # Slightly beyond 0 and 1, so that saturated probabilities stay within the levels.
    filled = axis.contourf(*place, levels=np.linspace(-1e-6, 1 + 1e-6, 21), cmap="cividis")
    filled.set_edgecolor("face")  # no white seams between the levels in PDF viewers
    filled.set_rasterized(True)
    if probability.min() < 0.5 < probability.max():
        axis.contour(*place, levels=[0.5], colors="white", linewidths=1.2)
    return filled
