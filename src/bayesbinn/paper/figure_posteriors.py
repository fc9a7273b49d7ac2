"""How the distribution over the weights changes from task to task: histograms of P(w = +1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bayesbinn.errors import InvalidInput
from bayesbinn.paper.drawing import (
    BLUE,
    machine_rows,
    markdown_table,
    new_figure,
    save_figure,
    save_text,
    written,
)
from bayesbinn.paper.earlier import NOTE, Earlier, made_on
from bayesbinn.paper.figure_continual import VARIANTS
from bayesbinn.paper.gather import Budget
from bayesbinn.paper.gather_streams import Gathered, earlier_and_others, gather, without_stopping
from bayesbinn.paper.published import CONTINUAL

SHOWN = ("bayesbinn", "no-prior")


def reproduce_posteriors(name: str, budget: Budget, out: Path) -> Iterator[str]:
    """Check the arguments, then draw the histograms for the preset's seed."""
    return _reproduce(name, replace(without_stopping(name, budget), seeds=1), out)


def _reproduce(name: str, budget: Budget, out: Path) -> Iterator[str]:
    found, earlier = [], Earlier.read(out / f"{name}.json", {})
    for key in SHOWN:
        each = yield from gather(VARIANTS[key], budget, partial(earlier.record, VARIANTS[key].label))
        found.append(each)
    shown = [each for each in found if each.runs]
    if not shown:
        raise InvalidInput(f"{name}: no finished run to show: {'; '.join(each.reason for each in found)}")
    facts = made_on(out / f"{name}.json", *earlier_and_others(found))
    numbers = {"name": name, "machine": facts, "rows": {each.variant.label: _numbers(each) for each in found}}
    paths = save_text(out, name, _markdown(found, facts), numbers)
    yield written([*paths, *_draw(name, shown, out)])


def _points(each: Gathered) -> list[tuple[str, dict[str, Any]]]:
    record = each.runs[0].record
    return [("start", record.start), *((f"after task {line['task']}", line) for line in record.finished)]


def _numbers(each: Gathered) -> dict[str, Any]:
    points = _points(each) if each.runs else []
    return each.described() | {
        title: {key: line[key] for key in ("entropy", "saturated", "histogram")} for title, line in points
    }


def _markdown(found: list[Gathered], facts: dict[str, str]) -> str:
    titles = max((["", *(title for title, _ in _points(each))] for each in found if each.runs), key=len)[1:]
    head = ["Variant", "", *(title.capitalize() for title in titles), "Epochs", "Seed"]
    rows = []
    for each in found:
        if not each.runs:
            rows.append([each.variant.label, f"not run: {each.reason}", *[""] * (len(head) - 2)])
            continue
        run = each.runs[0]
        for key in ("entropy", "saturated"):
            cells = [f"{value:.3f}" for _, line in _points(each) if (value := line[key]) is not None]
            cells += [""] * (len(titles) - len(cells))
            rows.append([each.variant.label, key, *cells, str(run.epochs), each.seeds()])
    theirs = [*map(str, CONTINUAL[0].entropy[: len(titles) - 1])]
    theirs += [""] * (len(titles) - 1 - len(theirs))
    rows.append(["The authors' code, posterior as prior", "entropy", "", *theirs, str(CONTINUAL[0].epochs), "1"])
    note = f"- {NOTE}\n" if any(each.earlier for each in found) else ""
    return (
        "# The distribution over the weights from task to task (the paper's Figure 4)\n\n"
        f"{markdown_table(head, [*rows, *machine_rows(len(head), facts)])}\n\n"
        "- Entropy: the mean over the weights, in bits. Saturated: the fraction of weights whose more likely sign has "
        "probability 0.99 or more. The figure shows histograms of P(w = +1) with 50 bins on a logarithmic "
        "scale, as fractions of all weights.\n"
        "- Start: the distribution at the start of training, in which every weight is almost certain to have a random "
        "sign. The paper's first panel shows the prior instead: P = 1/2 everywhere, an entropy of 1.\n"
        "- The authors' row: their code, run by us; the paper gives entropies only in its figure.\n"
        "- The paper: with more tasks, the entropy falls and the weights become more certain. There, and in the first "
        "row, each task's prior is the previous task's posterior; otherwise, the prior stays P = 1/2.\n"
        f"{note}"
    )


def _draw(name: str, shown: list[Gathered], out: Path) -> list[Path]:
    columns = max(len(_points(each)) for each in shown)
    size = (1.2 + 1.0 * columns, 0.7 + 1.35 * len(shown))
    with new_figure(len(shown), columns, size=size, sharex=True, sharey=True) as (figure, axes):
        for row, each in zip(axes, shown, strict=True):
            for axis, (title, line) in zip(row, _points(each), strict=False):
                _panel(axis, title, line)
            row[0].set_ylabel(each.variant.label.replace(", ", ",\n") + "\nfraction of weights")
        figure.supxlabel("P(w = +1)", fontsize=8)
        return save_figure(figure, out, name)


def _panel(axis: Any, title: str, line: dict[str, Any]) -> None:
    counts = np.array(line["histogram"], dtype=np.float64)
    axis.stairs(counts / counts.sum(), np.linspace(0, 1, len(counts) + 1), fill=True, color=BLUE)
    axis.set_yscale("log")
    axis.minorticks_off()
    axis.set_ylim(1e-3, 1)
    axis.set_xlim(0, 1)
    axis.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    axis.set_title(f"{title}\nentropy {line['entropy']:.2f}", fontsize=8)
