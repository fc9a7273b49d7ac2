"""Our training curves and the authors', epoch by epoch.

``authors_curves.csv.gz`` has the accuracy in every epoch of the 15 BayesBiNN runs that the authors
published with their code (training_log.zip): seeds 1 to 5 on MNIST, 10 to 14 on CIFAR, 500 epochs, mode.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.paper.drawing import (
    BLACK,
    BLUE,
    GRAY,
    ORANGE,
    machine_rows,
    markdown_table,
    new_figure,
    save_figure,
    save_text,
    written,
)
from bayesbinn.paper.earlier import MARK, NOTE, earlier_curves, made_on
from bayesbinn.paper.gather import Budget, Cell, Outcome, Trained, duration, outcome_of, train_ahead
from bayesbinn.paper.published import DATASETS, DETAILED, EPOCHS, Value

PARTS = ("train", "validation", "test")
MARKS = (1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 500)
"""The epochs of the Markdown table, and of the markers."""
STAND_IN = ("mnist", 100)
"""A data set, and the shorter schedule that stands in for the paper's until a run of that one has reached its end."""

Array = NDArray[np.float64]


@lru_cache
def authors_curves() -> dict[tuple[str, str], Array]:
    """The authors' accuracy in percent, [seeds, epochs], by data set and part.

    >>> authors_curves()["mnist", "test"].shape
    (5, 500)
    """
    packed = files("bayesbinn.paper").joinpath("authors_curves.csv.gz").read_bytes()
    text = gzip.decompress(packed).decode()
    rows = list(csv.DictReader(line for line in io.StringIO(text) if not line.startswith("#")))
    curves: dict[tuple[str, str], Array] = {}
    for dataset in DATASETS:
        own = [row for row in rows if row["dataset"] == dataset]
        seeds = sorted({int(row["seed"]) for row in own})
        for part in PARTS:
            grid = np.full((len(seeds), max(int(row["epoch"]) for row in own)), np.nan)
            for row in own:
                grid[seeds.index(int(row["seed"])), int(row["epoch"]) - 1] = float(row[f"{part}_accuracy"])
            curves[dataset, part] = grid
    return curves


def reproduce_curves(name: str, budget: Budget, out: Path) -> Iterator[str]:
    """Draw BayesBiNN's curves; unfinished runs are drawn up to their last epoch."""
    yield from train_ahead([Cell(name, "bayesbinn") for name in DATASETS], budget, accept_unfinished=True)
    outcomes = {}
    for dataset in DATASETS:
        outcomes[dataset] = yield from outcome_of(Cell(dataset, "bayesbinn"), budget, accept_unfinished=True)
        if not budget.train and not outcomes[dataset].runs:
            outcomes[dataset] = _as_it_was(dataset, budget, out / f"{name}.json") or outcomes[dataset]
    stand_in = None if budget.train else _stand_in(budget, outcomes[STAND_IN[0]])
    rows = [row for dataset, outcome in outcomes.items() for row in _rows(dataset, outcome)]
    by_data = {dataset: _numbers(dataset, outcome) for dataset, outcome in outcomes.items()}
    head = ["Data", "Epoch", *(f"{part.capitalize()}, {whose}" for part in PARTS for whose in ("ours", "authors"))]
    head += ["Schedule", "Seeds", "Wall time"]
    others = [run.folder for outcome in outcomes.values() if not outcome.earlier for run in outcome.runs]
    others += [] if stand_in is None else [stand_in.folder]
    facts = made_on(out / f"{name}.json", any(outcome.earlier for outcome in outcomes.values()), others)
    rows += machine_rows(len(head), facts)
    text = (
        f"# BayesBiNN's training curves and the authors'\n\n{markdown_table(head, rows)}\n\n"
        "- Accuracy in percent, mean ± population standard deviation over seeds; the authors' over 5 seeds. Train: the "
        "running accuracy during the epoch, with dropout, batch statistics and sampled weights. Others: mode.\n"
        "- Schedule: epochs of the learning-rate schedule; with the authors' 500, epochs compare one to one.\n"
        "- The authors' numbers come from the training logs that they published with their code.\n"
        + (f"- {NOTE}\n" if any(outcome.earlier for outcome in outcomes.values()) else "")
        + "".join(f"- {sentence}\n" for sentence in in_full(by_data))
        + ("" if stand_in is None else f"\n{_stand_in_text(stand_in)}\n")
    )
    numbers = {"name": name, "machine": facts, "width": budget.width or 1.0, "data": by_data}
    if stand_in is not None:
        numbers["stand-in"] = {"data": STAND_IN[0], **_stand_in_numbers(stand_in)}
    paths = save_text(out, name, text, numbers)
    yield written([*paths, *_draw(name, outcomes, stand_in, out)])


def _as_it_was(dataset: str, budget: Budget, path: Path) -> Outcome | None:
    """The curves of a data set as the figure had them, where neither a run nor a record is there."""
    wanted = Cell(dataset, "bayesbinn").experiment(budget, 0).training
    known = earlier_curves(path, dataset)
    if not known or known[0][1] != wanted.epochs or known[0][0] != wanted.seed or budget.width not in (None, 1.0):
        return None
    runs = [Trained(seed, path, schedule, rows) for seed, schedule, rows in known]
    return Outcome(runs, earlier=True)


def _stand_in(budget: Budget, outcome: Outcome) -> Trained | None:
    """The first seed of the shorter schedule, if it is recorded and no run of the paper's schedule has ended."""
    dataset, epochs = STAND_IN
    ended = any(run.last()["epoch"] >= run.epochs for run in outcome.runs)
    if ended or budget.epochs is not None or budget.width not in (None, 1.0):
        return None
    shorter = replace(budget, epochs=epochs, seeds=1, stop_after=None)
    finding = outcome_of(Cell(dataset, "bayesbinn"), shorter)
    while True:
        try:
            next(finding)
        except StopIteration as found:
            return found.value.runs[0] if found.value.runs else None


def ours(outcome: Outcome, part: str) -> tuple[Array, Array]:
    """The evaluated epochs that all our runs have in common, and their accuracies, [seeds, epochs]."""
    by_run = [
        {row["epoch"]: row[f"{part}_accuracy"] for row in run.rows if row.get(f"{part}_accuracy") is not None}
        for run in outcome.runs
    ]
    shared = sorted(set.intersection(*map(set, by_run))) if by_run else []
    return np.array(shared, dtype=np.float64), np.array([[run[epoch] for epoch in shared] for run in by_run])


def _rows(dataset: str, outcome: Outcome) -> list[list[str]]:
    if not outcome.runs:
        return [[DATASETS[dataset], "", f"not run: {outcome.reason}", *[""] * 8]]
    epochs, _ = ours(outcome, "test")
    shown = [int(epoch) for epoch in epochs if epoch in MARKS or epoch == epochs[-1]]
    schedule = str(outcome.runs[0].epochs)
    seeds = ", ".join(f"{run.seed}{MARK if outcome.earlier else ''}" for run in outcome.runs)
    rows = []
    for epoch in shown:
        cells = []
        for part in PARTS:
            here, values = ours(outcome, part)
            theirs = authors_curves()[dataset, part]
            column = np.flatnonzero(here == epoch)
            cells.append(str(Value.of(values[:, column[0]].tolist())) if len(column) else "not measured")
            cells.append(str(Value.of(theirs[:, epoch - 1].tolist())) if epoch <= theirs.shape[1] else "")
        seconds = sum(float(row["seconds"]) for run in outcome.runs for row in run.rows if row["epoch"] <= epoch)
        rows.append([DATASETS[dataset], str(epoch), *cells, schedule, seeds, duration(seconds)])
    return rows


def _numbers(dataset: str, outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = {"not run": outcome.reason, "seeds": [run.seed for run in outcome.runs]}
    found["earlier"] = [run.seed for run in outcome.runs] if outcome.earlier else []
    found["schedule"] = outcome.runs[0].epochs if outcome.runs else None
    found["seconds"] = sum(run.seconds for run in outcome.runs)
    for part in PARTS:
        epochs, values = ours(outcome, part)
        theirs = authors_curves()[dataset, part]
        at = epochs[epochs <= theirs.shape[1]].astype(int) - 1
        found[part] = {
            "epochs": epochs.astype(int).tolist(),
            "ours": values.tolist(),
            "authors mean": np.round(theirs[:, at].mean(0), 3).tolist(),
            "authors std": np.round(theirs[:, at].std(0), 3).tolist(),
        }
    return found


def in_full(by_data: dict[str, Any]) -> list[str]:
    """A sentence for every data set with runs of the paper's whole schedule: what they reached, beside the paper's."""
    sentences = []
    for dataset, each in by_data.items():
        if each.get("schedule") != EPOCHS or each["test"]["epochs"] != list(range(1, EPOCHS + 1)):
            continue
        best = [int(np.argmax(curve)) for curve in each["validation"]["ours"]]  # the first of several
        chosen = Value.of([curve[at] for curve, at in zip(each["test"]["ours"], best, strict=True)])
        last = Value.of([curve[-1] for curve in each["test"]["ours"]])
        theirs = authors_curves()[dataset, "test"]
        seeds, epochs = (", ".join(map(str, values)) for values in (each["seeds"], [at + 1 for at in best]))
        plural = "s" if len(best) > 1 else ""
        sentences.append(
            f"{DATASETS[dataset]}, the paper's whole schedule, seed{plural} {seeds}: {chosen} % on test data in the "
            f"first epoch with the best validation accuracy (epoch{plural} {epochs}), the paper "
            f"{DETAILED[dataset, 'bayesbinn'].test} %; {last} % after the last epoch, the authors' runs "
            f"{Value.of(theirs[:, EPOCHS - 1].tolist())} %."
        )
    return sentences


# ---- a shorter schedule ---------------------------------------------------------------------------


def _authors_epoch(run: Trained, epoch: int) -> int:
    """The epoch at which the authors' schedule has come as far."""
    return round(epoch * EPOCHS / run.epochs)


def _stand_in_text(run: Trained) -> str:
    dataset, epochs = STAND_IN
    head = [f"Epoch of {epochs}", f"Authors' epoch of {EPOCHS}"]
    head += [f"{part.capitalize()}, {whose}" for part in PARTS for whose in ("ours", "authors")]
    rows = []
    for row in run.rows:
        if row["epoch"] not in MARKS and row["epoch"] != epochs:
            continue
        theirs = _authors_epoch(run, row["epoch"])
        rows.append([str(row["epoch"]), str(theirs)])
        for part in PARTS:
            rows[-1] += [str(Value.of([row[f"{part}_accuracy"]]))]
            rows[-1] += [str(Value.of(authors_curves()[dataset, part][:, theirs - 1].tolist()))]
    return (
        f"## {DATASETS[dataset]}: a schedule of {epochs} epochs in place of {EPOCHS}\n\n"
        f"The paper's {EPOCHS} epochs have not been run to their end here. This is its schedule compressed to {epochs} "
        f"epochs, seed {run.seed}, {duration(run.seconds)}, next to the authors' runs at the same share of theirs.\n\n"
        f"{markdown_table(head, rows)}"
    )


def _stand_in_numbers(run: Trained) -> dict[str, Any]:
    found: dict[str, Any] = {"schedule": run.epochs, "seed": run.seed, "seconds": run.seconds}
    found["epochs"] = [row["epoch"] for row in run.rows]
    at = [_authors_epoch(run, epoch) - 1 for epoch in found["epochs"]]
    for part in PARTS:
        theirs = authors_curves()[STAND_IN[0], part][:, at]
        found[part] = {
            "ours": [row[f"{part}_accuracy"] for row in run.rows],
            "authors mean": np.round(theirs.mean(0), 3).tolist(),
            "authors std": np.round(theirs.std(0), 3).tolist(),
        }
    return found


# ---- figure ---------------------------------------------------------------------------------------

_LOOKS = {"train": (BLACK, "-", "s"), "validation": (ORANGE, "--", "^"), "test": (BLUE, "-.", "o")}


def _draw(name: str, outcomes: dict[str, Outcome], stand_in: Trained | None, out: Path) -> list[Path]:
    with new_figure(1, len(outcomes), size=(6.75, 2.75)) as (figure, axes):
        for axis, (dataset, outcome) in zip(axes[0], outcomes.items(), strict=True):
            for part in PARTS:
                _draw_part(axis, part, authors_curves()[dataset, part], *ours(outcome, part))
                if stand_in is not None and dataset == STAND_IN[0]:
                    _draw_stand_in(axis, part, stand_in)
            axis.set_xscale("log")
            axis.set_xticks([1, 10, 100, 500], ["1", "10", "100", "500"])
            axis.minorticks_off()
            axis.set_xlabel("epoch")
            axis.set_title(DATASETS[dataset] + ("" if outcome.runs else " (ours: not run)"))
            axis.grid(linewidth=0.4, color="#dddddd")
        axes[0, 0].set_ylabel("accuracy (%)")
        handles, labels = _legend(axes[0, 0])
        if stand_in is not None:
            handles += axes[0, 0].plot([], [], color=GRAY, linewidth=1.6, alpha=0.6)
            labels += [f"{DATASETS[STAND_IN[0]]}: ours, {stand_in.epochs} epochs, stretched"]
        columns = 6 if stand_in is None else 4
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, columnspacing=1.2, handlelength=2.4)
        return save_figure(figure, out, name)


def _draw_part(axis: Any, part: str, theirs: Array, epochs: Array, values: Array) -> None:
    color, style, marker = _LOOKS[part]
    reached = np.arange(1, theirs.shape[1] + 1)
    axis.fill_between(reached, theirs.min(0), theirs.max(0), color=color, alpha=0.15, linewidth=0)
    axis.plot(reached, theirs.mean(0), style, color=color, linewidth=0.8)
    if len(epochs):
        # The axis is logarithmic: equally distant epochs would crowd at its end.
        every = [index for index, epoch in enumerate(epochs) if epoch in MARKS or index == len(epochs) - 1]
        axis.plot(
            epochs, values.mean(0), marker=marker, markevery=every, markersize=4, color=color, markerfacecolor="white"
        )


def _draw_stand_in(axis: Any, part: str, run: Trained) -> None:
    """Stretched to the length of the authors' schedule."""
    color, _, _ = _LOOKS[part]
    at = [_authors_epoch(run, row["epoch"]) for row in run.rows]
    axis.plot(at, [row[f"{part}_accuracy"] for row in run.rows], color=color, linewidth=1.6, alpha=0.6)


def _legend(axis: Any) -> tuple[list[Any], list[str]]:
    """The styles of the authors' and our curves, whether or not we have runs."""
    handles, labels = [], []
    for part, (color, style, marker) in _LOOKS.items():
        handles += axis.plot([], [], style, color=color, linewidth=0.8)
        handles += axis.plot([], [], marker=marker, markersize=4, color=color, markerfacecolor="white")
        labels += [f"{part}, authors", f"{part}, ours"]
    return handles, labels
