"""The page of a stream of tasks: the accuracy of every task over time, and what was forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayesbinn.continual.record import Record
from bayesbinn.errors import BayesbinnError
from bayesbinn.experiments.config import Experiment
from bayesbinn.report import network, provenance
from bayesbinn.report.blocks import Block, Drawing, Facts, Matrix, Missing, Row, Section, Table, Text
from bayesbinn.report.drawing import DASHES, INK, SERIES, canvas, drawn, thinned, whole_numbers
from bayesbinn.report.page import Page
from bayesbinn.report.run import duration
from bayesbinn.runs.stream import load_record
from bayesbinn.runs.trained import Trained, load_network

MAX_CURVES = 6
MAX_MATRIX = 12
_METRICS = {
    "average_accuracy": "average accuracy at the end",
    "last_accuracy": "accuracy on the last five tasks",
    "learning_accuracy": "accuracy right after learning",
    "forgetting_since_learned": "forgotten since learned",
    "forgetting_since_best": "forgotten since the best",
    "backward_transfer": "backward transfer",
    "forward_transfer": "forward transfer",
}
Points = list[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class StreamFacts:
    """Everything measured on a stream of tasks."""

    folder: Path
    experiment: Experiment
    record: Record
    policy: str
    """The BatchNorm policy that is drawn: the last, which covers both learned and other tasks."""
    summary: Mapping[str, Mapping[str, float | None]]
    trained: Trained | None
    problem: str


def gather(folder: Path, data_dir: Path | None) -> StreamFacts:
    """Read the folder. The data are not needed."""
    experiment, record = load_record(folder)
    trained, problem = None, ""
    try:
        trained = load_network(folder, data_dir=data_dir)
    except BayesbinnError as error:
        problem = str(error)
    policies = record.policies()
    policy = policies[-1] if policies else ""
    return StreamFacts(folder, experiment, record, policy, record.summary(), trained, problem)


def curves_of(record: Record, policy: str) -> dict[int, Points]:
    """By task, counted from 1: its accuracy after each task from its own on."""
    found: dict[int, Points] = {}
    for line in record.finished:
        for task, accuracy in line["accuracy"].get(policy, {}).items():
            if int(task) <= line["task"]:
                found.setdefault(int(task), []).append((float(line["task"]), float(accuracy)))
    return found


def page(facts: StreamFacts) -> Page:
    """Every section of a stream."""
    record = facts.record
    sections = [Section("Accuracy over time", _over_time(facts)), Section("Forgetting", _forgetting(facts))]
    sections.append(Section("Weights over time", _weights(record)))
    if facts.trained is None:
        sections.append(Section("Layers", [Missing(facts.problem)]))
    else:
        sections.append(network.layers_section(network.gather(facts.trained).sizes))
    sections.append(
        provenance.section(facts.experiment, None if facts.trained is None else facts.trained.card, facts.folder)
    )
    return Page(facts.folder.resolve().name, facts.experiment.title, [Facts(_headline(facts), large=True)], sections)


def _headline(facts: StreamFacts) -> list[tuple[str, str]]:
    record, found = facts.record, {"method": facts.experiment.method.name}
    found["tasks"] = f"{len(record.finished)} of {len(record.tasks)}"
    found["training time"] = duration(sum(float(line["seconds"]) for line in record.epochs))
    best = facts.summary.get(facts.policy, {})
    for key, name in (("average_accuracy", "average accuracy"), ("forgetting_since_learned", "forgotten")):
        value = best.get(key)
        if value is not None:
            found[name] = f"{value:.2f} %"
    return list(found.items())


def _over_time(facts: StreamFacts) -> list[Block]:
    curves = curves_of(facts.record, facts.policy)
    if not curves:
        return [Missing("no task has been learned yet")]
    blocks: list[Block] = [Row([_draw_tasks(facts, curves), _draw_average(facts, curves)])]
    if len(facts.record.finished) <= MAX_MATRIX:
        blocks.append(_matrix(facts))
    return blocks


def _matrix(facts: StreamFacts) -> Matrix:
    table = facts.record.matrix(facts.policy)
    names = [f"after task {i + 1}" for i in range(len(table))]
    values = [[None if np.isnan(value) else float(value) for value in row] for row in table]
    shares = np.nan_to_num(table / 100)
    caption = f"Accuracy on each task in percent (BatchNorm {facts.policy})"
    columns = [f"task {i + 1}" for i in range(len(table))]
    return Matrix(caption, "tested", names, columns, values, shares.tolist(), digits=1)


def _draw_tasks(facts: StreamFacts, curves: Mapping[int, Points]) -> Drawing:
    shown = thinned(sorted(curves), MAX_CURVES)
    with canvas() as (figure, axes):
        axis = axes[0, 0]
        for index, task in enumerate(shown):
            x, y = zip(*thinned(curves[task]), strict=True)
            style = {"color": SERIES[index], "linestyle": DASHES[index], "marker": "os^Dv*"[index], "markersize": 4}
            axis.plot(x, y, label=f"task {task}", markevery=max(1, len(x) // 12), **style)
        axis.set_xlabel("tasks learned")
        whole_numbers(axis)
        axis.set_ylabel("test accuracy, %")
        axis.legend(ncols=2)
        end = ", ".join(f"task {task} {curves[task][0][1]:.1f} % then {curves[task][-1][1]:.1f} %" for task in shown)
        some = f" {len(shown)} of {len(curves)} tasks are drawn." if len(shown) < len(curves) else ""
        caption = f"Each task from the moment it is learned (BatchNorm {facts.policy}).{some}"
        return drawn(figure, "tasks", f"Accuracy of tasks when learned and at the end: {end}.", caption)


def _draw_average(facts: StreamFacts, curves: Mapping[int, Points]) -> Drawing:
    count = len(facts.record.finished)
    by_time: dict[int, list[float]] = {i: [] for i in range(1, count + 1)}
    for points in curves.values():
        for time, accuracy in points:
            by_time[int(time)].append(accuracy)
    points = thinned([(time, sum(each) / len(each)) for time, each in by_time.items() if each])
    with canvas() as (figure, axes):
        axis = axes[0, 0]
        axis.plot(*zip(*points, strict=True), color=INK, marker="o", markersize=4 if count < 30 else 0)
        axis.set_xlabel("tasks learned")
        whole_numbers(axis)
        axis.set_ylabel("mean accuracy, %")
        alt = f"Mean accuracy: {points[0][1]:.1f} % after the first task, {points[-1][1]:.1f} % after the last."
        return drawn(figure, "average", alt, "The mean over the tasks learned and measured so far.")


def _forgetting(facts: StreamFacts) -> list[Block]:
    if not facts.summary:
        return [Missing("no task has been learned yet")]
    rows = [
        [name, *("" if (value := found[key]) is None else f"{value:.2f}" for found in facts.summary.values())]
        for key, name in _METRICS.items()
    ]
    blocks: list[Block] = [
        Table("In percent, by how BatchNorm's statistics are chosen", ["metric", *facts.summary], rows),
        Text(
            "Forgotten: accuracy lost by the end, averaged over all tasks but the last. docs/continual.md defines all "
            "metrics."
        ),
    ]
    auroc = facts.record.end.get("auroc", {})
    if auroc:
        kinds = list(next(iter(auroc.values())))
        table = [[name, *(f"{found[kind]:.3f}" for kind in kinds)] for name, found in auroc.items()]
        head = ["inputs", *(kind.replace("_", " ") for kind in kinds)]
        blocks.append(
            Table("AUROC of separating unfamiliar inputs from the last task's, after the last task", head, table)
        )
    return blocks


def _weights(record: Record) -> list[Block]:
    lines: Sequence[Mapping[str, float]] = [line for line in record.finished if line.get("entropy") is not None]
    if not lines:
        return [Missing("this method keeps one network, without probabilities")]
    with canvas() as (figure, axes):
        axis = axes[0, 0]
        for index, (key, name) in enumerate((("entropy", "entropy, bits"), ("saturated", "share that is certain"))):
            x, y = zip(*thinned([(line["task"], line[key]) for line in lines]), strict=True)
            axis.plot(x, y, label=name, color=SERIES[index], linestyle=DASHES[index], marker="os"[index], markersize=4)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("tasks learned")
        whole_numbers(axis)
        axis.legend()
        first, last = lines[0]["entropy"], lines[-1]["entropy"]
        alt = f"Mean entropy of the weights: {first:.3f} bits after the first task, {last:.3f} after the last."
        caption = "Mean entropy of a weight, and the share of weights whose sign has a probability of at least 0.99."
        return [drawn(figure, "entropy", alt, caption)]
