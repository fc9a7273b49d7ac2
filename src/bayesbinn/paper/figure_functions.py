"""Figure 1(b): the three functions that turn real parameters into weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.paper.drawing import (
    BLACK,
    BLUE,
    GRAY,
    ORANGE,
    markdown_table,
    new_figure,
    save_figure,
    save_text,
    written,
)
from bayesbinn.paper.gather import Budget

TEMPERATURES = (1.0, 0.3, 0.1, 0.01)
THRESHOLD = 0.5
_SHOWN = (-1.0, -0.6, -0.4, -0.1, 0.1, 0.4, 0.6, 1.0)

Array = NDArray[np.float64]


def hard(real: Array) -> Array:
    """STE: the sign of the real parameter, +1 at 0."""
    return np.where(real >= 0, 1.0, -1.0)


def relaxed(real: Array, temperature: float, noise: Array | float = 0.0) -> Array:
    """BayesBiNN: tanh((w_r + δ)/τ)."""
    return np.asarray(np.tanh((real + noise) / temperature))


def hysteresis(real: Array, weight: Array, threshold: float) -> Array:
    """Bop, the paper's "hyst2": a weight flips if |w_r| > γ and w_r has the opposite sign; otherwise it stays.

    >>> hysteresis(np.array([0.4, 0.6, -0.6]), np.array([-1.0, -1.0, -1.0]), 0.5).tolist()
    [-1.0, 1.0, -1.0]
    """
    flips = (np.abs(real) > threshold) & (np.sign(real) == -np.sign(weight))
    return np.where(flips, -weight, weight)


def reproduce_functions(name: str, budget: Budget, out: Path) -> Iterator[str]:
    """Draw and tabulate the functions; nothing is trained."""
    real = np.linspace(-1.0, 1.0, 2001)
    with new_figure(1, 3, size=(6.75, 2.3), sharey=True) as (figure, axes):
        _draw_sign(axes[0, 0])
        _draw_tanh(axes[0, 1], real)
        _draw_hysteresis(axes[0, 2], real)
        for axis in axes[0]:
            axis.set_xlabel("real parameter $w_r$")
            axis.set_xticks([-1, 0, 1])
            axis.set_yticks([-1, 0, 1])
            axis.axhline(0, color="#cccccc", linewidth=0.5, zorder=0)
            axis.axvline(0, color="#cccccc", linewidth=0.5, zorder=0)
            axis.set_ylim(-1.3, 1.3)
        axes[0, 0].set_ylabel("weight $w_b$")
        paths = save_figure(figure, out, name)
    points = np.array(_SHOWN)
    columns = {"sign": hard(points)}
    columns |= {f"tanh, τ = {t:g}": relaxed(points, t) for t in TEMPERATURES}
    columns["hysteresis from −1"] = hysteresis(points, -np.ones_like(points), THRESHOLD)
    columns["hysteresis from +1"] = hysteresis(points, np.ones_like(points), THRESHOLD)
    rows = [[f"{x:g}", *(f"{values[i]:.4f}" for values in columns.values())] for i, x in enumerate(points)]
    text = (
        "# From real parameters to weights (the paper's Figure 1b)\n\n"
        f"{markdown_table(['w_r', *columns], rows)}\n\n"
        f"- STE: sign. BayesBiNN: tanh((w_r + δ)/τ), here without noise (δ = 0); it approaches the sign as τ → 0. "
        f"Bop: hysteresis with threshold γ = {THRESHOLD:g}, in the paper's form; between −γ and γ a weight keeps "
        "its sign.\n"
        "- Nothing is trained for this figure, so there are no epochs, seeds or wall time.\n"
    )
    numbers = {"w_r": list(_SHOWN), "threshold": THRESHOLD, **{key: v.tolist() for key, v in columns.items()}}
    yield written([*save_text(out, name, text, numbers), *paths])


def _draw_sign(axis: Any) -> None:
    axis.plot([-1, 0], [-1, -1], color=BLACK)
    axis.plot([0, 1], [1, 1], color=BLACK)
    axis.plot([0], [1], "o", color=BLACK, markersize=3)
    axis.plot([0], [-1], "o", color=BLACK, markerfacecolor="white", markersize=3)
    axis.set_title("STE: sign($w_r$)")


def _draw_tanh(axis: Any, real: Array) -> None:
    styles = zip(TEMPERATURES, (ORANGE, BLUE, GRAY, BLACK), ("-", "--", "-.", "-"), strict=True)
    for temperature, color, style in styles:
        axis.plot(real, relaxed(real, temperature), style, color=color, label=rf"$\tau$ = {temperature:g}")
    axis.set_title(r"BayesBiNN: tanh($w_r/\tau$)")
    axis.legend(loc="lower right", bbox_to_anchor=(1.04, 0.03), handlelength=2.2)


def _draw_hysteresis(axis: Any, real: Array) -> None:
    for start, style, color, label in ((-1.0, "-", BLACK, "$w_b$ was −1"), (1.0, "--", BLUE, "$w_b$ was +1")):
        after = hysteresis(real, np.full_like(real, start), THRESHOLD)
        axis.plot(real, after, style, color=color, label=label)
        edge = -start * THRESHOLD
        axis.annotate(
            "",
            (edge, -0.25 * start),
            (edge, 0.25 * start),
            arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0},
        )
    axis.set_title(rf"Bop: hysteresis, $\gamma$ = {THRESHOLD:g}")
    axis.set_xticks([-THRESHOLD, THRESHOLD], minor=True)
    axis.legend(
        loc="center",
        bbox_to_anchor=(0.5, 0.68),
        frameon=True,
        framealpha=1,
        edgecolor="white",
        handlelength=1.6,
    )
