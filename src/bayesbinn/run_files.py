"""The files of a run: its experiment, compared before a run is resumed, and its metrics."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

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
            there, here = (f"{each[key]!r}" if key in each else "not set" for each in (old, new))
            return f"{key} is {there} there, {here} here"
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


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The metrics of a run, a line for each epoch; none where there is no file yet."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        check_rows(rows)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidFile(
            f"{path}: not a line of JSON per epoch ({reason_of(error)}); resuming the run writes it anew"
        ) from None
    return rows


def check_rows(rows: list[Any]) -> None:
    """Refuse metrics that lack what every table and display reads."""
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InvalidFile(f"line {number} is {row!r:.40}")
        for key in ("epoch", "train_loss", "seconds"):
            if not _is_number(row.get(key)):
                raise InvalidFile(f"line {number}: {key} is {row.get(key)!r:.40}")
        for key, value in row.items():
            whole = value if key == "accuracy" and isinstance(value, list) else [value]
            if "accuracy" in key and not all(each is None or _is_number(each) for each in whole):
                raise InvalidFile(f"line {number}: {key} is {value!r:.40}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
