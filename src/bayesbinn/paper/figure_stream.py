"""A hundred tasks in a row: how well the newest is learned, and how far back the network remembers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bayesbinn.paper.drawing import machine, machine_rows, markdown_table, new_figure, save_figure, save_text, written
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
    gather,
    numbers_of,
    samples,
    text_of,
    without_stopping,
)
from bayesbinn.paper.published import STREAM

_PRESET = "permuted-mnist-100"

VARIANTS = {
    "plain": Variant(
        "BayesBiNN, posterior as prior", f"{_PRESET}-plain-bayesbinn", Cell(f"{_PRESET}-plain", "bayesbinn")
    ),
    "memory": Variant("BayesBiNN with memory", f"{_PRESET}-bayesbinn", Cell(_PRESET, "bayesbinn")),
    "bimu": Variant("BiMU", f"{_PRESET}-bimu", Cell(_PRESET, "bimu")),
}

_METRICS = {"Last 5 tasks": "last_accuracy", "All tasks": "average_accuracy", "When learned": "learning_accuracy"}
_UNFAMILIAR = {
    "Noise, entropy": ("noise", "entropy"),
    "Noise, information": ("noise", "mutual_information"),
    "Permutation, entropy": ("permutation", "entropy"),
    "Permutation, information": ("permutation", "mutual_information"),
}


def reproduce_stream(name: str, budget: Budget, out: Path) -> Iterator[str]:
    """Check the arguments, then gather the runs, draw them and fill in the table."""
    return _reproduce(name, without_stopping(name, budget), out)


def _reproduce(name: str, budget: Budget, out: Path) -> Iterator[str]:
    found = {}
    for key, variant in VARIANTS.items():
        found[key] = yield from gather(variant, budget)
    gains = gains_of_memory(found["memory"], found["plain"])
    numbers = {
        "name": name,
        "machine": machine(),
        "width": budget.width or 1.0,
        "variants": {key: _numbers(each) for key, each in found.items()},
        "memory above plain, in combined standard deviations": gains,
        "published": STREAM,
    }
    paths = save_text(out, name, _markdown(found, gains), numbers)
    yield written([*paths, *_draw(name, found, out)])


# ---- numbers --------------------------------------------------------------------------------------


def measures(each: Gathered, policy: str) -> dict[str, list[float | None]]:
    """The accuracies of the table by column, one value per seed."""
    summaries = [run.record.summary()[policy] for run in each.runs]
    return {title: [summary[metric] for summary in summaries] for title, metric in _METRICS.items()}


def unfamiliar_inputs(each: Gathered) -> dict[str, list[float | None]]:
    """AUROC by column, one value per seed; None if not measured."""
    return {
        title: [run.record.end.get("auroc", {}).get(inputs, {}).get(score) for run in each.runs]
        for title, (inputs, score) in _UNFAMILIAR.items()
    }


def gains_of_memory(memory: Gathered, plain: Gathered) -> dict[str, float]:
    """By policy: (mean − mean)/√(variance + variance) of the last five tasks; needs two seeds of each."""
    gains = {}
    for policy in memory.policies():
        if policy in plain.policies() and min(len(memory.runs), len(plain.runs)) > 1:
            ours, theirs = (np.array(measures(each, policy)["Last 5 tasks"], dtype=float) for each in (memory, plain))
            combined = float(np.sqrt(ours.var(ddof=1) + theirs.var(ddof=1)))
            if combined > 0:
                gains[policy] = float(ours.mean() - theirs.mean()) / combined
    return gains


def diagonal(run: Learned) -> Array:
    """The accuracy on each task just after learning it, with the first policy."""
    return np.diag(run.record.matrix(run.record.policies()[0])).copy()


def last_row(run: Learned) -> Array:
    """The accuracy on each task at the end, with the first policy."""
    return np.array(run.record.matrix(run.record.policies()[0])[-1])


def average_of_seen(run: Learned) -> Array | None:
    """The mean accuracy on the tasks seen so far; None if only the newest was tested during training."""
    matrix = run.record.matrix(run.record.policies()[0])
    seen = [matrix[task, : task + 1] for task in range(len(matrix))]
    return None if any(np.isnan(row).any() for row in seen) else np.array([row.mean() for row in seen])


def _numbers(each: Gathered) -> dict[str, Any]:
    found = each.described()
    for policy in each.policies():
        found.setdefault("accuracy", {})[policy] = {
            key: numbers_of(values) for key, values in measures(each, policy).items()
        }
    found["auroc"] = {key: numbers_of(values) for key, values in unfamiliar_inputs(each).items()}
    for key in ("entropy", "saturated"):
        found[key] = [run.weights(key) for run in each.runs]
    found["when learned"] = [diagonal(run).tolist() for run in each.runs]
    found["at the end"] = [last_row(run).tolist() for run in each.runs]
    return found


# ---- Markdown -------------------------------------------------------------------------------------


def _markdown(found: dict[str, Gathered], gains: dict[str, float]) -> str:
    head = ["Variant", "BatchNorm", *_METRICS, "Entropy", "Saturated", *_UNFAMILIAR]
    head += ["Tasks", "Epochs", "Training", "Evaluation", "Seeds"]
    rows = [row for each in found.values() for row in _rows(each, len(head))]
    for method, accuracy in STREAM.items():
        rows.append([f"{method}, published", "", str(accuracy), *[""] * (len(head) - 8), "100", "1", "", "", ""])
    notes = "\n".join(f"- {note}" for note in _notes(found, gains))
    table = markdown_table(head, [*rows, *machine_rows(len(head))])
    return f"# A stream of permutations of MNIST\n\n{table}\n\n{notes}\n"


def _rows(each: Gathered, columns: int) -> list[list[str]]:
    if not each.runs:
        return [[each.variant.label, f"not run: {each.reason}", *[""] * (columns - 2)]]
    run = each.runs[0]
    weights = [text_of([other.weights(key)[-1] for other in each.runs], 3) for key in ("entropy", "saturated")]
    auroc = [text_of(values, 3) for values in unfamiliar_inputs(each).values()]
    costs = [duration(each.mean_seconds(what)) for what in ("train", "evaluation")]
    ends = [str(len(run.record.tasks)), str(run.epochs), *costs, each.seeds()]
    rows: list[list[str]] = []
    for policy in each.policies():
        accuracies = [text_of(values) for values in measures(each, policy).values()]
        # The weights do not depend on BatchNorm, and unfamiliar inputs are detected with the current statistics only.
        once = [*weights, *auroc] if not rows else [""] * 6
        rows.append([each.variant.label, policy, *accuracies, *once, *ends])
    return rows


def _notes(found: dict[str, Gathered], gains: dict[str, float]) -> list[str]:
    policies = dict.fromkeys(policy for each in found.values() for policy in each.policies())
    counts = {str(samples(run)) for each in found.values() for run in each.runs}
    compared = [
        f"With memory, the last 5 tasks are {gain:+.1f} combined standard deviations above the posterior as prior "
        f"(BatchNorm: {policy}): the difference of the means over the root of the sum of the two variances, ddof = 1."
        for policy, gain in gains.items()
    ]
    return [
        *(compared or ["With memory against the posterior as prior: not compared; that needs two seeds of each."]),
        "Accuracy in percent on the test images, mean ± population standard deviation over seeds. Last 5 and all "
        "tasks: after the last task. When learned: each task just after its own training, averaged over all tasks.",
        *(f"BatchNorm, {policy}: {POLICIES.get(policy, 'another policy')}." for policy in policies),
        f"Accuracies are those of {', '.join(sorted(counts, key=int)) or 'the'} sampled networks, from the mean of "
        "their probabilities.",
        "Entropy of the weights in bits, and the fraction of them whose more likely sign has probability 0.99 or more, "
        "after the last task.",
        "Noise and permutation: AUROC for separating uniform noise, and an unseen permutation, from the last task's "
        "test images by the entropy of the prediction and by the mutual information between prediction and weights.",
        "Published: Cottart et al. (2026), with a batch size of 1 and 100 hidden units, the last 5 of 100 tasks.",
        f"Epochs are per task. {WALL_TIME}",
    ]


# ---- figure ---------------------------------------------------------------------------------------


def _draw(name: str, found: dict[str, Gathered], out: Path) -> list[Path]:
    options = {"width_ratios": [1.15, 1.15, 0.8]}
    with new_figure(1, 3, size=(6.75, 2.6), gridspec_kw=options) as (figure, (axes,)):
        for each, look in zip(found.values(), LOOKS, strict=False):
            if each.runs:
                _draw_variant(axes, each, look)
        for axis, title, x, y in (
            (axes[0], "the newest task", "tasks learned", "accuracy (%)"),
            (axes[1], "every task, at the end", "task", "accuracy (%)"),
            (axes[2], "the weights", "tasks learned", "entropy (bits)"),
        ):
            axis.set(title=title, xlabel=x, ylabel=y)
            axis.grid(linewidth=0.4, color="#dddddd")
        axes[0].set_ylim(0, 100)
        axes[1].set_ylim(0, 100)
        axes[2].set_ylim(0, 1)
        handles, labels = axes[0].get_legend_handles_labels()
        if not handles:
            figure.suptitle("no finished run", fontsize=9)
        figure.legend(handles, labels, loc="outside upper center", ncols=min(3, max(len(labels), 1)))
        return save_figure(figure, out, name)


def _draw_variant(axes: Any, each: Gathered, look: tuple[str, str]) -> None:
    runs = each.runs
    tasks = np.arange(1, len(runs[0].record.tasks) + 1, dtype=np.float64)
    label = f"{each.variant.label} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"
    draw_mean(axes[0], tasks, np.array([diagonal(run) for run in runs]), look, label=label)
    draw_mean(axes[1], tasks, np.array([last_row(run) for run in runs]), look)
    averages = [average for run in runs if (average := average_of_seen(run)) is not None]
    if averages:
        thin = (look[0], ":")
        draw_mean(axes[0], tasks, np.array(averages), thin, linewidth=0.9, label=f"{each.variant.label}, mean of seen")
    entropies = [run.weights("entropy") for run in runs]
    if all(value is not None for values in entropies for value in values):
        draw_mean(axes[2], np.append(0.0, tasks), np.array(entropies, dtype=np.float64), look)
