"""A run on the screen: a live bar in a terminal, a line per epoch elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bayesbinn.runs import Progress as RunProgress


@contextmanager
def shown(console: Console, title: str, epochs: int, done: int = 0) -> Iterator[Callable[[RunProgress], None]]:
    """A callback for `Run.train` that shows accuracy, flips and time left.

    `done` is how many epochs an earlier session trained: they do not count for the speed.
    """
    columns = (
        TextColumn(f"{title}  epoch {{task.fields[epoch]}}/{epochs}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=epochs, completed=done, epoch=done + 1, note="")
        last = 0.0

        def update(progress: RunProgress) -> None:
            nonlocal last
            if progress.row is not None:
                text = row_text(progress.row)
                bar.update(task, completed=progress.epoch, note=text, epoch=progress.epoch)
                if not console.is_terminal:
                    console.print(f"epoch {progress.epoch}/{progress.epochs}  {text}", soft_wrap=True)
            elif time.monotonic() - last > 0.2:
                last = time.monotonic()
                done = progress.epoch - 1 + progress.batch / progress.batches
                note = f"loss {progress.totals.mean_loss:.3f}"
                if progress.classification:
                    note += f"  train {progress.totals.accuracy:.1f} %"
                bar.update(task, completed=done, note=note, epoch=progress.epoch)

        yield update


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
    """Whether a run shall stop, and by which signal it was asked to. Calling it gives the answer."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """As shells give it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.signal or signal.SIGINT)

    def ask(self, number: int, frame: Any) -> None:
        """The handler of both signals."""
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
