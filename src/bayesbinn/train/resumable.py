"""The state of training: everything that the next batch needs, written to a checkpoint and read back."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesbinn import ranks
from bayesbinn.data.card import CHECKPOINT_KEY, DataCard, known_card
from bayesbinn.data.card import FILE_NAME as CARD
from bayesbinn.errors import InvalidUse
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
from bayesbinn.train.loop import Totals

CHECKPOINT = "checkpoint.pt"


class Resumable(ABC):
    """A network in training and its progress, saved to a folder and restored from it.

    `folder` holds its files: a `RunFolder` that the caller has locked, a path that is locked whenever something is
    written, or None to write nothing.
    """

    card: DataCard
    """What is known about the data; only with a folder."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: BinaryOptimizer,
        real_optimizer: torch.optim.Optimizer | None,
        folder: RunFolder | Path | None,
    ) -> None:
        self.model, self.optimizer, self.real_optimizer = model, optimizer, real_optimizer
        self.epoch = 1
        """The current epoch, counted from 1."""
        self.totals, self.elapsed = Totals(), 0.0
        """Of the current epoch, summed over all sessions; `elapsed` in seconds."""
        self._given_folder = folder
        self._saved_at = -math.inf
        self._checkpoint: tuple[int, ...] | None = None
        """Identifies the checkpoint that this state was read from or written to."""

    @property
    def folder(self) -> Path | None:
        """Where the files are."""
        return None if self._given_folder is None else path_of(self._given_folder)

    @contextmanager
    def _writing(self) -> Iterator[RunFolder | None]:
        """Lock the folder for a session."""
        if self._given_folder is None:
            yield None
            return
        with owned(self._given_folder) as folder:
            ranks.decided(lambda: self._refuse_changes(folder))
            yield folder

    def _refuse_changes(self, folder: RunFolder) -> None:
        """Reject a folder whose checkpoint another process replaced while this one did not hold the lock."""
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
        """Write all metrics of the checkpoint for others to read; always the whole file, so no line appears twice."""

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
        """Continue from the folder's checkpoint, if there is one."""
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
        """The checkpoint and the data card of the folder; raises if the data differ from the folder's."""
        identity, state = _identity(folder / CHECKPOINT), read_checkpoint(folder / CHECKPOINT)
        known = known_card(folder, state)
        if known is not None:
            known.refuse_other(self.card, folder)
        return identity, state, known or self.card

    @abstractmethod
    def _restore_own(self, state: dict[str, Any]) -> None:
        """Restore what `_own_state` returned."""

    def _check(self, state: dict[str, Any]) -> None:
        """Reject a state that this training cannot have written."""
        check_alike(state, {**self._state(Totals()), **self._template(state)})
        check_progress(state, self._max_examples())
        if self.real_optimizer is not None:
            check_adam(state["real_optimizer"], self.real_optimizer)

    @abstractmethod
    def _template(self, state: dict[str, Any]) -> dict[str, Any]:
        """Expected form of the entries that depend on how far the training is."""

    @abstractmethod
    def _max_examples(self) -> int:
        """The maximum number of examples per epoch; a state that has seen more is rejected."""


def _identity(path: Path) -> tuple[int, ...] | None:
    """Identifies a version of a file, since every write creates a new file; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
