"""The table, the figure and the sentences of frontier.json, which benchmarks/frontier.py measures.

`write` makes frontier.md, frontier.png and, of the cells at the posterior's largest width, posterior-worth.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bayesbinn.files import write_whole
from bayesbinn.paper.drawing import BLACK, BLUE, GRAY, ORANGE, SKY, markdown_table, new_figure
from bayesbinn.paper.evidence import load_queue, planned

GREEN, PINK = "#009E73", "#CC79A7"
LOOKS = {
    "float32": (BLACK, "s"),
    "int8": (GRAY, "D"),
    "mode": (BLUE, "o"),
    "posterior mean": (ORANGE, "^"),
    "ensemble of 2": (SKY, "v"),
    "ensemble of 5": (GREEN, "P"),
    "ensemble of 10": (PINK, "X"),
}
"""Colour and marker of what the figure shows, in the order of the legend."""
TITLES = {
    "float32": "float32",
    "int8": "int8 (torch)",
    "mode": "BayesBiNN, mode",
    "posterior mode": "BayesBiNN, posterior's mode",
    "posterior mean": "BayesBiNN, posterior mean of 10",
    **{f"ensemble of {size}": f"BayesBiNN, {size} seeds" for size in (2, 5, 10)},
}
LEARNED = ", learned BatchNorm"
STRANGERS = {"scrambled": "Scrambled", "inverted": "Inverted", "photographs": "Photographs"}
BUDGETS = (1 << 15, 1 << 17, 1 << 18, 1 << 20, 1 << 21, 1 << 22, 1 << 24, 1 << 26)
UNITS = 2048
"""Hidden units at width 1."""

SO_FAR = "Not computed yet:"

Numbers = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Cells that differ in their seeds alone."""

    kind: str
    width: float
    certainty: float | None
    affine: bool
    """Whether BatchNorm has a learned gain and shift, which the paper's network does not have."""
    cells: tuple[Numbers, ...]

    @property
    def title(self) -> str:
        certainty = "" if self.certainty is None else f" (certainty {self.certainty:g})"
        return f"{TITLES[self.kind]}{LEARNED if self.affine else ''}{certainty}"

    @property
    def units(self) -> int:
        return round(UNITS * self.width)

    @property
    def processors(self) -> str:
        """Where the times were measured."""
        return ", ".join(sorted({cell["machine"]["processor"] for cell in self.cells}))

    def mean(self, *path: str) -> float | None:
        """The mean of a number over the cells; None where no cell has it."""
        found = [value for cell in self.cells if (value := _at(cell, path)) is not None]
        return float(np.mean(found)) if found else None

    def text(self, digits: int, *path: str) -> str:
        """Mean ± population standard deviation."""
        found = [value for cell in self.cells if (value := _at(cell, path)) is not None]
        if not found:
            return ""
        spread = f" ± {np.std(found):.{digits}f}" if len(found) > 1 else ""
        return f"{np.mean(found):.{digits}f}{spread}"


def _at(tree: Any, path: tuple[str, ...]) -> float | None:
    for step in path:
        tree = tree.get(step) if isinstance(tree, dict) else None
    return None if tree is None else float(tree)


def groups_of(found: Numbers) -> list[Group]:
    """The cells by kind, width and certainty, the smallest files first."""
    by_key: dict[tuple[str, float, float | None, bool], list[Numbers]] = {}
    for cell in found["cells"].values():
        key = (cell["kind"], cell["width"], cell["certainty"], cell.get("affine", False))
        by_key.setdefault(key, []).append(cell)
    groups = [Group(*key, tuple(cells)) for key, cells in by_key.items()]
    return sorted(groups, key=lambda group: (group.width, group.mean("bytes") or 0.0, group.title))


# ---- tables ----------------------------------------------------------------------------------------


def table(found: Numbers) -> str:
    head = ["Units", "Network", "Bytes", "µs, batch 1", "µs, batch 100", "Accuracy", "NLL", "ECE"]
    head += [f"AUROC, {title.lower()}" for title in STRANGERS.values()]
    head += [f"{name}: {what}" for name in ("Shifted", "Noisy") for what in ("accuracy", "NLL", "ECE")]
    head += ["Cells", "Processor"]
    rows = []
    for group in groups_of(found):
        row = [str(group.units), group.title, f"{group.mean('bytes') or 0:,.0f}"]
        row += [group.text(1, "microseconds", "1"), group.text(1, "microseconds", "100")]
        row += _quality(group, "test")
        row += [group.text(3, "auroc", name) for name in STRANGERS]
        row += [*_quality(group, "shifted"), *_quality(group, "noisy"), str(len(group.cells))]
        rows.append([*row, group.processors])
    return markdown_table(head, rows)


def _quality(group: Group, part: str) -> list[str]:
    return [group.text(2, part, "accuracy"), group.text(4, part, "nll"), group.text(4, part, "ece")]


def winners(found: Numbers) -> list[str]:
    """At equal bytes, who wins? One sentence for each budget that changes the answer."""
    shown = [group for group in groups_of(found) if group.kind in LOOKS]
    sentences, before = [], None
    for budget in BUDGETS:
        fitting = [group for group in shown if (group.mean("bytes") or 0) <= budget]
        if not fitting:
            continue
        best = {
            "highest accuracy": _best(fitting, lambda group: -(group.mean("test", "accuracy") or 0)),
            "lowest NLL": _best(fitting, lambda group: group.mean("test", "nll") or 9e9),
            "lowest ECE": _best(fitting, lambda group: group.mean("test", "ece") or 9e9),
            "highest AUROC against photographs": _best(
                fitting, lambda group: -(group.mean("auroc", "photographs") or 0)
            ),
        }
        names = {what: f"{group.title} at {group.units} units" for what, group in best.items()}
        if names == before:
            continue
        before = names
        values = {
            "highest accuracy": best["highest accuracy"].text(2, "test", "accuracy") + " %",
            "lowest NLL": best["lowest NLL"].text(4, "test", "nll"),
            "lowest ECE": best["lowest ECE"].text(4, "test", "ece"),
            "highest AUROC against photographs": best["highest AUROC against photographs"].text(
                3, "auroc", "photographs"
            ),
        }
        won: dict[str, list[str]] = {}
        for what, name in names.items():
            if values[what].strip(" %"):
                won.setdefault(name, []).append(f"{what}, {values[what]}")
        parts = [f"{name} ({'; '.join(what)})" for name, what in won.items()]
        sentences.append(f"Up to {budget // 1024:,} KiB: {', '.join(parts)}.")
    return sentences


def _best(groups: list[Group], cost: Callable[[Group], float]) -> Group:
    return min(groups, key=cost)


# ---- the posterior ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paired:
    """A difference with its standard error, over blocks of the same test images."""

    mean: float
    error: float

    @classmethod
    def of(cls, ours: list[float], theirs: list[float]) -> Paired:
        """The mean of `ours` less `theirs`, block by block.

        >>> Paired.of([1.0, 3.0], [0.0, 0.0])
        Paired(mean=2.0, error=1.0)
        """
        differences = np.array(ours) - np.array(theirs)
        return cls(float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences))))

    def text(self, digits: int) -> str:
        return f"{self.mean:+.{digits}f} ± {self.error:.{digits}f}"


def worth(found: Numbers) -> tuple[str, list[str]]:
    """The spread posterior beside the mode at τ = 1e-10 and seed ensembles, at its largest width: table and verdict."""
    units = _units_of_posterior(found)
    groups = [group for group in groups_of(found) if group.units == units and not group.affine]
    mode = next((group for group in groups if group.kind == "mode"), None)
    spread = [group for group in groups if group.kind.startswith("posterior")]
    if mode is None or not spread:
        return "Not computed yet.", []
    same = [group for group in groups if group.kind.startswith("ensemble")]
    head = ["Network", "Bytes", "Accuracy", "NLL", "ECE"]
    head += ["Accuracy less the mode's", "NLL less the mode's", "ECE less the mode's", "Cells"]
    rows, verdicts = [], []
    for group in [mode, *spread, *same]:
        accuracy, nll = _against(group, mode, "correct"), _against(group, mode, "nll")
        ece = (group.mean("test", "ece") or 0) - (mode.mean("test", "ece") or 0)
        row = [group.title, f"{group.mean('bytes') or 0:,.0f}", *_quality(group, "test")]
        row += [""] * 3 if group is mode else [accuracy.text(2), nll.text(4), f"{ece:+.4f}"]
        rows.append([*row, str(len(group.cells))])
        if group.kind == "posterior mean":
            better, close = nll.mean < -2 * nll.error, accuracy.mean > -0.3
            verdicts.append(
                f"{group.title}: NLL {'better' if better else 'not better'} than the mode's by 2 paired standard "
                f"errors ({nll.text(4)}); ECE {'not worse' if ece <= 0.002 else 'worse'} by more than 0.002 "
                f"({ece:+.4f}); accuracy {'within' if close else 'not within'} 0.3 points ({accuracy.text(2)})."
            )
            verdicts += [_beside(group, other) for other in same if _equal_bytes(group, other)]
    return markdown_table(head, rows), verdicts


def _equal_bytes(one: Group, other: Group) -> bool:
    ratio = (one.mean("bytes") or 1) / (other.mean("bytes") or 1)
    return 0.8 < ratio < 1.25


def _beside(group: Group, other: Group) -> str:
    nll = _against(group, other, "nll")
    who = "lower" if nll.mean < -2 * nll.error else "higher" if nll.mean > 2 * nll.error else "not different"
    return f"{group.title} beside {other.title}, of equal bytes: its NLL is {who} ({nll.text(4)}, paired)."


def _against(group: Group, other: Group, what: str) -> Paired:
    """By the mean over the cells of each block; `correct` in percent."""
    return Paired.of(_blocks(group, what), _blocks(other, what))


def _blocks(group: Group, what: str) -> list[float]:
    rows = []
    for cell in group.cells:
        values = np.array(cell["blocks"][what], dtype=np.float64)
        rows.append(100 * values / np.array(cell["blocks"]["images"]) if what == "correct" else values)
    return [float(value) for value in np.mean(rows, axis=0)]


# ---- files -----------------------------------------------------------------------------------------


def missing(found: Numbers) -> list[str]:
    """Which networks of the evidence queue are not among the cells: with them, another one may win."""
    measured = {run["run"] for cell in found["cells"].values() for run in cell.get("runs", ())}
    left: dict[bool, set[int]] = {False: set(), True: set()}
    for run in (run for part in load_queue().parts if "frontier" in part.measure for run in planned(part)):
        if run.name not in measured:
            left[run.experiment.model.affine].add(round(UNITS * run.experiment.model.width))
    return [
        f"{SO_FAR} networks of {' and '.join(map(str, sorted(units)))} units{LEARNED if affine else ''}."
        for affine, units in left.items()
        if units
    ]


def write(found: Numbers, out: Path) -> None:
    """Everything that is drawn from the numbers."""
    versions = sorted({cell["machine"]["torch"] for cell in found["cells"].values()})
    notes = [
        "Times: one thread of the row's processor, the fastest of 20 rounds, per image; compare the times of one "
        f"processor with each other. torch {', '.join(versions)}. BayesBiNN's times are with 8-bit activations, its "
        "accuracies with exact ones. float32 and int8 are timed in PyTorch with BatchNorm folded into the layers.",
        "MNIST, 20 epochs of the preset's schedule, compressed; every run has the same validation rows, on which the "
        "networks and ensembles were calibrated. Mean ± population standard deviation over cells (seeds, or disjoint "
        "sets of seeds).",
        "AUROC: how well the entropy of the prediction tells 2,000 strangers from 2,000 test digits: pixels in random "
        "order, inverted digits, CIFAR-10's test images in grey. Shifted: by up to a tenth of the size; noisy: "
        "Gaussian noise of 0.3 of the range; 2,000 digits each.",
        "The posterior mean is that of 10 samples of a run with `certainty`, with BatchNorm statistics of their own; "
        "at τ = 1e-10 all samples are the mode.",
        "Learned BatchNorm: with a learned gain and shift, which the paper's network does not have. They are folded "
        "into the scale and shift that the file has anyway, so the bytes stay the same.",
    ]
    lines = ["# What bytes and microseconds buy on MNIST", "", table(found), "", "## At equal bytes, who wins?", ""]
    lines += ["Among the networks measured so far:", ""] if missing(found) else []
    lines += [f"- {sentence}" for sentence in [*winners(found), *missing(found)]]
    lines += ["", *(f"- {note}" for note in notes), ""]
    write_whole(out / "frontier.md", "\n".join(lines).encode())
    rows, verdicts = worth(found)
    lines = ["# Is the posterior worth its samples?", "", rows, ""]
    lines += [f"- {sentence}" for sentence in [*verdicts, *missing(found)]]
    lines += [
        "- Differences from the mode of runs at τ = 1e-10, paired over blocks of the same test images: the mean and "
        "its standard error.",
        f"- From the cells of frontier.json at the posterior's largest width, {_units_of_posterior(found)} units; 10 "
        "samples take as many bytes as 10 networks.",
        "",
    ]
    write_whole(out / "posterior-worth.md", "\n".join(lines).encode())
    draw(found, out / "frontier.png")


def _units_of_posterior(found: Numbers) -> int:
    return max((group.units for group in groups_of(found) if group.kind.startswith("posterior")), default=0)


def draw(found: Numbers, path: Path) -> None:
    """Bytes and microseconds against what they buy."""
    columns: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("test error (%)", ("test", "accuracy")),
        ("NLL", ("test", "nll")),
        ("ECE", ("test", "ece")),
        ("AUROC, photographs", ("auroc", "photographs")),
    )
    groups = [group for group in groups_of(found) if group.kind in LOOKS]
    spread = [group.certainty for group in groups if group.certainty is not None]
    usual = max(spread, key=spread.count, default=None)
    groups = [group for group in groups if group.certainty in (None, usual)]
    with new_figure(2, 4, size=(9.5, 4.9)) as (figure, axes):
        for row, (label, across) in enumerate((("bytes", ("bytes",)), ("µs per image", ("microseconds", "1")))):
            for axis, (title, up) in zip(axes[row], columns, strict=True):
                _panel(axis, groups, across, up)
                axis.set(xlabel=label, title=title)
                _in_decades(axis, "x", _short)
                low, high = axis.get_ylim()
                if title in ("test error (%)", "NLL") and high > 4 * low > 0:
                    _in_decades(axis, "y", lambda value: f"{value:g}")
                axis.grid(linewidth=0.3, color="#dddddd")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=4)
        figure.savefig(path)


def _in_decades(axis: Any, which: str, text: Callable[[float], str]) -> None:
    """A logarithmic axis with few labels: at 1, 2 and 5 of each decade, or at 1 if it has many decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    getattr(axis, f"set_{which}scale")("log")
    low, high = getattr(axis, f"get_{which}lim")()
    own = getattr(axis, f"{which}axis")
    own.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    own.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    own.set_minor_locator(NullLocator())


def _short(value: float) -> str:
    """
    >>> _short(20_000), _short(1_000_000), _short(50)
    ('20k', '1M', '50')
    """
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _panel(axis: Any, groups: list[Group], across: tuple[str, ...], up: tuple[str, ...]) -> None:
    for affine, (kind, (colour, marker)) in product((False, True), LOOKS.items()):
        points = []
        for group in groups:
            x, y = group.mean(*across), group.mean(*up)
            if (group.kind, group.affine) == (kind, affine) and x is not None and y is not None:
                points.append((x, 100 - y if up[-1] == "accuracy" else y))
        if points:
            look = {"color": colour, "marker": marker, "markersize": 4.5, "linewidth": 0.8}
            if affine:
                look |= {"linestyle": "--", "markerfacecolor": "white"}
            axis.plot(*zip(*sorted(points), strict=True), label=f"{TITLES[kind]}{LEARNED if affine else ''}", **look)
