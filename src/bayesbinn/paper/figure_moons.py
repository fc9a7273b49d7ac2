"""Two moons: predictions of STE, BayesBiNN's mode and its mean, between, near and far from the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesbinn import metrics
from bayesbinn.paper.drawing import BLACK, machine, markdown_table, new_figure, save_figure, save_text, written
from bayesbinn.paper.gather import Budget
from bayesbinn.paper.toy import COLUMNS, SAMPLES, Trio, comparison_rows, standardized, trained
from bayesbinn.prediction.predicting import Prediction, predict

MARGIN = 0.3
STEP = 0.01
FAR = 0.5
"""A grid point is far from the data if no training point is nearer than this (standardized units)."""
NEAR = 0.1
_BATCH = 20_000


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
    """Train both methods, draw the contours of the first seed and measure every seed."""
    trios, spent = yield from trained("moons", budget)
    grid = Grid.around(standardized(trios[0])[0], STEP)
    x = grid.points()
    measured, paths = [], list[Path]()
    for trio in trios:
        on_grid = predictions(trio, x)
        measured.append(measure(trio, grid, on_grid))
        if not paths:
            paths = _draw(name, trio, grid, on_grid, out)
    head, rows = comparison_rows(measured, spent, lambda value: _three_digits(value.mean, value.std))
    share = float((grid.distance > FAR).float().mean())
    text = (
        f"# Two moons: STE, BayesBiNN's mode and its mean\n\n{markdown_table(head, rows)}\n\n"
        f"- Entropy of the predicted class in nats (at most ln 2 = 0.693), averaged over a grid "
        f"with step {STEP:g} over the range of the data ± {MARGIN:g}, in standardized units. Far: no training point "
        f"within {FAR:g} ({100 * share:.0f} % of the grid). Near: a training point within {NEAR:g}.\n"
        f"- The mean is over the probabilities of {SAMPLES} posterior samples. The figure shows seed {trios[0].seed}.\n"
        "- The paper shows this figure without numbers: STE is more overconfident, the mean is unsure away from the "
        "data.\n"
    )
    numbers = {
        "name": name,
        "far": FAR,
        "near": NEAR,
        "samples": SAMPLES,
        "epochs": spent.epochs,
        "last epoch": spent.reached,
        "seconds": spent.seconds,
        "machine": machine(),
        "seeds": {str(trio.seed): values for trio, values in zip(trios, measured, strict=True)},
    }
    yield written([*save_text(out, name, text, numbers), *paths])


def _three_digits(mean: float, std: float | None) -> str:
    return f"{mean:.3f}" if std is None else f"{mean:.3f} ± {std:.3f}"


def _draw(name: str, trio: Trio, grid: Grid, on_grid: dict[str, Prediction], out: Path) -> list[Path]:
    x, y = standardized(trio)
    with new_figure(1, 3, size=(6.75, 2.55), sharex=True, sharey=True) as (figure, axes):
        for axis, title in zip(axes[0], COLUMNS, strict=True):
            probability = on_grid[title].probabilities[:, 1].reshape(len(grid.up), len(grid.across)).numpy()
            filled = _contours(axis, grid, probability)
            for label, marker, face in ((0, "o", "white"), (1, "^", BLACK)):
                rows = y == label
                edge = BLACK if label == 0 else "white"
                axis.scatter(*x[rows].T.numpy(), s=9, marker=marker, c=face, edgecolors=edge, linewidths=0.5, zorder=3)
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


def _contours(axis: Any, grid: Grid, probability: np.ndarray[Any, Any]) -> Any:
    """Cividis gets lighter from end to end, so that it also works in gray; the line is the decision boundary."""
    place = (grid.across.numpy(), grid.up.numpy(), probability)
    # Slightly beyond 0 and 1, so that saturated probabilities stay within the levels.
    filled = axis.contourf(*place, levels=np.linspace(-1e-6, 1 + 1e-6, 21), cmap="cividis")
    filled.set_edgecolor("face")  # no white seams between the levels in PDF viewers
    filled.set_rasterized(True)
    if probability.min() < 0.5 < probability.max():
        axis.contour(*place, levels=[0.5], colors="white", linewidths=1.2)
    return filled
