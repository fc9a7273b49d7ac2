"""The files of a run: written whole or not at all, compared before a run is resumed."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bayesbinn.checksums import check_zip, seal_zip
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment, as_begun, load_experiment
from bayesbinn.files import reason_of, write_whole


class Clock:
    """Time spent on an epoch, and when the next checkpoint is due."""

    def __init__(self, spent: float, interval: float) -> None:
        self._start = time.monotonic() - spent
        self._interval = interval
        self._next = time.monotonic() + interval

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def epoch_worth_saving(self, last_saved: float) -> bool:
        return time.monotonic() - last_saved >= min(1.0, self._interval)

    def checkpoint_due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._interval
        return True


def difference(existing: Experiment, wanted: Experiment) -> str:
    """The first setting that differs, in words; empty if none does. A tuple equals the list that TOML makes of it."""
    both = (existing, as_begun(existing, wanted))
    old, new = (_flat(each.model_dump(mode="json", exclude_none=True)) for each in both)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            return f"{key} is {old.get(key)!r} there, {new.get(key)!r} here"
    return ""


def refuse_another(experiment: Experiment, folder: Path) -> Experiment:
    """Refuse a folder of another experiment; of a free one or of this very one, the experiment as it was begun."""
    config = folder / "config.toml"
    if not config.exists():
        return experiment
    begun = load_experiment(str(config))
    if change := difference(begun, experiment):
        raise InvalidInput(f"{folder} holds another experiment ({change}); choose another --out")
    return as_begun(begun, experiment)


def begin_folder(experiment: Experiment, folder: Path) -> None:
    """The folder of a run, with its experiment in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"{folder}: the folder of the run cannot be made ({error.strerror})") from None
    config = folder / "config.toml"
    if not config.exists():
        write_whole(config, experiment.to_toml().encode())


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a file that `torch.load` reads, with a checksum at its end."""
    content = io.BytesIO()  # torch's own writer does not say why a disk refuses it
    torch.save(state, content)
    write_whole(path, seal_zip(content.getbuffer()))


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """What a run has saved; None if it has not."""
    if not path.exists():
        return None
    with resuming(path):
        content = path.read_bytes()
        check_zip(content)
        state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        return state


@contextmanager
def resuming(path: Path) -> Iterator[None]:
    """A checkpoint that is damaged or does not fit is one line."""
    try:
        yield
    except Exception as error:
        reason = reason_of(error)
        raise InvalidFile(f"{path}: cannot be resumed ({reason}); delete it to start again") from error


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
