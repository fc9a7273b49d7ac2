"""The queue of runs behind the repository's tables: which experiments, with which budget, in which order.

It is defined in ``evidence.toml``. A part is a set of runs and the tables or figures that use them. `make evidence`
runs the parts in order (``benchmarks/evidence.py``), and ``bayesbinn reproduce all --no-train`` redraws every table and
figure from the records of the runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bayesbinn.errors import InvalidFile
from bayesbinn.experiments.config import Experiment, load_experiment
from bayesbinn.paper import records
from bayesbinn.runs.best_epoch import best_epoch
from bayesbinn.runs.folder import load_run

_COMMON = ("model.width", "training.epochs")
"""Settings of a candidate that are its budget, not what is tried."""


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
    candidate: bool = False
    """Whether its settings, apart from the width, may be chosen by their validation accuracy."""
    chosen: bool = False
    """Use the settings of the part's best candidate in addition to its own."""
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
    rates: dict[str, float] = Field(default_factory=dict)
    """Learning rates that replace those of the presets, by ``PRESET.METHOD``."""


class Part(_Section):
    """Runs that belong together; they start and end on the same commit."""

    name: str
    title: str
    runs: tuple[Runs, ...]
    show: tuple[Shown, ...] = ()
    measure: tuple[str, ...] = ()
    """Programs in benchmarks/ that measure the networks of the runs, after the last of them."""
    samples: Annotated[int, Field(ge=0)] = 0
    """Also score the mean over this many posterior samples of each run, in its best epoch; 0 to leave it out."""


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


def planned(part: Part, kept: Path | None = None) -> Iterator[Planned]:
    """The runs of a part, in order; those with the best settings only once the records in `kept` say which."""
    best = best_settings(part, kept)
    for each in part.runs:
        if each.chosen and best is None:
            continue
        for values in product(*each.grid.values()):
            chosen = dict(zip(each.grid, values, strict=True))
            for method, seed in product(each.methods, each.seeds):
                yield _plan(each, method, seed, chosen, best if each.chosen and best else {})


def undecided(part: Part, kept: Path | None) -> tuple[int, float]:
    """How many runs wait for the choice of their settings, and about how many seconds they take."""
    waiting = [each for each in part.runs if each.chosen] if best_settings(part, kept) is None else []
    count = {index: len(each.methods) * len(each.seeds) for index, each in enumerate(waiting)}
    epochs = [int(each.settings.get("training.epochs", 1)) for each in waiting]
    seconds = sum(count[i] * epochs[i] * each.epoch_seconds for i, each in enumerate(waiting))
    return sum(count.values()), seconds


@dataclass(frozen=True)
class Tried:
    """Settings that were tried, and the validation accuracy that each seed reached."""

    settings: dict[str, Any]
    validation: tuple[float, ...]
    """In percent, in the best epoch; one for each seed that has a record."""

    @property
    def mean(self) -> float:
        return sum(self.validation) / len(self.validation)


def candidates(part: Part, kept: Path | None) -> list[tuple[Tried, bool]]:
    """Every candidate of a part, and whether all its seeds have a record."""
    found = []
    for each in part.runs:
        if not each.candidate:
            continue
        own = {key: value for key, value in each.settings.items() if key not in _COMMON}
        runs = [_plan(each, method, seed, {}, {}) for method in each.methods for seed in each.seeds]
        rows = [load_run(kept / run.name)[1] for run in runs if kept and records.complete(kept / run.name, run.epochs)]
        best = [float(row["validation_accuracy"]) for each_row in rows if (row := best_epoch(each_row))]
        found.append((Tried(own, tuple(best)), len(best) == len(runs)))
    return found


def best_settings(part: Part, kept: Path | None) -> dict[str, Any] | None:
    """The settings of the candidate with the highest mean validation accuracy; None until all have been tried."""
    tried = candidates(part, kept)
    if not tried or not all(complete for _, complete in tried):
        return None
    return max((each for each, _ in tried), key=lambda each: each.mean).settings


def _plan(each: Runs, method: str, seed: int, chosen: dict[str, Any], best: dict[str, Any]) -> Planned:
    changes = {**best, **each.settings, **chosen}
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
