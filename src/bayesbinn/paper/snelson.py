"""Snelson's regression: the mean of posterior samples with its spread, the mode, and STE.

As the authors do, the network predicts the whole test grid in training mode: its last BatchNorm
takes mean and variance of the grid's own 301 outputs, for every sample anew. Every curve therefore
has zero mean and unit variance over the grid, so curves of networks with very different output
scales can be averaged; the running statistics of training fit only the weights of the last few steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesbinn.paper.cells import Budget
from bayesbinn.paper.output import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    SKY,
    machine,
    markdown_table,
    new_figure,
    save_figure,
    save_text,
    written,
)
from bayesbinn.paper.published import Value
from bayesbinn.paper.toy import COLUMNS, SAMPLES, Trio, comparison_rows, standardised, trained
from bayesbinn.prediction import PureNetwork


@dataclass(frozen=True)
class Curves:
    """Predictions on the sorted test grid, standardised units."""

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


def curves_of(trio: Trio) -> Curves:
    """All predictions of one seed."""
    x = trio.dataset.normaliser(trio.dataset.test_inputs)
    x = x[x.flatten().argsort()]
    samples = [trio.posterior.draw(trio.seed, index) for index in range(SAMPLES)]
    return Curves(
        x=x.flatten(),
        ste=_on_grid(trio.ste, {}, x),
        mode=_on_grid(trio.bayes, trio.posterior.mode(), x),
        samples=torch.stack([_on_grid(trio.bayes, weights, x) for weights in samples]),
    )


@torch.no_grad()
def _on_grid(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """In training mode, on copies: the model's running statistics stay as they are."""
    model.train()
    try:
        return PureNetwork(model)(weights, x).flatten()
    finally:
        model.eval()


def roughness(x: Tensor, y: Tensor) -> float:
    """Mean squared second derivative, by second differences on an even grid.

    >>> x = torch.linspace(0, 1, 11, dtype=torch.float64)
    >>> round(roughness(x, 3 * x.square() + x), 6)
    36.0
    """
    x, y = x.double(), y.double()
    second = (y[2:] - 2 * y[1:-1] + y[:-2]) / float(x[1] - x[0]) ** 2
    return float(second.square().mean())


def measure(trio: Trio, curves: Curves) -> dict[str, dict[str, float]]:
    """Roughness of each curve, its error at the training points, and the mean's spread with and without data."""
    inputs, targets = (tensor.flatten() for tensor in standardised(trio))
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
    """Train both methods, draw the first seed, and measure every seed."""
    trios, spent = yield from trained("snelson", budget)
    all_curves = [curves_of(trio) for trio in trios]
    measured = [measure(trio, curves) for trio, curves in zip(trios, all_curves, strict=True)]
    paths = _draw(name, trios[0], all_curves[0], out)
    inputs = standardised(trios[0])[0]
    head, rows = comparison_rows(measured, spent, _short)
    text = (
        f"# Snelson's regression: STE, BayesBiNN's mode and its mean\n\n{markdown_table(head, rows)}\n\n"
        f"- Standardised units. Roughness: mean squared second derivative of the curve, by second differences on the "
        f"{len(all_curves[0].x)} test inputs; within the data: on those from {float(inputs.min()):.2f} to "
        f"{float(inputs.max()):.2f}, the range of the training inputs. Outside of it there are no data.\n"
        f"- Std: unbiased, of {SAMPLES} posterior samples, without observation noise, averaged over the test inputs.\n"
        "- Train RMSE: at the test input nearest to each training input.\n"
        "- The network predicts in training mode, as the authors' does: BatchNorm after the last layer takes the "
        "statistics of the test grid itself, so every curve has zero mean and unit variance there. "
        f"The figure shows seed {trios[0].seed}.\n"
        "- The paper shows this figure without numbers: the mean is much smoother than STE, and its uncertainty is low "
        "where there are many points.\n"
    )
    numbers = {
        "name": name,
        "samples": SAMPLES,
        "epochs": spent.epochs,
        "last epoch": spent.reached,
        "seconds": spent.seconds,
        "machine": machine(),
        "seeds": {str(trio.seed): values for trio, values in zip(trios, measured, strict=True)},
    }
    yield written([*save_text(out, name, text, numbers), *paths])


def _short(value: Value) -> str:
    return f"{value.mean:.3g}" if value.std is None else f"{value.mean:.3g} ± {value.std:.2g}"


def _draw(name: str, trio: Trio, curves: Curves, out: Path) -> list[Path]:
    inputs, targets = (tensor.flatten().numpy() for tensor in standardised(trio))
    x, mean, std = curves.x.numpy(), curves.mean.numpy(), curves.std.numpy()
    with new_figure(size=(5.2, 2.9)) as (figure, axes):
        axis = axes[0, 0]
        axis.fill_between(x, mean - 2 * std, mean + 2 * std, color=SKY, alpha=0.35, linewidth=0, label="mean ± 2 std")
        axis.scatter(inputs, targets, s=7, marker="x", color=GREY, linewidths=0.7, label="training data", zorder=1.5)
        axis.plot(x, curves.ste.numpy(), color=ORANGE, linewidth=1.1, label="STE")
        axis.plot(x, curves.mode.numpy(), "--", color=BLACK, linewidth=1.1, label="BayesBiNN, mode")
        axis.plot(x, mean, color=BLUE, linewidth=2.0, label=f"BayesBiNN, mean of {SAMPLES}")
        axis.set_xlim(float(x[0]), float(x[-1]))
        axis.set_xlabel("input (standardised)")
        axis.set_ylabel("target (standardised)")
        figure.legend(loc="outside upper center", ncols=5, columnspacing=1.0, handlelength=1.8)
        return save_figure(figure, out, name)
