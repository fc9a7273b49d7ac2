"""Permuted MNIST: the accuracy on each task while later ones are learned, with and without a memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bayesbinn.errors import InvalidInput, nearest
from bayesbinn.paper.drawing import machine_rows, markdown_table, new_figure, save_figure, save_text, written
from bayesbinn.paper.earlier import NOTE, Earlier, made_on
from bayesbinn.paper.gather import Budget, Cell, duration
from bayesbinn.paper.gather_streams import (
    LOOKS,
    POLICIES,
    WALL_TIME,
    Array,
    Gathered,
    Learned,
    Variant,
    draw_mean,
    earlier_and_others,
    gather,
    numbers_of,
    samples,
    text_of,
    without_stopping,
)
from bayesbinn.paper.published import CONTINUAL, Continual

_PRESET = "permuted-mnist"

VARIANTS = {
    "bayesbinn": Variant("BayesBiNN, posterior as prior", f"{_PRESET}-bayesbinn", Cell(_PRESET, "bayesbinn")),
    "no-prior": Variant(
        "BayesBiNN, without prior", f"{_PRESET}-no-prior", Cell(_PRESET, "bayesbinn", {"continual.remember": False})
    ),
    "memory": Variant("BayesBiNN with memory", f"{_PRESET}-memory-bayesbinn", Cell(f"{_PRESET}-memory", "bayesbinn")),
    "ste": Variant("STE-Adam", f"{_PRESET}-ste", Cell(_PRESET, "ste")),
    "bop": Variant("Bop", f"{_PRESET}-bop", Cell(_PRESET, "bop")),
    "float": Variant("Full precision", f"{_PRESET}-float", Cell(_PRESET, "float")),
    "ewc": Variant("Full precision with EWC", f"{_PRESET}-ewc", Cell(_PRESET, "ewc")),
}
"""What the table compares, by the names that `--methods` accepts."""

DRAWN = ("bayesbinn", "no-prior", "memory")
"""The curves of the figure, unless `--methods` names others."""

_LOOK = dict(zip(VARIANTS, LOOKS, strict=True))

_METRICS = {
    "Mean": "average_accuracy",
    "Forgetting since learned": "forgetting_since_learned",
    "since best": "forgetting_since_best",
    "Backward transfer": "backward_transfer",
    "Forward transfer": "forward_transfer",
}


def reproduce_continual(name: str, methods: str | None, budget: Budget, out: Path) -> Iterator[str]:
    """Check the arguments, then gather the runs, draw the curves and fill in the tables."""
    chosen = chosen_variants(methods)
    return _reproduce(name, chosen, DRAWN if methods is None else chosen, without_stopping(name, budget), out)


def chosen_variants(methods: str | None) -> tuple[str, ...]:
    """The keys of `VARIANTS` that `--methods` names, in the order of `VARIANTS`.

    >>> chosen_variants("ewc,ste")
    ('ste', 'ewc')
    """
    if methods is None:
        return tuple(VARIANTS)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    offered = ", ".join(VARIANTS)
    if not names:
        raise InvalidInput(f"--methods {methods!r}: name at least one of {offered}")
    for name in names:
        if name not in VARIANTS:
            raise InvalidInput(
                f"--methods {methods}: no {name!r} in this figure.{nearest(name, VARIANTS)} Allowed: {offered}"
            )
    return tuple(key for key in VARIANTS if key in names)


def _reproduce(name: str, chosen: tuple[str, ...], drawn: tuple[str, ...], budget: Budget, out: Path) -> Iterator[str]:
    found, earlier = {}, Earlier.read(out / f"{name}.json", _METRICS)
    for key in chosen:
        found[key] = yield from gather(VARIANTS[key], budget, partial(earlier.record, key))
    tasks = max(
        [len(run.record.tasks) for each in found.values() for run in each.runs], default=len(CONTINUAL[0].tasks)
    )
    facts = made_on(out / f"{name}.json", *earlier_and_others(found.values()))
    numbers = {
        "name": name,
        "machine": facts,
        "width": budget.width or 1.0,
        "variants": {key: _numbers(each) for key, each in found.items()},
        "authors": [asdict(each) for each in CONTINUAL],
    }
    paths = save_text(out, name, _markdown(list(found.values()), tasks, facts), numbers)
    yield written([*paths, *_draw(name, {key: found[key] for key in chosen if key in drawn}, tasks, out)])


# ---- numbers --------------------------------------------------------------------------------------


def measures(run: Learned, policy: str) -> dict[str, float | None]:
    """The accuracy on each task after the last one, and the metrics that `bayesbinn.forgetting` computes."""
    last = run.record.matrix(policy)[-1]
    found: dict[str, float | None] = {f"Task {task}": float(value) for task, value in enumerate(last, 1)}
    summary = run.record.summary()[policy]
    return found | {title: summary[metric] for title, metric in _METRICS.items()}


def curve(run: Learned, task: int) -> dict[int, float]:
    """Accuracy on a task (counted from 1) per epoch of the stream, from the start of its training, first policy."""
    first = run.record.policies()[0]
    points = {
        (line["task"] - 1) * run.epochs + line["epoch"]: float(line["accuracy"][task - 1])
        for line in run.record.epochs
        if line["task"] >= task and line.get("accuracy") is not None
    }
    for line in run.record.finished:
        if line["task"] >= task and str(task) in line["accuracy"][first]:
            points[line["task"] * run.epochs] = float(line["accuracy"][first][str(task)])
    return points


def mean_curve(runs: list[Learned], task: int) -> tuple[Array, Array]:
    """The epochs that all runs have in common, and their accuracies, [seeds, epochs]."""
    curves = [curve(run, task) for run in runs]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    return np.array(shared, dtype=np.float64), np.array([[each[epoch] for epoch in shared] for each in curves])


def _numbers(each: Gathered) -> dict[str, Any]:
    found = each.described()
    for policy in each.policies():
        by_run = [measures(run, policy) for run in each.runs]
        found.setdefault("after the last task", {})[policy] = {
            key: numbers_of([values[key] for values in by_run]) for key in by_run[0]
        }
    for key in ("entropy", "saturated"):
        found[key] = [numbers_of(values) for values in zip(*(run.weights(key) for run in each.runs), strict=True)]
    if each.runs:
        curves = {}
        for task in range(1, len(each.runs[0].record.tasks) + 1):
            epochs, values = mean_curve(each.runs, task)
            curves[f"task {task}"] = {"epochs": epochs.astype(int).tolist(), "accuracy": values.tolist()}
        found["curves"] = curves
    return found


# ---- Markdown -------------------------------------------------------------------------------------


def _markdown(found: list[Gathered], tasks: int, facts: dict[str, str]) -> str:
    head = ["Variant", "BatchNorm", *(f"Task {task}" for task in range(1, tasks + 1)), *_METRICS, "Epochs", "Seeds"]
    rows = [row for each in found for row in _accuracy_rows(each, head)]
    rows += [_authors_row(each, head) for each in CONTINUAL]
    weights = ["Variant", "Start", *head[2 : 2 + tasks], "Saturated", "Training", "Evaluation", "Seeds"]
    lines = [_weights_row(each, tasks) for each in found if each.runs]
    lines += [[_authors(CONTINUAL[0]), "", *_padded(CONTINUAL[0].entropy, tasks), "", "", "", "1"]]
    return (
        "# Continual learning on permuted MNIST (the paper's Figure 5)\n\n"
        f"## Accuracy after the last task\n\n{markdown_table(head, rows)}\n\n"
        "## Entropy of the weights at the start and after each task, in bits, and wall time per seed\n\n"
        f"{markdown_table(weights, [*lines, *machine_rows(len(weights), facts)])}\n\n"
        + "\n".join(f"- {note}" for note in _notes(found))
    )


def _accuracy_rows(each: Gathered, head: list[str]) -> list[list[str]]:
    if not each.runs:
        return [[each.variant.label, f"not run: {each.reason}", *[""] * (len(head) - 2)]]
    rows = []
    for policy in each.policies():
        by_run = [measures(run, policy) for run in each.runs]
        cells = [text_of([values.get(column) for values in by_run]) for column in head[2:-2]]
        rows.append([each.variant.label, policy, *cells, str(each.runs[0].epochs), each.seeds()])
    return rows


def _authors(row: Continual) -> str:
    return f"The authors' code, {'posterior as' if row.prior else 'without'} prior"


def _authors_row(row: Continual, head: list[str]) -> list[str]:
    tasks = len(head) - 4 - len(_METRICS)
    cells = [*_padded(row.tasks, tasks), str(row.mean), *[""] * (len(_METRICS) - 1)]
    return [_authors(row), "shared", *cells, str(row.epochs), "1"]


def _padded(values: tuple[float, ...], count: int) -> list[str]:
    return [*map(str, values[:count]), *[""] * (count - len(values))]


def _weights_row(each: Gathered, tasks: int) -> list[str]:
    by_point = [text_of(values) for values in zip(*(run.weights("entropy") for run in each.runs), strict=True)]
    saturated = text_of([run.weights("saturated")[-1] for run in each.runs])
    times = [duration(each.mean_seconds(what)) for what in ("train", "evaluation")]
    cells = by_point if any(by_point) else ["no distribution", *by_point[1:]]
    return [each.variant.label, *cells, *[""] * (tasks + 1 - len(cells)), saturated, *times, each.seeds()]


def _notes(found: list[Gathered]) -> list[str]:
    runs = [run for each in found for run in each.runs]
    policies = dict.fromkeys(policy for each in found for policy in each.policies())
    counts = ", ".join(sorted({str(samples(run)) for run in runs}, key=int)) or "the"
    return [
        "Accuracy in percent on the test images, mean ± population standard deviation over seeds. Forgetting: the loss "
        "of accuracy by the end, since the task was learned and since its best, averaged over all tasks but the last. "
        "Backward transfer is the first of these with the opposite sign. Forward transfer: the accuracy on a task just "
        "before it is learned, minus that of the untrained network; measured only with the last policy, because that "
        "policy needs no statistics of the task.",
        *(f"BatchNorm, {policy}: {POLICIES.get(policy, 'another policy')}." for policy in policies),
        f"The accuracy of a method with a distribution over its weights is that of {counts} sampled networks, from the "
        "mean of their probabilities; the authors average logits. The other methods have a single network.",
        "The curves use the first policy. Their points within a task come from the same networks in packed form, with "
        "8-bit activations; those at the end of a task, and all numbers in the tables, are exact.",
        "Saturated: the fraction of weights, after the last task, whose more likely sign has probability 0.99 or more.",
        "The authors' rows: their code, run by us with seed 1, the statistics of the last task and 100 "
        "samples. The paper shows this figure without numbers, over 5 seeds.",
        *([NOTE] if any(each.earlier for each in found) else []),
        f"Epochs are per task, and the learning rate schedule restarts with each task; the paper uses 100. {WALL_TIME}",
    ]


# ---- figure ---------------------------------------------------------------------------------------


def _draw(name: str, found: dict[str, Gathered], tasks: int, out: Path) -> list[Path]:
    """One panel per task, over the epochs of the whole stream."""
    drawn = {key: each for key, each in found.items() if each.runs}
    epochs = max([run.epochs for each in drawn.values() for run in each.runs], default=CONTINUAL[0].epochs)
    with new_figure(tasks, 1, size=(6.75, 0.9 + 0.95 * tasks), sharex=True, sharey=True) as (figure, axes):
        for task, axis in enumerate(axes[:, 0], 1):
            for key, each in drawn.items():
                reached, values = mean_curve(each.runs, task)
                label = f"{each.variant.label} ({_count(len(each.runs))})"
                marks = {"marker": "o", "markersize": 2.5, "markevery": max(1, len(reached) // 20)}
                draw_mean(axis, reached, values, _LOOK[key], label=label, **marks)
            for boundary in range(1, tasks):
                axis.axvline(boundary * epochs, color="#bbbbbb", linewidth=0.7, zorder=0)
            axis.set_ylabel(f"task {task} (%)")
            axis.set_yticks([0, 50, 100])
            axis.grid(axis="y", linewidth=0.4, color="#dddddd")
        axes[0, 0].set(xlim=(0, tasks * epochs), ylim=(0, 103))
        for task in range(1, tasks + 1):
            place = ((task - 0.5) / tasks, 1.06)
            axes[0, 0].annotate(f"training task {task}", place, xycoords="axes fraction", ha="center", fontsize=7)
        axes[-1, 0].set_xlabel(f"epoch ({epochs} per task)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        if not handles:
            figure.suptitle("no finished run", fontsize=9)
        figure.legend(handles, labels, loc="outside upper center", ncols=min(3, max(len(labels), 1)))
        return save_figure(figure, out, name)


def _count(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"
