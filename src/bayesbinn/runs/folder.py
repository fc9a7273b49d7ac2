"""The files of a run: its experiment, compared before a run is resumed, and its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment, as_begun, load_experiment
from bayesbinn.train.rows import read_rows

CONFIG = "config.toml"


def difference(existing: Experiment, wanted: Experiment) -> str:
    """The first setting that differs, in words; empty if none does. A tuple equals its TOML list."""
    both = (existing, as_begun(existing, wanted))
    old, new = (flat(each.model_dump(mode="json", exclude_none=True)) for each in both)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            there, here = (f"{each[key]!r}" if key in each else "not set" for each in (old, new))
            return f"{key} is {there} there, {here} here"
    return ""


def refuse_another(experiment: Experiment, folder: Path) -> Experiment:
    """Reject a folder of another experiment; if it is empty or holds this one, return the experiment as it began."""
    config = folder / CONFIG
    if not config.exists():
        return experiment
    begun = load_experiment(str(config))
    if change := difference(begun, experiment):
        raise InvalidInput(f"{folder} holds another experiment ({change}); choose another --out")
    return as_begun(begun, experiment)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def load_config(folder: Path) -> Experiment:
    """The experiment of a run."""
    config = folder / CONFIG
    if not config.is_file():
        hint = "; a model file is run by `bayesbinn run`" if folder.is_file() else ""
        raise InvalidFile(f"{folder}: there is no run here (no {CONFIG}){hint}")
    return load_experiment(str(config))


def load_run(folder: Path) -> tuple[Experiment, list[dict[str, Any]]]:
    """The experiment and the metrics of a run, finished or not."""
    return load_config(folder), read_rows(folder / "metrics.jsonl")
