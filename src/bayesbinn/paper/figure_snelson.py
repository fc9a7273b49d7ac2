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

from collections.abc import Generator, Iterator, Mapping
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
    """Train both methods and measure every seed; then draw the first."""
    numbers = as_drawn(out / f"{name}.json", budget)
    if numbers is None or any(budget.runs.glob("snelson-*/checkpoint.pt")):
        numbers = yield from _measured(name, budget)
    paths = save_text(out, name, _markdown(numbers), numbers)
    yield written([*paths, *_draw(name, numbers, out)])


def _measured(name: str, budget: Budget) -> Generator[str, None, dict[str, Any]]:
    trios, spent = yield from trained("snelson", budget)
    curves = {how: [curves_of(trio, how) for trio in trios] for how in STATISTICS}
    measured = {how: list(map(measure, trios, found)) for how, found in curves.items()}
    inputs, targets = (tensor.flatten().tolist() for tensor in standardized(trios[0]))
    first = {how: found[0] for how, found in curves.items()}
    lines = {
        how: {key: compact(getattr(found, key).tolist(), 5) for key in ("x", "ste", "mode", "mean", "std")}
        for how, found in first.items()
    }
    drawn = {"seed": trios[0].seed, "inputs": compact(inputs), "targets": compact(targets), "curves": lines}
    return {
        "name": name,
        "samples": SAMPLES,
        "epochs": spent.epochs,
        "last epoch": spent.reached,
        "seconds": spent.seconds,
        "machine": machine(),
        "seeds": {str(trio.seed): {how: measured[how][i] for how in STATISTICS} for i, trio in enumerate(trios)},
        "drawn": drawn,
    }


def _markdown(numbers: Mapping[str, Any]) -> str:
    tables = ""
    for how, title in STATISTICS.items():
        measured = [seed[how] for seed in numbers["seeds"].values()]
        head, rows = comparison_rows(measured, spent_of(numbers), _short, numbers["machine"])
        tables += f"## {title}\n\n{markdown_table(head, rows)}\n\n"
    drawn = numbers["drawn"]
    inputs, tested = expanded(drawn["inputs"]), len(expanded(drawn["curves"]["grid"]["x"]))
    return (
        f"# Snelson's regression: STE, BayesBiNN's mode and its mean\n\n{tables}"
        f"- Standardised units. Roughness: mean squared second derivative of the curve, by second differences on the "
        f"{tested} test inputs; within the data: on those from {inputs.min():.2f} to "
        f"{inputs.max():.2f}, the range of the training inputs. Outside of it there are no data.\n"
        f"- Std: unbiased, of {SAMPLES} posterior samples, without observation noise, averaged over the test inputs "
        "where there are data, and where there are none.\n"
        "- Train RMSE: at the test input nearest to each training input.\n"
        "- Statistics of the test grid: the authors predict in training mode, so every curve has zero mean and unit "
        "variance over the grid. Where there are no data the curves are flat, which takes variance away, so each is "
        "stretched by a factor of its own where there are data: part of the std there is an artefact. With the "
        "statistics of the training data, every curve is scaled where it was trained.\n"
        f"- Mean ± population standard deviation over seeds. The figure shows seed {drawn['seed']}. The paper has this "
        "figure without numbers: the mean is much smoother than STE, and its uncertainty is low where there are many "
        "points.\n"
    )


def _short(value: Value) -> str:
    return f"{value.mean:.3g}" if value.std is None else f"{value.mean:.3g} ± {value.std:.2g}"


def _draw(name: str, numbers: Mapping[str, Any], out: Path) -> list[Path]:
    drawn = numbers["drawn"]
    with new_figure(1, len(STATISTICS), size=(6.75, 2.7), sharex=True, sharey=True) as (figure, axes):
        for axis, (how, title) in zip(axes[0], STATISTICS.items(), strict=True):
            _panel(axis, drawn, {key: expanded(text) for key, text in drawn["curves"][how].items()})
            axis.set_title(title)
            axis.set_xlabel("input (standardized)")
        axes[0, 0].set_ylabel("target (standardized)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=5, columnspacing=1.6)
        return save_figure(figure, out, name)


def _panel(axis: Any, drawn: Mapping[str, Any], curves: Mapping[str, Any]) -> None:
    inputs, targets = expanded(drawn["inputs"]), expanded(drawn["targets"])
    x, mean, std = curves["x"], curves["mean"], curves["std"]
    axis.fill_between(x, mean - 2 * std, mean + 2 * std, color=SKY, alpha=0.35, linewidth=0, label="mean ± 2 std")
    axis.scatter(inputs, targets, s=6, marker="x", color=GRAY, linewidths=0.6, label="training data", zorder=1.5)
    axis.plot(x, curves["ste"], color=ORANGE, linewidth=1.1, label="STE")
    axis.plot(x, curves["mode"], "--", color=BLACK, linewidth=1.0, label="BayesBiNN, mode")
    axis.plot(x, mean, color=BLUE, linewidth=1.9, label=f"BayesBiNN, mean of {SAMPLES}")
    axis.set_xlim(float(x[0]), float(x[-1]))
