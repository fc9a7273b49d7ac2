"""Small runs of every kind, as commands, and whether two of their folders have the same contents."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers.processes import Commands

DIGITS = {"model.width": 0.02, "training.batch_size": 100, "training.epochs": 2, "training.mean_samples": 2}
# Relaxed, so that the noise of every step shows in the weights.
RELAXED = {"lr": 0.03, "temperature": 0.5, "initial_strength": 1.0}
STREAM = {"continual.tasks": 2, "training.epochs": 1, "continual.samples": 2, "training.batch_size": 100}
OWN = {"training.batch_size": 16, "training.epochs": 6, "model.width": 0.3}

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "table": ("classes.csv", "bayesbinn", OWN),
    "regression": ("numbers.csv", "bayesbinn", OWN),
    "stream with memory": ("permuted-digits", "bayesbinn", {**STREAM, "memory": 3e3, "temperature": 1.0}),
    "pmf": ("digits", "pmf", DIGITS),
    "bop": ("digits", "bop", DIGITS),
    "float": ("digits", "float", DIGITS),
    "bayesbinn": ("digits", "bayesbinn", {**DIGITS, **RELAXED}),
    "ste": ("digits", "ste", DIGITS),
    "lrnet": ("digits", "lrnet", DIGITS),
    "stream": ("permuted-digits", "bayesbinn", STREAM),
}
"""Each: a preset or one of the tables of `write_tables`, a method, settings. First those that no other test kills."""


def write_tables(folder: Path) -> None:
    """A table with three classes and one with a number to predict."""
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 4)).round(3)
    y = x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.1 * random.normal(size=120)
    names = np.array(["low", "middle", "high"])[np.digitize(y, [-1.0, 1.0])]
    for name, column in (("classes", names), ("numbers", y.round(4))):
        rows = [",".join(map(str, [*row, value])) for row, value in zip(x.tolist(), column.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,c,d,y", *rows]) + "\n")


def training(kind: str, tables: Path, out: Path, minutes: float = 0.0001) -> list[str]:
    """The command that trains, or resumes, a run of this kind, with a checkpoint every few batches."""
    source, method, changes = KINDS[kind]
    own = [str(tables / source), "--label", "y"] if source.endswith(".csv") else [source]
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    every = ["--checkpoint-minutes", str(minutes)]
    return ["train", *own, "--method", method, "--out", str(out), *every, *settings]


def timeless(tree: Any) -> Any:
    """Remove what differs in every run: how long it took. Tensors become their bytes."""
    if isinstance(tree, torch.Tensor):
        raw = tree.detach().contiguous().reshape(-1)
        return str(tree.dtype), tuple(tree.shape), raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
    if isinstance(tree, dict):
        return {key: timeless(value) for key, value in tree.items() if "seconds" not in str(key)}
    if isinstance(tree, (list, tuple)):
        return [timeless(value) for value in tree]
    return tree


def content_of(folder: Path) -> dict[str, Any]:
    """All files of a finished run: metrics and the checkpoint without times, the others byte for byte."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            continue  # TensorBoard's curves, which contain the time of every point
        if path.suffix == ".pt":
            found[path.name] = timeless(torch.load(path, weights_only=True))
        elif path.suffix == ".json":
            found[path.name] = timeless(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[path.name] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            found[path.name] = path.read_bytes()
    return found


def assert_same_content(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name] == expected[name], f"{name} differs"


@dataclass(frozen=True)
class Undisturbed:
    """A run that was not stopped: the result that others of its kind must reach."""

    content: dict[str, Any]
    lines: frozenset[str]
    seconds: float

    def news(self, lines: list[str]) -> list[str]:
        """Lines that this run did not print, except for those that contain a time or the name of the folder."""
        own = ("epoch ", "resuming ", "to look at it: ")
        return [line for line in lines if line not in self.lines and not line.startswith(own)]


class Runs:
    """Starts runs of every kind, and knows the result of each."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        self.commands, self.folder = commands, folder
        self._known: dict[str, Undisturbed] = {}
        write_tables(folder)

    def training(self, kind: str, out: Path, minutes: float = 0.0001) -> list[str]:
        return training(kind, self.folder, out, minutes)

    def undisturbed(self, kind: str) -> Undisturbed:
        if kind not in self._known:
            out, started = self.folder / f"whole {kind}", time.monotonic()
            assert self.commands.run(*self.training(kind, out)) == 0, self.commands.errors
            seconds = time.monotonic() - started
            self._known[kind] = Undisturbed(content_of(out), frozenset(self.commands.errors), seconds)
        return self._known[kind]

    def finish(self, kind: str, out: Path) -> None:
        """Resume a run to its end, which must match that of the undisturbed run; leave no folder.

        Nobody stops it any more, so it saves itself the time for checkpoints within an epoch.
        """
        assert self.commands.run(*self.training(kind, out, minutes=10)) == 0, self.commands.errors
        assert_same_content(content_of(out), self.undisturbed(kind).content)
        shutil.rmtree(out)
