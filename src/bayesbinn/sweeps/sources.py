"""What the runs of a sweep or search are made of: a preset, a TOML file, or the user's own data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesbinn import data as data_sets
from bayesbinn.data import Dataset
from bayesbinn.data.catalog import SETS
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.choose import choose_for_data, encodes
from bayesbinn.experiments.config import Experiment, load_experiment, preset_names


@dataclass(frozen=True)
class Source:
    """The `experiment` that a file names. The user's own data are read once, however many runs there are."""

    name: str
    own: bool = False
    """Whether this is the user's own data file or folder."""
    label: str | None = None
    _read: dict[str, Dataset] = field(default_factory=dict, repr=False, compare=False)

    def experiment(self, method: str | None, overrides: Mapping[str, Any]) -> Experiment:
        """The complete experiment of one run; the path to its data is valid from any folder."""
        if self.own:
            return self._chosen(method, overrides)[0]
        experiment = load_experiment(self.name, method=method, overrides=overrides)
        data = experiment.data
        if data.name not in SETS and Path(data.name).exists():
            data = data.model_copy(update={"name": str(Path(data.name).resolve())})
        return experiment.model_copy(update={"data": data})

    def notes(self, method: str | None, fixed: Mapping[str, Any], first: Mapping[str, Any]) -> tuple[str, ...]:
        """One sentence per choice made for the user's own data; `first` has the first value of each varied setting."""
        if not self.own:
            return ()
        varies = f"this file varies {', '.join(first)} (above: {', '.join(map(str, first.values()))})"
        return (*self._chosen(method, {**fixed, **first})[1], *([varies] if first else []))

    def _chosen(self, method: str | None, overrides: Mapping[str, Any]) -> tuple[Experiment, tuple[str, ...]]:
        """The choices that `bayesbinn train` would make."""
        task = overrides.get("data.task")
        encode = encodes(overrides)
        key = repr((task, encode))  # a file may give a value that cannot be hashed
        if key not in self._read:
            self._read[key] = data_sets.load(self.name, label=self.label, task=task, encode=encode)
        return choose_for_data(
            self._read[key],
            method or "bayesbinn",
            source=self.name,
            label=self.label,
            overrides=overrides,
            changed_by="[set]",
        )


def source_of(raw: Mapping[str, Any], path: Path) -> Source:
    """The experiment that a file names: a preset, or a TOML file or data next to it."""
    name, label = raw.get("experiment"), raw.get("label")
    if not isinstance(name, str) or not name:
        received = "is missing" if name is None else f"must be a name, received {name!r}"
        allowed = f"give a preset ({', '.join(preset_names())}), a FILE.toml or your own data"
        raise InvalidInput(f"{path}: experiment {received}; {allowed}")
    if label is not None and not isinstance(label, str):
        raise InvalidInput(f"{path}: label must be the name of a column, received {label!r}")
    beside = path.parent / name
    if name not in preset_names() and not name.endswith(".toml"):
        if beside.exists():
            return Source(str(beside.resolve()), own=True, label=label)
        if Path(name).suffix or len(Path(name).parts) > 1:
            raise InvalidInput(f"{path}: experiment {name!r}: there is no such file or folder ({beside})")
    if label is not None:
        raise InvalidInput(f"{path}: label is only for your own table, but {name} is an experiment; leave it out")
    return Source(str(beside) if name.endswith(".toml") else name)
