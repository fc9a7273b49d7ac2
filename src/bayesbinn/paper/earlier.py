"""Runs that the repository knows only by the numbers of a figure: they were computed before runs left records.

A figure on streams of tasks keeps every seed's numbers in its JSON file. When the figure is drawn again and a run has
neither a folder nor a record, its numbers are taken from there, and its seed is marked in the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesbinn.continual import Record
from bayesbinn.experiments.config import Experiment
from bayesbinn.paper.drawing import machine
from bayesbinn.paper.records import machines

MARK = "*"
NOTE = (
    f"Seeds with {MARK} are older than the records in results/runs: only their numbers are left, without command, "
    "commit and hash."
)

Numbers = Mapping[str, Any]


@dataclass
class EarlierRecord(Record):
    """A record whose summary was computed when the whole accuracy matrix was known."""

    known: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """By policy and metric."""

    def summary(self) -> dict[str, dict[str, float | None]]:
        return {policy: dict(values) for policy, values in self.known.items()}


@dataclass(frozen=True)
class Earlier:
    """The numbers of a figure as it was drawn before."""

    width: float
    variants: Mapping[str, Numbers]
    metrics: Mapping[str, str]
    """The names of `bayesbinn.forgetting` by column."""
    strange: Mapping[str, tuple[str, str]]
    """Where the record of a run has what a column on strange inputs shows."""

    @classmethod
    def read(
        cls, path: Path, metrics: Mapping[str, str], strange: Mapping[str, tuple[str, str]] | None = None
    ) -> Earlier:
        """From the figure's JSON file; nothing if there is none."""
        found: Numbers = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return cls(found.get("width", 1.0), found.get("variants", found.get("rows", {})), metrics, strange or {})

    def record(self, variant: str, wanted: Experiment) -> Record | None:
        """What is known of this seed, if the figure showed the same experiment."""
        numbers = self.variants.get(variant)
        seed, settings = wanted.training.seed, wanted.continual
        if numbers is None or settings is None or seed not in numbers["seeds"]:
            return None
        same = numbers["epochs per task"] == wanted.training.epochs and numbers["samples"] == settings.samples
        if not same or self.width != wanted.model.width:
            return None
        index = numbers["seeds"].index(seed)
        chosen = {key: _of_one_seed(value, index, len(numbers["seeds"])) for key, value in numbers.items()}
        record = self._of_seed(chosen, index, wanted.training.epochs)
        return record if len(record.tasks) == settings.tasks else None

    def _of_seed(self, numbers: Numbers, index: int, epochs: int) -> Record:
        if "when learned" in numbers:
            record = self._of_stream(numbers, index)
        elif "after the last task" in numbers:
            record = self._of_continual(numbers, index, epochs)
        else:
            record = _of_posteriors(numbers)
        for what in ("train", "evaluation"):
            # Only the sums are known: they stand in the first line.
            for number, line in enumerate(record.finished):
                line[f"{what}_seconds"] = numbers[f"{what} seconds"][index] if number == 0 else 0.0
        return record

    def _of_stream(self, numbers: Numbers, index: int) -> Record:
        learned, end = numbers["when learned"][index], numbers["at the end"][index]
        entropy, saturated = numbers["entropy"][index], numbers["saturated"][index]
        policies = list(numbers["accuracy"])
        finished = []
        for task, accuracy in enumerate(learned, 1):
            values = {str(task): accuracy} if task < len(learned) else _by_task(end)
            weights = {"entropy": entropy[task], "saturated": saturated[task]}
            finished.append({"task": task, "accuracy": dict.fromkeys(policies, values), **weights})
        auroc: dict[str, dict[str, float]] = {}
        for title, (inputs, score) in self.strange.items():
            if numbers["auroc"].get(title):
                auroc.setdefault(inputs, {})[score] = numbers["auroc"][title]
        known = {policy: self._summary(values) for policy, values in numbers["accuracy"].items()}
        start = {"entropy": entropy[0], "saturated": saturated[0]}
        return EarlierRecord(_names(len(learned)), [], finished, start, {"auroc": auroc}, known)

    def _of_continual(self, numbers: Numbers, index: int, epochs: int) -> Record:
        by_policy = numbers["after the last task"]
        first, tasks = next(iter(by_policy)), len(numbers["curves"])
        points = {
            task: dict(zip(curve["epochs"], curve["accuracy"][index], strict=True))
            for task, curve in enumerate(numbers["curves"].values(), 1)
        }
        last = {
            policy: [values[f"Task {task}"] for task in range(1, tasks + 1)] for policy, values in by_policy.items()
        }
        finished = []
        for task in range(1, tasks + 1):
            line: dict[str, Any] = {"task": task, "accuracy": {policy: {} for policy in by_policy}}
            line["accuracy"][first] = {str(old): points[old][task * epochs] for old in range(1, task + 1)}
            for key in ("entropy", "saturated"):
                line[key] = numbers[key][task]
            finished.append(line)
        finished[-1]["accuracy"] = {policy: _by_task(values) for policy, values in last.items()}
        inside = [
            {
                "task": (epoch - 1) // epochs + 1,
                "epoch": (epoch - 1) % epochs + 1,
                "accuracy": [points[task][epoch] for task in range(1, tasks + 1) if epoch in points[task]],
            }
            for epoch in points[1]
            if epoch % epochs
        ]
        start = {key: numbers[key][0] for key in ("entropy", "saturated")}
        known = {policy: self._summary(values) for policy, values in by_policy.items()}
        return EarlierRecord(_names(tasks), inside, finished, start, {}, known)

    def _summary(self, values: Numbers) -> dict[str, float | None]:
        return {metric: values.get(title) for title, metric in self.metrics.items()}


def made_on(path: Path, earlier: bool, others: Iterable[Path]) -> dict[str, str]:
    """The machines of a figure's numbers: of the figure as it was if it shows `earlier` numbers, and of `others`.

    `others` are the folders of the runs whose numbers are not those of the figure as it was.
    """
    ran_on = machines(others)
    if not earlier or not path.is_file():
        return machine(ran_on)
    then: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["machine"]
    then.pop("Runs with records", None)
    return {**then, "Runs with records": "; ".join(machine(ran_on).values())} if ran_on else then


def earlier_curves(path: Path, dataset: str) -> list[tuple[int, int, list[dict[str, Any]]]]:
    """Of figure-curves as it was: seed, length of the schedule and the lines of the epochs of every run."""
    found: Numbers = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    numbers = found.get("data", {}).get(dataset, {})
    runs = []
    for index, seed in enumerate(numbers.get("seeds", [])):
        lines: dict[int, dict[str, Any]] = {}
        for part in ("train", "validation", "test"):
            measured = numbers[part]
            for epoch, value in zip(measured["epochs"], measured["ours"][index], strict=True):
                lines.setdefault(epoch, {"epoch": epoch})[f"{part}_accuracy"] = value
        share = numbers["seconds"] / max(1, len(lines) * len(numbers["seeds"]))
        rows = [{**lines[epoch], "seconds": share} for epoch in sorted(lines)]
        runs.append((seed, int(numbers["schedule"]), rows))
    return runs


def _of_posteriors(numbers: Numbers) -> Record:
    """The histograms of one seed."""
    points = {title: dict(line) for title, line in numbers.items() if title.startswith("after task ")}
    finished = [{"task": task, "accuracy": {}, **line} for task, line in enumerate(points.values(), 1)]
    return EarlierRecord(_names(len(finished)), [], finished, dict(numbers["start"]))


def _of_one_seed(tree: Any, index: int, seeds: int) -> Any:
    """The tree with one seed's value in the place of every mean; None where not all seeds have one."""
    if isinstance(tree, dict):
        if {"mean", "std", "values"} <= tree.keys():
            return tree["values"][index] if len(tree["values"]) == seeds else None
        return {key: _of_one_seed(value, index, seeds) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_of_one_seed(value, index, seeds) for value in tree]
    return tree


def _by_task(values: list[Any]) -> dict[str, Any]:
    return {str(task): value for task, value in enumerate(values, 1)}


def _names(tasks: int) -> list[str]:
    return [f"permutation {index}" for index in range(tasks)]
