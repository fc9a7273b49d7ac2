"""The queue of runs behind the repository's own tables: which experiments, with which budget, in which order.

``evidence.toml`` lists it. A part is a set of runs and the tables or figures that they fill in. `make evidence`
works through the parts (``benchmarks/evidence.py``), and ``bayesbinn reproduce all --no-train`` draws every table
and figure again from the records of the runs.
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
    """Changes that all of them share, by dotted keys, as `--set` takes them."""
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    stop_after: int | None = None
    """Stop after this epoch of the unchanged schedule."""
    name: str | None = None
    """Stands for the preset in the names of the folders."""
    epoch_seconds: Annotated[float, Field(gt=0)]
    """A guess of the time per epoch on two quiet cores, used until one has been measured."""


class Shown(_Section):
    """A table or figure with the budget that it is shown at."""

    name: str
    seeds: int = 1
    epochs: int | None = None
    width: float | None = None
    stop_after: int | None = None
    methods: str | None = None


class Part(_Section):
    """Runs that belong together; they begin and end on one commit."""

    name: str
    title: str
    runs: tuple[Runs, ...]
    show: tuple[Shown, ...] = ()


class Queue(_Section):
    """All parts, in the order in which they are computed."""

    parts: tuple[Part, ...]


class Planned(BaseModel):
    """One run of the queue."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Of its folder."""
    arguments: tuple[str, ...]
    """Of `bayesbinn`, without --out."""
    experiment: Experiment
    stop_after: int | None
    epoch_seconds: float

    @property
    def epochs(self) -> int:
        """How many epochs it trains, over all tasks of a stream."""
        epochs = self.experiment.training.epochs
        tasks = 1 if self.experiment.continual is None else self.experiment.continual.tasks
        return tasks * (epochs if self.stop_after is None else min(epochs, self.stop_after))


def load_queue(path: Path | None = None) -> Queue:
    """The queue of a TOML file; the repository's own by default."""
    where = str(path) if path else "evidence.toml"
    try:
        text = path.read_text() if path else files("bayesbinn.paper").joinpath("evidence.toml").read_text("utf-8")
        return Queue.model_validate(tomllib.loads(text))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidFile(f"{where}: not a readable TOML file ({error})") from None
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
