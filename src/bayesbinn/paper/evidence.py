"""The queue of runs behind the repository's tables: which experiments, with which budget, in which order.

It is defined in ``evidence.toml``. A part is a set of runs and the tables or figures that use them. `make evidence`
runs the parts in order (``benchmarks/evidence.py``), and ``bayesbinn reproduce all --no-train`` redraws every table and
figure from the records of the runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bayesbinn.errors import InvalidFile
from bayesbinn.experiments.config import Experiment, load_experiment


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Runs(_Section):
    """Runs of one preset: every method with every seed and every combination of the grid."""

    preset: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, Any] = Field(default_factory=dict)
    """Changes that apply to all runs, by dotted key, as for `--set`."""
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    stop_after: int | None = None
    """Stop after this epoch of the unchanged schedule."""
    name: str | None = None
    """Replaces the preset's name in folder names."""
    epoch_seconds: Annotated[float, Field(gt=0)]
    """An estimate of the time per epoch on two idle cores, used until one has been measured."""


class Shown(_Section):
    """A table or figure and its budget."""

    name: str
    seeds: int = 1
    epochs: int | None = None
    width: float | None = None
    stop_after: int | None = None
    methods: str | None = None


class Part(_Section):
    """Runs that belong together; they start and end on the same commit."""

    name: str
    title: str
    runs: tuple[Runs, ...]
    show: tuple[Shown, ...] = ()


class Queue(_Section):
    """All parts, in order of computation."""

    parts: tuple[Part, ...]


class Planned(BaseModel):
    """One run of the queue."""

    model_config = ConfigDict(frozen=True)

    name: str
    """The name of its folder."""
    arguments: tuple[str, ...]
    """The arguments of `bayesbinn`, without --out."""
    experiment: Experiment
    stop_after: int | None
    epoch_seconds: float

    @property
    def epochs(self) -> int:
        """The number of epochs it trains, over all tasks of a stream."""
        epochs = self.experiment.training.epochs
        tasks = 1 if self.experiment.continual is None else self.experiment.continual.tasks
        return tasks * (epochs if self.stop_after is None else min(epochs, self.stop_after))


def load_queue(path: Path | None = None) -> Queue:
    """Load the queue from a TOML file, by default the repository's."""
    where = str(path) if path else "evidence.toml"
    try:
        text = path.read_text() if path else files("bayesbinn.paper").joinpath("evidence.toml").read_text("utf-8")
        return Queue.model_validate(tomllib.loads(text))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidFile(f"{where}: cannot read the TOML file ({error})") from None
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise InvalidFile(f"{where}: {place}: {problem['msg']} (received {problem['input']!r})") from None


def planned(part: Part) -> Iterator[Planned]:
    """The runs of a part, in order."""
    for each in part.runs:
        for values in product(*each.grid.values()):
            chosen = dict(zip(each.grid, values, strict=True))
            for method, seed in product(each.methods, each.seeds):
                yield _plan(each, method, seed, chosen)


def _plan(each: Runs, method: str, seed: int, chosen: dict[str, Any]) -> Planned:
    changes = {**each.settings, **chosen}
    experiment = load_experiment(each.preset, method=method, overrides={**changes, "training.seed": seed})
    arguments = ["train", each.preset, "--method", method, "--seed", str(seed)]
    epochs = changes.pop("training.epochs", None)
    if epochs is not None:
        arguments += ["--epochs", str(epochs)]
    if each.stop_after is not None:
        arguments += ["--stop-after", str(each.stop_after)]
    for key, value in changes.items():
        arguments += ["--set", f"{key}={value}"]
    parts = [each.name or each.preset, method]
    parts += [f"{key.rpartition('.')[2]}{value}" for key, value in changes.items() if key in chosen or not each.name]
    parts += [f"e{experiment.training.epochs}", f"s{seed}"]
    return Planned(
        name="-".join(parts),
        arguments=tuple(arguments),
        experiment=experiment,
        stop_after=each.stop_after,
        epoch_seconds=each.epoch_seconds,
    )
