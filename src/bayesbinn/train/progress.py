"""How far a run is, how it shows its progress, and how it is asked to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bayesbinn.errors import BayesbinnError
from bayesbinn.train.loop import Totals


def row_text(row: dict[str, Any]) -> str:
    """One line of metrics for people."""
    parts = [f"task {row['task']}"] if "task" in row else []
    parts.append(f"loss {row['train_loss']:.4f}")
    for key, name in (
        ("train_accuracy", "train"),
        ("validation_accuracy", "validation"),
        ("test_accuracy", "test"),
        ("test_accuracy_mean", "test (mean)"),
    ):
        if row.get(key) is not None:
            parts.append(f"{name} {row[key]:.2f} %")
    for key, name in (("validation_rmse", "validation RMSE"), ("test_rmse", "test RMSE")):
        if row.get(key) is not None:
            parts.append(f"{name} {row[key]:.4g}")
    if "accuracy" in row:
        late = f" (epoch {row['accuracy_epoch']})" if row.get("accuracy_epoch", row["epoch"]) != row["epoch"] else ""
        parts.append(f"tasks so far{late} {' '.join(f'{each:.1f}' for each in row['accuracy'])} %")
    if "flip_ratio" in row:
        parts.append(f"flipped {100 * row['flip_ratio']:.2f} %")
    return "  ".join([*parts, f"{row['seconds']:.1f} s"])


class StopRequest:
    """Whether a run should stop, and which signal asked it to. Call it for the answer."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The shell convention: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.signal or signal.SIGINT)

    def ask(self, number: int, frame: Any) -> None:
        """The handler for both signals."""
        if self.signal is not None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        self.signal = number


@contextmanager
def stoppable() -> Iterator[StopRequest]:
    """The first Ctrl-C or SIGTERM asks the run to stop after its batch; a second one ends the process at once."""
    asked = StopRequest()
    previous = {number: signal.signal(number, asked.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class RunStopped(BayesbinnError):
    """The user asked the run to stop; it can be resumed."""


@dataclass
class Progress:
    """What a progress display shows while a run trains."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    totals: Totals
    row: dict[str, Any] | None = None
    """The line of metrics, when an epoch was just evaluated."""
    classification: bool = True
    calibrated: float | None = None
    """The share of the calibration that is done, from 0 to 1; it follows the last epoch."""


class Clock:
    """Time spent on an epoch, and when the next checkpoint is due."""

    def __init__(self, spent: float, interval: float) -> None:
        self._start = time.monotonic() - spent
        self._interval = interval
        self._next = time.monotonic() + interval

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def checkpoint_due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._interval
        return True
