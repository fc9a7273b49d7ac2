"""Snelson's regression: the mean of posterior samples with its spread, the mode, and STE.

The network ends in a BatchNorm, and a sampled network needs its own statistics: those left by training only match the
weights of the last few steps. Two choices are shown side by side.

* Statistics of the test grid, as in the authors' code, which predicts all 301 inputs in training mode. Every
  curve then has zero mean and unit variance over the grid. The curves are flat where there are no data, which
  reduces the variance, so each curve is stretched by a different factor where there are data: part of the
  spread there is an artifact.
* Statistics of the training data: every curve has zero mean and unit variance where it was trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbinn.errors import InvalidInput
from bayesbinn.paper.drawing import (
    BLACK,
    BLUE,
    GRAY,
    ORANGE,
    SKY,
    machine,
    markdown_table,
    new_figure,
    save_figure,
    save_text,
    written,
)
from bayesbinn.paper.gather import Budget
from bayesbinn.paper.published import Value
from bayesbinn.paper.toy import COLUMNS, SAMPLES, Trio, comparison_rows, standardized, trained
from bayesbinn.prediction.functional import PureNetwork

Statistics = Literal["grid", "data"]
STATISTICS: dict[Statistics, str] = {
    "grid": "Statistics of the test grid (the authors)",
    "data": "Statistics of the training data",
}


@dataclass(frozen=True)
class Curves:
    """Predictions on the sorted test grid, in standardized units."""

    x: Tensor
    ste: Tensor
    mode: Tensor
    samples: Tensor
    """[samples, inputs]"""

    @property
    def mean(self) -> Tensor:
        return self.samples.mean(0)

    @property
    def std(self) -> Tensor:
        """Unbiased, without observation noise."""
        return self.samples.std(0)


def curves_of(trio: Trio, statistics: Statistics) -> Curves:
    """All predictions of one seed."""
    x = trio.dataset.normaliser(trio.dataset.test_inputs)
    x = x[x.flatten().argsort()]
    reference = x if statistics == "grid" else standardized(trio)[0]
    draws = [trio.posterior.draw(trio.seed, index) for index in range(SAMPLES)]
    return Curves(
        x=x.flatten(),
        ste=_curve(trio.ste, {}, x, reference),
        mode=_curve(trio.bayes, trio.posterior.mode(), x, reference),
        samples=torch.stack([_curve(trio.bayes, weights, x, reference) for weights in draws]),
    )


@torch.no_grad()
def _curve(model: nn.Module, weights: dict[str, Tensor], x: Tensor, reference: Tensor) -> Tensor:
    """The network's output for `x`, with the statistics of `reference` in its last BatchNorm."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[-1], nn.BatchNorm1d):
        raise InvalidInput(f"Snelson's network ends in a BatchNorm, but this {type(model).__name__} does not")
    body = PureNetwork(model[:-1])
    scale = body(weights, reference)
    return F.batch_norm(body(weights, x), scale.mean(0), scale.var(0, correction=0), eps=model[-1].eps).flatten()


def roughness(x: Tensor, y: Tensor) -> float:
    """Mean squared second derivative, from second differences on an even grid.

    >>> x = torch.linspace(0, 1, 11, dtype=torch.float64)
    >>> round(roughness(x, 3 * x.square() + x), 6)
    36.0
    """
    x, y = x.double(), y.double()
    second = (y[2:] - 2 * y[1:-1] + y[:-2]) / float(x[1] - x[0]) ** 2
    return float(second.square().mean())


def measure(trio: Trio, curves: Curves) -> dict[str, dict[str, float]]:
    """Roughness of each curve, its error at the training points, and the mean's spread inside and outside the data."""
    inputs, targets = (tensor.flatten() for tensor in standardized(trio))
    inside = (curves.x >= inputs.min()) & (curves.x <= inputs.max())
    nearest = (curves.x[None] - inputs[:, None]).abs().argmin(1)
    found = {}
    for name, y in zip(COLUMNS, (curves.ste, curves.mode, curves.mean), strict=True):
        found[name] = {
            "Roughness": roughness(curves.x, y),
            "Roughness within the data": roughness(curves.x[inside], y[inside]),
            "Train RMSE": float((y[nearest] - targets).square().mean().sqrt()),
        }
        if name == COLUMNS[-1]:
            found[name]["Std where there are data"] = float(curves.std[inside].mean())
            found[name]["Std where there are none"] = float(curves.std[~inside].mean())
    return found


def reproduce_snelson(name: str, budget: Budget, out: Path) -> Iterator[str]:
    """Train both methods, draw the first seed and measure every seed."""
    trios, spent = yield from trained("snelson", budget)
    curves = {how: [curves_of(trio, how) for trio in trios] for how in STATISTICS}
    measured = {how: list(map(measure, trios, found)) for how, found in curves.items()}
    tables = ""
    for how, title in STATISTICS.items():
        head, rows = comparison_rows(measured[how], spent, _short)
        tables += f"## {title}\n\n{markdown_table(head, rows)}\n\n"
    inputs = standardized(trios[0])[0]
    text = (
        f"# Snelson's regression: STE, BayesBiNN's mode and its mean\n\n{tables}"
        f"- Standardized units. Roughness: mean squared second derivative of the curve, from second differences on the "
        f"{len(curves['grid'][0].x)} test inputs; within the data: on those from {float(inputs.min()):.2f} to "
        f"{float(inputs.max()):.2f}, the range of the training inputs. There are no data outside it.\n"
        f"- Std: unbiased, of {SAMPLES} posterior samples, without observation noise, averaged over the test inputs "
        "where there are data, and where there are none.\n"
        "- Train RMSE: at the test input nearest to each training input.\n"
        "- Statistics of the test grid: the authors predict in training mode, so every curve has zero mean and unit "
        "variance over the grid. The curves are flat where there are no data, which reduces the variance, so each is "
        "stretched by a different factor where there are data: part of the std there is an artifact. With the "
        "statistics of the training data, every curve is scaled where it was trained.\n"
        f"- Mean ± population standard deviation over seeds. The figure shows seed {trios[0].seed}. The paper shows it "
        "without numbers: the mean is much smoother than STE, and its uncertainty is low where there are many "
        "points.\n"
    )
    numbers = {
        "name": name,
        "samples": SAMPLES,
        "epochs": spent.epochs,
        "last epoch": spent.reached,
        "seconds": spent.seconds,
        "machine": machine(),
        "seeds": {str(trio.seed): {how: measured[how][i] for how in STATISTICS} for i, trio in enumerate(trios)},
    }
    paths = _draw(name, trios[0], {how: found[0] for how, found in curves.items()}, out)
    yield written([*save_text(out, name, text, numbers), *paths])


def _short(value: Value) -> str:
    return f"{value.mean:.3g}" if value.std is None else f"{value.mean:.3g} ± {value.std:.2g}"


def _draw(name: str, trio: Trio, curves: dict[Statistics, Curves], out: Path) -> list[Path]:
    with new_figure(1, len(curves), size=(6.75, 2.7), sharex=True, sharey=True) as (figure, axes):
        for axis, (how, found) in zip(axes[0], curves.items(), strict=True):
            _panel(axis, trio, found)
            axis.set_title(STATISTICS[how])
            axis.set_xlabel("input (standardized)")
        axes[0, 0].set_ylabel("target (standardized)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=5, columnspacing=1.6)
        return save_figure(figure, out, name)


def _panel(axis: Any, trio: Trio, curves: Curves) -> None:
    inputs, targets = (tensor.flatten().numpy() for tensor in standardized(trio))
    x, mean, std = curves.x.numpy(), curves.mean.numpy(), curves.std.numpy()
    axis.fill_between(x, mean - 2 * std, mean + 2 * std, color=SKY, alpha=0.35, linewidth=0, label="mean ± 2 std")
    axis.scatter(inputs, targets, s=6, marker="x", color=GRAY, linewidths=0.6, label="training data", zorder=1.5)
    axis.plot(x, curves.ste.numpy(), color=ORANGE, linewidth=1.1, label="STE")
    axis.plot(x, curves.mode.numpy(), "--", color=BLACK, linewidth=1.0, label="BayesBiNN, mode")
    axis.plot(x, mean, color=BLUE, linewidth=1.9, label=f"BayesBiNN, mean of {SAMPLES}")
    axis.set_xlim(float(x[0]), float(x[-1]))
