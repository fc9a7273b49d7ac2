"""The page of a sweep: all runs with their best epoch, parallel coordinates, failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbinn.report import provenance
from bayesbinn.report.blocks import Block, Code, Drawing, Facts, Missing, Section, Table, Text
from bayesbinn.report.drawing import QUIET, SERIES, canvas, drawn, short
from bayesbinn.report.page import Page
from bayesbinn.report.run import duration
from bayesbinn.sweeps.grid import load_plan
from bayesbinn.sweeps.standings import counted, result_rows, standings

MAX_ROWS = 300
MAX_LINES = 200
MAX_AXES = 7
_SCORES = {
    "best_validation_accuracy": ("validation accuracy, %", True),
    "best_validation_rmse": ("validation RMSE", False),
    "recalibrated_average_accuracy": ("average accuracy, %", True),
    "last_test_accuracy": ("test accuracy, %", True),
    "last_test_rmse": ("test RMSE", False),
}
"""Runs are ranked by the first of these that any of them has: its name, and whether higher is better."""


@dataclass(frozen=True)
class SweepFacts:
    """The runs of a sweep, finished or not, the best first."""

    folder: Path
    runs: Sequence[Mapping[str, Any]]
    varied: Sequence[str]
    """What differs between the runs: settings, and method and seed where there are several."""
    score: str
    """The column that runs are ranked by; empty if none has a score."""
    states: str

    @property
    def ranked(self) -> list[Mapping[str, Any]]:
        """The runs that have a score."""
        return [run for run in self.runs if _finite(run.get(self.score))]

    @property
    def failures(self) -> list[Mapping[str, Any]]:
        return [run for run in self.runs if run.get("error")]


def gather(folder: Path) -> SweepFacts:
    """Read the plan and the folder of every run."""
    planned = load_plan(folder)
    runs = result_rows(planned, folder)
    score = next((key for key in _SCORES if any(_finite(run.get(key)) for run in runs)), "")
    settings = list(dict.fromkeys(key for each in planned for key in each.varied))
    several = [key for key in ("method", "seed") if len({run[key] for run in runs}) > 1]
    sign = -1 if score and _SCORES[score][1] else 1
    ordered = sorted(runs, key=lambda run: sign * run[score] if _finite(run.get(score)) else math.inf)
    return SweepFacts(folder, ordered, [*several, *settings], score, counted(standings(planned, folder)))


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def page(facts: SweepFacts) -> Page:
    """Every section of a sweep."""
    sections = [
        Section("Comparison", _comparison(facts)),
        Section("Runs", _runs(facts)),
        Section("Failures", _failures(facts)),
    ]
    sections.append(Section("Software", [Text("This page was made with:"), provenance.versions()]))
    found = [("runs", str(len(facts.runs))), ("failed", str(len(facts.failures)))]
    found.append(("training time", duration(sum(float(run["seconds"]) for run in facts.runs))))
    if facts.ranked:
        best, (name, _) = facts.ranked[0], _SCORES[facts.score]
        found.append((f"best {name.removesuffix(', %')}", f"{best[facts.score]:.4g}"))
    return Page(facts.folder.resolve().name, f"Sweep: {facts.states}", [Facts(found, large=True)], sections)


def _comparison(facts: SweepFacts) -> list[Block]:
    if not facts.ranked:
        return [Missing("no run has a score yet")]
    best, (name, _) = facts.ranked[0], _SCORES[facts.score]
    settings = ", ".join(f"{key} {_text(best.get(key))}" for key in facts.varied) or "the only settings"
    said = f"The best run is {best['run']}: {name.removesuffix(', %')} {best[facts.score]:.4g} with {settings}."
    blocks: list[Block] = [Text(said), _draw(facts)] if facts.varied else [Text(said)]
    if "validation" in facts.score:
        blocks.append(Text("Runs are ranked by validation data. Their test scores are shown but not used."))
    return blocks


def _runs(facts: SweepFacts) -> list[Block]:
    columns = [key for key in facts.varied if key not in ("method", "seed")]
    shown = [key for key in _SCORES if any(_finite(run.get(key)) for run in facts.runs)]
    head = ["run", "state", "method", *columns, *(_SCORES[key][0] for key in shown), "best epoch", "seconds"]
    rows = [
        [
            *(_text(run[key]) for key in ("run", "state", "method")),
            *(_text(run.get(key)) for key in (*columns, *shown, "best_epoch")),
            f"{run['seconds']:.1f}",
        ]
        for run in facts.runs[:MAX_ROWS]
    ]
    blocks: list[Block] = [Table("All runs, the best first", head, rows, words=3)]
    if len(facts.runs) > MAX_ROWS:
        blocks.append(Text(f"The first {MAX_ROWS} of {len(facts.runs)}; results.csv in the folder lists them all."))
    return blocks


def _failures(facts: SweepFacts) -> list[Block]:
    if not facts.failures:
        return [Text("No run has failed.")]
    return [block for run in facts.failures for block in (Text(f"{run['run']}:"), Code(str(run["error"])))]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- parallel coordinates ---------------------------------------------------------------------------


def _draw(facts: SweepFacts) -> Drawing:
    """A vertical axis per setting and one for the score; every run is a line across them."""
    keys, (name, upwards) = list(facts.varied)[: MAX_AXES - 1], _SCORES[facts.score]
    runs = facts.ranked[:MAX_LINES]
    places = {key: _places([run.get(key) for run in runs]) for key in keys}
    scores = [float(run[facts.score]) for run in runs]
    low, high = min(scores), max(scores)
    with canvas(height=3.4) as (figure, axes):
        axis = axes[0, 0]
        axis.grid(visible=False)
        for rank, (run, score) in enumerate(zip(runs, scores, strict=True)):
            heights = [places[key][_text(run.get(key))] for key in keys]
            share = (score - low) / (high - low) if high > low else 0.5
            best = rank == 0
            good = share if upwards else 1 - share
            color, width, alpha = (SERIES[1], 2.4, 1.0) if best else (SERIES[0], 1.0, 0.2 + 0.6 * good)
            axis.plot(
                range(len(keys) + 1), [*heights, share], color=color, linewidth=width, alpha=alpha, zorder=2 + best
            )
        for index, key in enumerate(keys):
            axis.axvline(index, color=QUIET, linewidth=0.8)
            for text, height in places[key].items():
                axis.annotate(short(text, 12), (index, height), xytext=(3, 2), textcoords="offset points", fontsize=8)
        axis.axvline(len(keys), color=QUIET, linewidth=0.8)
        for value, height in ((low, 0.0), (high, 1.0)) if high > low else ((low, 0.5),):
            axis.annotate(
                f"{value:.4g}", (len(keys), height), xytext=(-3, 3), textcoords="offset points", ha="right", fontsize=8
            )
        labels = [short(key.rpartition(".")[2], 14) for key in keys] + [name.replace(" ", "\n", 1)]
        axis.set_xticks(range(len(keys) + 1), labels)
        axis.get_xticklabels()[-1].set_horizontalalignment("right")
        axis.set_yticks([])
        axis.spines[["left", "bottom"]].set_visible(False)
        axis.set_ylim(-0.08, 1.12)
        axis.tick_params(length=0)
        order = "higher" if upwards else "lower"
        alt = (
            f"Parallel coordinates of {len(runs)} runs over {', '.join(keys)} and {name}, from {low:.4g} to {high:.4g}."
        )
        return drawn(
            figure,
            "parallel",
            alt,
            f"Every line is a run; better runs are drawn stronger, and the thick line is the best ({order} is better).",
        )


def _places(values: Sequence[Any]) -> dict[str, float]:
    """The height of each value on its axis: numbers in order, then words, evenly spaced.

    >>> _places([0.1, 0.01, "x"])
    {'0.01': 0.0, '0.1': 0.5, 'x': 1.0}
    """
    numbers = sorted({value for value in values if isinstance(value, (int, float))})
    words = sorted({_text(value) for value in values if not isinstance(value, (int, float))})
    texts = [*map(_text, numbers), *words]
    return {text: index / max(1, len(texts) - 1) if len(texts) > 1 else 0.5 for index, text in enumerate(texts)}
