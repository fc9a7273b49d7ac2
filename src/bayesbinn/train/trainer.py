"""Epoch-by-epoch training that can be stopped and resumed at any batch.

A stream has tasks, a task has epochs, an epoch has batches; a run is a stream of one task. `Trainer` is what both
share: the epoch with its batches, schedule and clock, checkpoints inside and between epochs, stop requests, progress
reports and resuming. `runs.single.Run` and `continual.learner.Learner` add what they measure and store.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesbinn import ranks
from bayesbinn.data import Part
from bayesbinn.errors import InvalidInput
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.train import data_parallel
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.loop import Loss, Totals, set_learning_rates, train_batches, training_threads
from bayesbinn.train.progress import Clock, Progress, RunStopped
from bayesbinn.train.resumable import Resumable
from bayesbinn.train.schedules import Schedule


@dataclass(frozen=True)
class Recipe:
    """How the epochs of a task are trained."""

    epochs: int
    batch_size: int
    schedule: Schedule
    loss: Loss
    augment: bool
    seed: int
    classification: bool = True
    shift: int = 0
    """Shift training images at random by up to this many pixels."""
    distort: float = 0.0
    """Distort training images at random, this strongly."""


Watcher = Callable[[RunFolder, int], AbstractContextManager[Callable[[Progress], None]]]
"""Opened around the epochs of a session, given the folder and the first epoch; yields what receives the progress."""


@dataclass(frozen=True)
class _Session:
    """One call of `Trainer.train`."""

    folder: RunFolder | None
    last: int
    """The epoch to stop after, counted over all tasks."""
    checkpoint_seconds: float
    on_progress: Callable[[Progress], None]
    should_stop: Callable[[], bool]


class Trainer(Resumable):
    """A network in training. Its public members are what callers rely on, whether it trains one task or many."""

    notes: tuple[str, ...] = ()
    """What the user should know, one sentence each."""
    watchers: tuple[Watcher, ...] = ()
    """Who else follows the progress, such as trackers; opened by the process that writes to the folder."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: BinaryOptimizer,
        real_optimizer: torch.optim.Optimizer | None,
        recipe: Recipe,
        folder: RunFolder | Path | None,
    ) -> None:
        super().__init__(model, optimizer, real_optimizer, folder)
        self.recipe = recipe
        self.task = 0
        """The current task, counted from 0."""
        self._replica: nn.Module | None = None
        """The model as data-parallel ranks train it."""

    # ---- for callers -------------------------------------------------------------------------

    @property
    @abstractmethod
    def tasks(self) -> int:
        """The number of tasks."""

    @property
    def total_epochs(self) -> int:
        """The number of epochs over all tasks."""
        return self.tasks * self.recipe.epochs

    @property
    def epochs_done(self) -> int:
        """The number of finished epochs over all tasks."""
        return self.task * self.recipe.epochs + self.epoch - 1

    @property
    def finished(self) -> bool:
        return self.epochs_done >= self.total_epochs

    @property
    def where_to_resume(self) -> str:
        """The position in words; empty at the start."""
        begun = self.epochs_done or self.totals.batches
        return f"{self._position()}, after {self.totals.batches} batches" if begun else ""

    def train(
        self,
        *,
        stop_after: int | None = None,
        checkpoint_seconds: float = 180.0,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train to the end, or until `stop_after` epochs (for a stream, tasks) are done; the schedule stays the same.

        With a folder, a checkpoint is written after an epoch and, within one, every `checkpoint_seconds`.
        `on_progress` is called after every batch and every epoch, and while the result is calibrated. When
        `should_stop` returns True, training finishes the current batch, writes a checkpoint and raises `RunStopped`.
        """
        if stop_after is not None and stop_after < 1:
            raise InvalidInput(f"stop_after={stop_after}: must be 1 or more")
        last = min(self.total_epochs, (stop_after or self.total_epochs) * self._epochs_per_stop())
        with self._writing() as folder:
            if self.epochs_done < last:
                with self._followed(folder, on_progress) as followed, self._watched(folder, followed) as watch:
                    session = _Session(folder, last, checkpoint_seconds, watch, should_stop)
                    while self.epochs_done < last:
                        self._run_epoch(session)
            self._finish(folder, self._calibrating(on_progress, should_stop))

    @contextmanager
    def _followed(
        self, folder: RunFolder | None, on_progress: Callable[[Progress], None]
    ) -> Iterator[Callable[[Progress], None]]:
        with ExitStack() as opened:
            watchers = self.watchers if folder is not None and folder.writes else ()
            heard = [opened.enter_context(watcher(folder, self.epochs_done + 1)) for watcher in watchers if folder]
            heard.append(on_progress)

            def tell(progress: Progress) -> None:
                for hear in heard:
                    hear(progress)

            yield tell

    def _calibrating(
        self, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]
    ) -> Callable[[float], None]:
        """To be called with the share of the calibration that is done: it takes long for large networks."""
        epochs = self.epochs_done

        def tell(share: float) -> None:
            on_progress(Progress(epochs, self.total_epochs, 0, 1, Totals(), calibrated=share))
            if ranks.summed([should_stop()])[0]:
                where = "" if self.folder is None else f"; the same command completes {self.folder}"
                raise RunStopped(f"stopped after the last epoch, while calibrating{where}")

        return tell

    # ---- one epoch ---------------------------------------------------------------------------

    def _run_epoch(self, session: _Session) -> None:
        number, clock = self.epochs_done + 1, Clock(self.elapsed, session.checkpoint_seconds)
        batches = self._train_batches(session, clock)
        totals, is_last = data_parallel.total_of(self.totals), number == session.last
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": totals.mean_loss,
            "train_accuracy": totals.accuracy if self.recipe.classification else None,
        }
        row = self._end_epoch(row, clock, is_last)
        self.totals, self.elapsed = Totals(), 0.0
        waited = time.monotonic() - self._saved_at
        if is_last or self._worth_saving(waited, session.checkpoint_seconds):
            self._save(session.folder, self.totals)
        shown = {**row, **self._news()}
        session.on_progress(Progress(number, self.total_epochs, batches, batches, Totals(), shown))

    def _train_batches(self, session: _Session, clock: Clock) -> int:
        """Train the rest of the epoch; return the number of batches in the whole epoch."""
        recipe, number = self.recipe, self.epochs_done + 1
        if self._replica is None:
            self._replica = data_parallel.replicated(self.model, self.optimizer, self.real_optimizer)
        batches = self._training_part().batches(
            recipe.batch_size,
            seed=recipe.seed,
            epoch=number,
            start=self.totals.batches,
            augment=recipe.augment,
            drop_single=True,
            shard=(ranks.rank(), ranks.world()),
            shift=recipe.shift,
            distort=recipe.distort,
        )
        count = self.totals.batches + len(batches)

        def before_batch() -> None:
            progress = (self.epoch - 1 + self.totals.batches / count) / recipe.epochs
            set_learning_rates(self._optimizers(), recipe.schedule.factor(self.epoch, recipe.epochs, progress))
            data_parallel.separate_dropout(recipe.seed, number, self.totals.batches)

        def after_batch() -> None:
            seen, classes = self.totals, recipe.classification
            session.on_progress(Progress(number, self.total_epochs, seen.batches, count, seen, classification=classes))
            # Ctrl-C reaches the ranks in different batches, and their clocks differ.
            stop, save = ranks.summed([session.should_stop(), ranks.rank() == 0 and clock.checkpoint_due()])
            if stop or save:
                self.elapsed = clock.elapsed()
                self._save(session.folder, data_parallel.total_of(self.totals))
            if stop:
                where = "" if self.folder is None else f"; the same command resumes {self.folder}"
                raise RunStopped(f"stopped in {self._position()}{where}")

        with training_threads(self.model, recipe.batch_size):
            train_batches(
                self._replica,
                self.optimizer,
                batches,
                self.totals,
                loss=recipe.loss,
                real_optimizer=self.real_optimizer,
                mc_samples=self.optimizer.mc_samples,
                sizes=batches.sizes,
                before_batch=before_batch,
                after_batch=after_batch,
            )
        return count

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer] if self.real_optimizer is None else [self.optimizer, self.real_optimizer]

    # ---- what each kind of training adds -----------------------------------------------------

    @abstractmethod
    def _epochs_per_stop(self) -> int:
        """How many epochs `stop_after=1` means."""

    @abstractmethod
    def _position(self) -> str:
        """The current epoch, in words."""

    @abstractmethod
    def _training_part(self) -> Part:
        """The data that the current epoch trains on."""

    @abstractmethod
    def _end_epoch(self, row: dict[str, Any], clock: Clock, is_last: bool) -> dict[str, Any]:
        """Measure, complete and store the line of metrics, and advance to the next epoch."""

    @abstractmethod
    def _worth_saving(self, waited: float, checkpoint_seconds: float) -> bool:
        """Whether to save the epoch that has just ended, `waited` seconds after the last checkpoint."""

    @contextmanager
    def _watched(
        self, folder: RunFolder | None, on_progress: Callable[[Progress], None]
    ) -> Iterator[Callable[[Progress], None]]:
        """Entered around the epochs of a session, if there are any; yields the callback for their progress."""
        yield on_progress

    def _news(self) -> dict[str, Any]:
        """Metrics of earlier epochs that have just become known, to be shown with this epoch's."""
        return {}

    @abstractmethod
    def _finish(self, folder: RunFolder | None, on_progress: Callable[[float], None]) -> None:
        """Write the results of a session that was not stopped."""
