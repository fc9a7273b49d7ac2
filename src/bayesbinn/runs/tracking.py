"""Trackers: programs that collect the metrics of runs, behind one small interface.

A tracker is opened for a session of training, receives the numbers of every epoch, and is closed at the end. A resumed
run continues the same tracked run, whose identity is in ``tracking.json`` in the folder of the run. Each tracker is an
optional package, imported only when it is asked for.
"""

from __future__ import annotations

import json
import secrets
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from bayesbinn.environment import need
from bayesbinn.errors import BayesbinnError, BayesbinnWarning, InvalidInput, InvalidUse, nearest, printable
from bayesbinn.experiments.config import Experiment
from bayesbinn.runs.folder import flat
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.progress import Progress
from bayesbinn.train.trainer import Watcher

FILE_NAME = "tracking.json"
PROJECT = "bayesbinn"
"""What the trackers file all runs under."""
PACKAGES = {"tensorboard": "tensorboard", "trackio": "trackio", "wandb": "wandb", "mlflow": "mlflow"}
"""The trackers, and the package that each needs, which is also the name of its extra."""


class TrackingWarning(BayesbinnWarning):
    """A tracker that stopped working; the run continues without it."""


class Tracker(ABC):
    """Receives the metrics of a session."""

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of an epoch; `step` counts epochs over all tasks, from 1."""

    @abstractmethod
    def close(self) -> None:
        """End the session. The tracked run may be continued later."""


Open = Callable[[RunFolder, int, Experiment], Tracker]
"""Opens a tracker for a session that starts with this epoch."""


def check_trackers(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; raises for an unknown tracker or one that is not installed."""
    found = tuple(dict.fromkeys(names))
    for name in found:
        if name not in PACKAGES:
            raise InvalidInput(f"--track {name}:{nearest(name, PACKAGES)} Allowed: {', '.join(PACKAGES)}")
        need(PACKAGES[name], f"--track {name}", name)
    return found


def watcher(name: str, open_tracker: Open, experiment: Experiment) -> Watcher:
    """What a trainer opens around the epochs of a session."""

    @contextmanager
    def watch(folder: RunFolder, first: int) -> Iterator[Callable[[Progress], None]]:
        with _explained(name):
            tracker = open_tracker(folder, first, experiment)
        working = True

        def log(progress: Progress) -> None:
            nonlocal working
            if progress.row is None or not working:
                return
            try:
                with _quiet():
                    tracker.log(progress.epoch, numbers_of(progress.row))
            except BayesbinnError:
                raise
            except Exception as error:  # a third-party program whose server may be down: the run matters more
                working = False
                reason = printable(" ".join(str(error).split()))
                warnings.warn(f"--track {name} failed and is off from now on: {reason}", TrackingWarning, 2)

        try:
            yield log
        finally:
            with _quiet():
                tracker.close()

    return watch


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a line of metrics; a list of accuracies becomes one number per task.

    >>> numbers_of({"epoch": 3, "train_loss": 0.5, "test_accuracy": None, "accuracy": [90.0, 80.0]})
    {'train_loss': 0.5, 'accuracy_task_1': 90.0, 'accuracy_task_2': 80.0}
    """
    found: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, list):
            found |= {f"{key}_task_{task}": each for task, each in enumerate(value, 1)}
        elif key != "epoch" and isinstance(value, (int, float)):
            found[key] = value
    return found


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """The settings of a run, by their dotted names."""
    return flat(experiment.model_dump(mode="json", exclude_none=True))


def identity(folder: RunFolder, tracker: str, make: Callable[[], str] = lambda: secrets.token_hex(4)) -> str:
    """The name by which a tracker knows this run: made in the first session, stored, and used from then on."""
    path = folder.path / FILE_NAME
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        known = known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        known = {}
    if not isinstance(known.get(tracker), str):
        known[tracker] = make()
        folder.write(FILE_NAME, (json.dumps(known, indent=1) + "\n").encode())
    return str(known[tracker])


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        with _quiet():
            yield
    except BayesbinnError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidUse(f"--track {name}: it could not be started ({reason})") from error


def _quiet() -> redirect_stdout[Any]:
    """What trackers print goes to standard error: standard output is for results."""
    return redirect_stdout(sys.stderr)
