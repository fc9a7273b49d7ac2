"""A hundred tasks in a row: how well the newest is learned, and how far back the network remembers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bayesbinn.paper.drawing import (
    GRAY,
    machine_rows,
    markdown_table,
    new_figure,
    save_figure,
    save_text,
    written,
)
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
from bayesbinn.paper.published import STREAM

_PRESET = "permuted-mnist-100"
NEWEST = 5
"""Tasks that count as new at the end, as BiMU's authors count them."""

ONE_BY_ONE = {
    "training.batch_size": 1,
    "continual.tasks": 20,
    "max_lr": 0.0023,
    "gain": 161.3,
    "memory_size": 1e5,
}
"""BiMU's authors' settings, on as many tasks as two cores learn in some hours."""

VARIANTS = {
    "plain": Variant(
        "BayesBiNN, posterior as prior", f"{_PRESET}-plain-bayesbinn", Cell(f"{_PRESET}-plain", "bayesbinn")
    ),
    "memory": Variant("BayesBiNN with memory", f"{_PRESET}-bayesbinn", Cell(_PRESET, "bayesbinn")),
    "bimu": Variant("BiMU", f"{_PRESET}-bimu", Cell(_PRESET, "bimu")),
    "bimu-1": Variant("BiMU, one example per step", f"{_PRESET}-bimu-single", Cell(_PRESET, "bimu", ONE_BY_ONE)),
}

_OLD = "Older tasks"
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
    found, earlier = {}, Earlier.read(out / f"{name}.json", _METRICS, _UNFAMILIAR)
    for key, variant in VARIANTS.items():
        found[key] = yield from gather(variant, budget, partial(earlier.record, key))
    gains = gains_of_memory(found["memory"], found["plain"])
    facts = made_on(out / f"{name}.json", *earlier_and_others(found.values()))
    numbers = {
        "name": name,
        "machine": facts,
        "width": budget.width or 1.0,
        "variants": {key: _numbers(each) for key, each in found.items()},
        "memory above plain, in combined standard deviations": gains,
        "published": STREAM,
    }
    paths = save_text(out, name, _markdown(found, gains, facts), numbers)
    yield written([*paths, *_draw(name, found, out)])


# ---- numbers --------------------------------------------------------------------------------------


def measures(each: Gathered, policy: str) -> dict[str, list[float | None]]:
    """The accuracies of the table by column, one value per seed."""
    summaries = [run.record.summary()[policy] for run in each.runs]
    found = {title: [summary[metric] for summary in summaries] for title, metric in _METRICS.items()}
    old = [older_tasks(run, policy) for run in each.runs]
    return {"Last 5 tasks": found.pop("Last 5 tasks"), _OLD: old, **found}


def older_tasks(run: Learned, policy: str) -> float | None:
    """The mean accuracy at the end on all tasks but the newest five; None where there are no others."""
    last = run.record.matrix(policy)[-1][:-NEWEST]
    return float(last.mean()) if len(last) else None


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


def _markdown(found: dict[str, Gathered], gains: dict[str, float], facts: dict[str, str]) -> str:
    head = ["Variant", "BatchNorm", "Last 5 tasks", _OLD, *list(_METRICS)[1:], "Entropy", "Saturated", *_UNFAMILIAR]
    head += ["Tasks", "Epochs", "Batch", "Training", "Evaluation", "Seeds"]
    rows = [row for each in found.values() for row in _rows(each, len(head))]
    for method, accuracy in STREAM.items():
        rows.append([f"{method}, published", "", str(accuracy), *[""] * (len(head) - 9), "100", "1", "1", "", "", ""])
    notes = "\n".join(f"- {note}" for note in _notes(found, gains))
    table = markdown_table(head, [*rows, *machine_rows(len(head), facts)])
    return f"# A stream of permutations of MNIST\n\n{table}\n\n{notes}\n"


def _rows(each: Gathered, columns: int) -> list[list[str]]:
    if not each.runs:
        return [[each.variant.label, f"not run: {each.reason}", *[""] * (columns - 2)]]
    run = each.runs[0]
    weights = [text_of([other.weights(key)[-1] for other in each.runs], 3) for key in ("entropy", "saturated")]
    auroc = [text_of(values, 3) for values in unfamiliar_inputs(each).values()]
    costs = [duration(each.mean_seconds(what)) for what in ("train", "evaluation")]
    batch = str(run.experiment.training.batch_size)
    ends = [str(len(run.record.tasks)), str(run.epochs), batch, *costs, each.seeds()]
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
        f"With memory, the accuracy on the last 5 tasks differs from that of the posterior as prior by {gain:+.1f} "
        f"combined standard deviations (BatchNorm: {policy}): the difference of the means over the root of the sum of "
        "the two variances, ddof = 1."
        for policy, gain in gains.items()
    ]
    return [
        *(compared or ["With memory against the posterior as prior: not compared; that needs two seeds of each."]),
        "Accuracy in percent on the test images, mean ± population standard deviation over seeds. Last 5, older (all "
        "but the last 5) and all tasks: after the last task. When learned: each task just after its own training, "
        "averaged over all tasks.",
        *(f"BatchNorm, {policy}: {POLICIES.get(policy, 'another policy')}." for policy in policies),
        f"Accuracies are those of {', '.join(sorted(counts, key=int)) or 'the'} sampled networks, from the mean of "
        "their probabilities.",
        "Entropy of the weights in bits, and the fraction of them whose more likely sign has probability 0.99 or more, "
        "after the last task.",
        "Noise and permutation: AUROC for separating uniform noise, and an unseen permutation, from the last task's "
        "test images by the entropy of the prediction and by the mutual information between prediction and weights.",
        "Published: Cottart et al. (2026), with a batch size of 1 and 100 hidden units, the last 5 of 100 tasks.",
        "BiMU, one example per step: the settings of BiMU's authors for a batch size of 1, on 20 tasks.",
        *([NOTE] if any(each.earlier for each in found.values()) else []),
        f"Epochs are per task. {WALL_TIME}",
    ]


# ---- figure ---------------------------------------------------------------------------------------


def _draw(name: str, found: dict[str, Gathered], out: Path) -> list[Path]:
    with new_figure(2, 2, size=(6.75, 4.9), gridspec_kw={"width_ratios": [1.2, 1.0]}) as (figure, axes):
        panels = list(axes.flat)
        shown = [(each, look) for each, look in zip(found.values(), LOOKS, strict=False) if each.runs]
        for each, look in shown:
            _draw_variant(panels, each, look)
        _draw_new_and_old(panels[2], shown)
        for axis, title, x, y in (
            (panels[0], "the newest task", "tasks learned", "accuracy (%)"),
            (panels[1], "every task, at the end", "tasks learned since", "accuracy (%)"),
            (panels[2], "at the end: the newest five, and all older", "", "accuracy (%)"),
            (panels[3], "the weights", "tasks learned", "entropy (bits)"),
        ):
            axis.set(title=title, xlabel=x, ylabel=y, ylim=(0, 1 if axis is panels[3] else 100))
            axis.grid(axis="y" if axis is panels[2] else "both", linewidth=0.4, color="#dddddd")
            axis.set_axisbelow(True)
        handles, labels = panels[0].get_legend_handles_labels()
        if not handles:
            figure.suptitle("no finished run", fontsize=9)
        figure.legend(handles, labels, loc="outside upper center", ncols=min(2, max(len(labels), 1)))
        return save_figure(figure, out, name)


def _draw_variant(axes: Any, each: Gathered, look: tuple[str, str]) -> None:
    runs = each.runs
    tasks = np.arange(1, len(runs[0].record.tasks) + 1, dtype=np.float64)
    label = f"{each.variant.label} ({len(runs)} seed{'s' if len(runs) > 1 else ''})"
    draw_mean(axes[0], tasks, np.array([diagonal(run) for run in runs]), look, label=label)
    # By age, so that streams of different lengths compare.
    draw_mean(axes[1], tasks - 1, np.array([last_row(run)[::-1] for run in runs]), look)
    averages = [average for run in runs if (average := average_of_seen(run)) is not None]
    if averages:
        thin = (look[0], ":")
        draw_mean(axes[0], tasks, np.array(averages), thin, linewidth=0.9, label=f"{each.variant.label}, mean of seen")
    entropies = [run.weights("entropy") for run in runs]
    if all(value is not None for values in entropies for value in values):
        draw_mean(axes[3], np.append(0.0, tasks), np.array(entropies, dtype=np.float64), look)


def _draw_new_and_old(axis: Any, shown: list[tuple[Gathered, tuple[str, str]]]) -> None:
    """Two groups of bars, one bar for each variant, with the spread over seeds."""
    width = 0.8 / max(len(shown), 1)
    titles = ("Last 5 tasks", _OLD)
    for index, (each, (colour, _)) in enumerate(shown):
        values = measures(each, each.policies()[0])
        for place, title in enumerate(titles):
            measured = [value for value in values[title] if value is not None]
            if not measured:
                continue
            x, height = place + (index - (len(shown) - 1) / 2) * width, float(np.mean(measured))
            spread = float(np.std(measured)) if len(measured) > 1 else None
            axis.bar(x, height, 0.9 * width, color=colour, yerr=spread, error_kw={"elinewidth": 0.8, "ecolor": GRAY})
            axis.text(x, height + 1.5, f"{height:.0f}", ha="center", fontsize=6)
    axis.set_xticks(range(len(titles)), ["newest five", "all older"])
