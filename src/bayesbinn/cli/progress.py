"""A run on the screen: a live bar in a terminal, a line per epoch elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bayesbinn.train.progress import Progress as RunProgress
from bayesbinn.train.progress import row_text

SILENCE = 60.0
"""Seconds after which a log gets another line about the calibration."""


@contextmanager
def shown(console: Console, title: str, epochs: int, done: int = 0) -> Iterator[Callable[[RunProgress], None]]:
    """A callback for `Run.train` that shows accuracy, flips and time left.

    `done` is how many epochs an earlier session trained; they do not count toward the speed.
    """
    columns = (
        TextColumn(f"{title}  epoch {{task.fields[epoch]}}/{epochs}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=epochs, completed=done, epoch=done + 1, note="")
        last, text = 0.0, ""

        def update(progress: RunProgress) -> None:
            nonlocal last, text
            if progress.row is not None:
                text = row_text(progress.row)
                bar.update(task, completed=progress.epoch, note=text, epoch=progress.epoch)
                last = time.monotonic()
                if not console.is_terminal:
                    console.print(f"epoch {progress.epoch}/{progress.epochs}  {text}", soft_wrap=True)
            elif progress.calibrated is not None:
                now = f"calibrating {100 * progress.calibrated:.0f} %"
                bar.update(task, note=text if progress.calibrated == 1 else f"{text}  {now}".strip())
                if not console.is_terminal and time.monotonic() - last > SILENCE:
                    last = time.monotonic()
                    console.print(now, soft_wrap=True)
            elif time.monotonic() - last > 0.2:
                last = time.monotonic()
                done = progress.epoch - 1 + progress.batch / progress.batches
                note = f"loss {progress.totals.mean_loss:.3f}"
                if progress.classification:
                    note += f"  train {progress.totals.accuracy:.1f} %"
                bar.update(task, completed=done, note=note, epoch=progress.epoch)

        yield update
