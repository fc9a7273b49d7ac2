"""What trains a network epoch by epoch, and can be stopped and resumed at any batch.

A stream has tasks, a task has epochs, an epoch has batches; a run is a stream of one task. `Trainer` has all that both
share: the epoch with its batches, schedule and clock, checkpoints inside and between epochs, requests to stop, progress
and resuming. `runs.single.Run` and `continual.learner.Learner` add what they measure and keep.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesbinn import ranks
from bayesbinn.data import Part
from bayesbinn.data.card import CHECKPOINT_KEY, DataCard, known_card
from bayesbinn.data.card import FILE_NAME as CARD
from bayesbinn.errors import InvalidInput, InvalidUse
from bayesbinn.methods.contract import BinaryOptimizer
from bayesbinn.train import data_parallel
from bayesbinn.train.checkpoints import (
    check_adam,
    check_alike,
    check_progress,
    read_checkpoint,
    resuming,
    write_checkpoint,
)
from bayesbinn.train.folder import RunFolder, owned, path_of
from bayesbinn.train.loop import Loss, Totals, set_learning_rates, train_batches, training_threads
from bayesbinn.train.progress import Clock, Progress, RunStopped
from bayesbinn.train.schedules import Schedule

CHECKPOINT = "checkpoint.pt"


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


@dataclass(frozen=True)
class _Session:
    """One call of `Trainer.train`."""

    folder: RunFolder | None
    last: int
    """The epoch to stop after, counted over all tasks."""
    checkpoint_seconds: float
    on_progress: Callable[[Progress], None]
    should_stop: Callable[[], bool]


class Trainer(ABC):
    """A network in training. Whoever trains one relies on the public members, whatever is trained.

    `folder` is where it keeps its files: a `RunFolder` that the caller has locked, a path that `train` locks by itself,
    or None to keep nothing.
    """

    card: DataCard
    """What is known of the data; with a folder only."""
    notes: tuple[str, ...] = ()
    """What the user should know, one sentence each."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: BinaryOptimizer,
        real_optimizer: torch.optim.Optimizer | None,
        recipe: Recipe,
        folder: RunFolder | Path | None,
    ) -> None:
        self.model, self.optimizer, self.real_optimizer = model, optimizer, real_optimizer
        self.recipe, self._place = recipe, folder
        self.task, self.epoch = 0, 1
        """The task under way, counted from 0, and its epoch, from 1."""
        self.totals, self.elapsed = Totals(), 0.0
        """Of the epoch under way, over all sessions; `elapsed` in seconds."""
        self._saved_at = -math.inf
        self._checkpoint: tuple[int, ...] | None = None
        """Tells the checkpoint that this state comes from, or went to, from any other."""
        self._replica: nn.Module | None = None
        """The model as data-parallel ranks train it."""

    # ---- what every caller may ask -----------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        """Where the files are."""
        return None if self._place is None else path_of(self._place)

    @property
    @abstractmethod
    def tasks(self) -> int:
        """How many there are."""

    @property
    def total_epochs(self) -> int:
        """Of all tasks."""
        return self.tasks * self.recipe.epochs

    @property
    def epochs_done(self) -> int:
        """Of all tasks."""
        return self.task * self.recipe.epochs + self.epoch - 1

    @property
    def finished(self) -> bool:
        return self.epochs_done >= self.total_epochs

    @property
    def where_to_resume(self) -> str:
        """In words; empty at the start."""
        begun = self.epochs_done or self.totals.batches
        return f"{self._place_in_words()}, after {self.totals.batches} batches" if begun else ""

    def train(
        self,
        *,
        stop_after: int | None = None,
        checkpoint_seconds: float = 180.0,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on until the end, or until `stop_after` epochs (of a stream: tasks) of an unchanged schedule.

        With a folder, a checkpoint is written after epochs and, inside one, every `checkpoint_seconds`. `on_progress`
        hears of every batch and every epoch. When `should_stop` says so, the batch under way is finished, a checkpoint
        written and `RunStopped` raised.
        """
        if stop_after is not None and stop_after < 1:
            raise InvalidInput(f"stop_after={stop_after}: it must be 1 or more")
        last = min(self.total_epochs, (stop_after or self.total_epochs) * self._epochs_per_stop())
        with self._writing() as folder:
            if self.epochs_done < last:
                with self._watched(folder, on_progress) as watch:
                    session = _Session(folder, last, checkpoint_seconds, watch, should_stop)
                    while self.epochs_done < last:
                        self._run_epoch(session)
            self._finish(folder)

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
        """Train what is left of the epoch; how many batches the whole epoch has."""
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
                raise RunStopped(f"stopped in {self._place_in_words()}{where}")

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
        """How many epochs one of `stop_after` is."""

    @abstractmethod
    def _place_in_words(self) -> str:
        """The epoch under way."""

    @abstractmethod
    def _training_part(self) -> Part:
        """What the epoch under way trains on."""

    @abstractmethod
    def _end_epoch(self, row: dict[str, Any], clock: Clock, is_last: bool) -> dict[str, Any]:
        """Measure, complete and keep the line of metrics, and turn to the next epoch."""

    @abstractmethod
    def _worth_saving(self, waited: float, checkpoint_seconds: float) -> bool:
        """Whether the epoch that has just ended is, so many seconds after the last checkpoint."""

    @contextmanager
    def _watched(
        self, folder: RunFolder | None, on_progress: Callable[[Progress], None]
    ) -> Iterator[Callable[[Progress], None]]:
        """Around the epochs of a session, if there are any; what it gives hears of their progress."""
        yield on_progress

    def _news(self) -> dict[str, Any]:
        """What a display shall show with the epoch's metrics, though it is not of this epoch."""
        return {}

    @abstractmethod
    def _finish(self, folder: RunFolder | None) -> None:
        """Leave the results of a session that was not stopped."""

    # ---- checkpoints -------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[RunFolder | None]:
        """Own the folder for a session."""
        if self._place is None:
            yield None
            return
        with owned(self._place) as folder:
            ranks.decided(lambda: self._refuse_changes(folder))
            yield folder

    def _refuse_changes(self, folder: RunFolder) -> None:
        """Refuse a folder whose checkpoint is not the one that this training comes from: it was open to others."""
        if _identity(folder.path / CHECKPOINT) != self._checkpoint:
            raise InvalidUse(f"{folder.path}: its checkpoint has changed since the run was opened; open it again")

    def _save(self, folder: RunFolder | None, totals: Totals) -> None:
        """Write everything that the next batch needs, and what others read."""
        if folder is None or not folder.writes:
            return
        state = self._state(totals)
        folder.keep(CARD, self.card.to_json().encode())
        path = folder.writable(CHECKPOINT)
        write_checkpoint(path, state)
        self._saved_at, self._checkpoint = time.monotonic(), _identity(path)
        self._write_metrics(folder)

    @abstractmethod
    def _write_metrics(self, folder: RunFolder) -> None:
        """Write, for people and programs, what the checkpoint knows: a killed run leaves no line twice."""

    def _state(self, totals: Totals) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "totals": asdict(totals),
            "elapsed": self.elapsed,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "real_optimizer": None if self.real_optimizer is None else self.real_optimizer.state_dict(),
            "random": torch.get_rng_state(),
            CHECKPOINT_KEY: self.card.to_json(),
            **self._own_state(),
        }

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """What this kind of training adds to a checkpoint."""

    def _restore(self) -> None:
        """Go on from the folder's checkpoint, if there is one."""
        assert self.folder is not None
        folder = self.folder
        self._checkpoint, state, self.card = ranks.decided(lambda: self._read(folder))
        if state is None:
            return
        with resuming(folder / CHECKPOINT):
            self._check(state)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.real_optimizer is not None:
                self.real_optimizer.load_state_dict(state["real_optimizer"])
            self.epoch, self.elapsed = state["epoch"], state["elapsed"]
            self.totals = data_parallel.part_of(Totals(**state["totals"]))
            self._restore_own(state)
            torch.set_rng_state(state["random"])

    def _read(self, folder: Path) -> tuple[tuple[int, ...] | None, dict[str, Any] | None, DataCard]:
        """The checkpoint and the card of the folder; data that are not those of the folder are refused."""
        identity, state = _identity(folder / CHECKPOINT), read_checkpoint(folder / CHECKPOINT)
        known = known_card(folder, state)
        if known is not None:
            known.refuse_other(self.card, folder)
        return identity, state, known or self.card

    @abstractmethod
    def _restore_own(self, state: dict[str, Any]) -> None:
        """Take back what `_own_state` gave."""

    def _check(self, state: dict[str, Any]) -> None:
        """Refuse a state that this training cannot have written."""
        check_alike(state, {**self._state(Totals()), **self._template(state)})
        check_progress(state, self._max_examples())
        if self.real_optimizer is not None:
            check_adam(state["real_optimizer"], self.real_optimizer)

    @abstractmethod
    def _template(self, state: dict[str, Any]) -> dict[str, Any]:
        """Entries of the state whose form depends on how far it is, as they must look."""

    @abstractmethod
    def _max_examples(self) -> int:
        """More than an epoch can have seen is refused."""


def _identity(path: Path) -> tuple[int, ...] | None:
    """Of a file as it is; every writing makes a new one. None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
