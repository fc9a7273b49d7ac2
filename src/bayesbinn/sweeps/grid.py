"""A grid of experiments, read and checked in full before the first run starts."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput, nearest
from bayesbinn.experiments.config import Experiment, load_experiment, parse_toml
from bayesbinn.files import write_whole
from bayesbinn.runs.folder import difference
from bayesbinn.sweeps.executor import Job
from bayesbinn.sweeps.sources import Source, source_of

PLAN = "sweep.json"
MAX_RUNS = 10_000
"""Per sweep. Each run takes an experiment in memory, a folder and a row of the results."""
_KEYS = ("experiment", "label", "methods", "seeds", "grid", "method", "set")
_ELSEWHERE = {"training.seed": "seeds", "method.name": "methods", "name": "methods"}


@dataclass(frozen=True)
class Planned:
    """One run of a sweep, identified by its differences."""

    name: str
    method: str
    seed: int
    varied: Mapping[str, Any]
    epochs: int
    stream: bool = False
    """Whether it learns a stream of tasks."""


@dataclass(frozen=True)
class Sweep:
    """All runs of a grid file, each with its complete experiment."""

    name: str
    runs: tuple[tuple[Planned, Experiment], ...]
    notes: tuple[str, ...] = ()
    """Notes on what was chosen for the user's own data."""

    @property
    def planned(self) -> list[Planned]:
        return [planned for planned, _ in self.runs]

    def jobs(
        self,
        folder: Path,
        names: Iterable[str],
        threads: int = 1,
        data_dir: Path | None = None,
        track: tuple[str, ...] = (),
    ) -> Iterable[Job]:
        """The named runs, in grid order."""
        wanted = set(names)
        for planned, experiment in self.runs:
            if planned.name in wanted:
                yield job_of(planned.name, experiment, folder / planned.name, threads, data_dir, track=track)


def job_of(
    name: str,
    experiment: Experiment,
    folder: Path,
    threads: int = 1,
    data_dir: Path | None = None,
    stop_after: int | None = None,
    track: tuple[str, ...] = (),
) -> Job:
    """A run for `bayesbinn.sweeps.executor`, with paths that are valid wherever it runs."""
    data = str(data_dir.resolve()) if data_dir is not None else None
    config = experiment.model_dump_json(exclude_none=True)
    return Job(name, str(folder.resolve()), config, threads, data, stop_after, track)


# ---- the grid file --------------------------------------------------------------------------------


def load_grid(path: Path) -> Sweep:
    """Read a grid file and check every run; report the first problem in one line."""
    raw = read_toml(path, _KEYS)
    source = source_of(raw, path)
    if not raw.keys() & {"methods", "seeds", "grid"}:
        raise InvalidInput(f"{path}: nothing varies; give methods = [...], seeds = [...] or a table [grid]")
    methods: list[str | None] = [*_list(raw, "methods", path, str)] if "methods" in raw else [None]
    shared, fixed = flat(_table(raw, "grid", path)), flat(_table(raw, "set", path))
    own = {name: flat(_table(raw["method"], name, path)) for name in _table(raw, "method", path)}
    for name in own:
        if name not in methods:
            known = [each for each in methods if each is not None]
            raise InvalidInput(f"{path}: [method.{name}] is not among the methods.{nearest(name, known)} Add it there")
    for key in [*shared, *fixed, *(key for each in own.values() for key in each)]:
        if key in _ELSEWHERE:
            raise InvalidInput(f"{path}: {key} is set by {_ELSEWHERE[key]} = [...]; leave it out of the tables")
    grids = [{**shared, **own.get(method or "", {})} for method in methods]
    _refuse_too_many(path, raw, grids)
    runs, notes = list[tuple[Planned, Experiment]](), list[str]()
    for method, grid in zip(methods, grids, strict=True):
        for key in grid:
            if key in fixed:
                raise InvalidInput(f"{path}: {key} is both in [set] and in a grid; keep one of them")
        values = [_values(key, value, path) for key, value in grid.items()]
        first = dict(zip(grid, (each[0] for each in values), strict=True))
        seeds = _seeds(raw, _checked(path, source, method, first, fixed).training.seed, path)
        notes += source.notes(method, fixed, first)
        for choice in itertools.product(*values):
            varied = dict(zip(grid, choice, strict=True))
            runs += [_planned(path, source, method, seed, varied, fixed) for seed in seeds]
    _refuse_twins(path, runs)
    return Sweep(path.stem, tuple(runs), tuple(dict.fromkeys(notes)))


def _refuse_too_many(path: Path, raw: Mapping[str, Any], grids: list[dict[str, Any]]) -> None:
    """Count the runs before anything is built for them."""
    given = raw.get("seeds", 1)
    seeds = len(given) if isinstance(given, list) else given if isinstance(given, int) else 1
    count = sum(prod(len(each) for each in grid.values() if isinstance(each, list)) for grid in grids) * seeds
    if count > MAX_RUNS:
        raise InvalidInput(
            f"{path}: {count:,} runs ({seeds:,} seeds); a sweep can have at most {MAX_RUNS:,}; "
            "use fewer seeds or values, or several files"
        )


def _planned(
    path: Path, source: Source, method: str | None, seed: int, varied: dict[str, Any], fixed: dict[str, Any]
) -> tuple[Planned, Experiment]:
    experiment = _checked(path, source, method, varied, {**fixed, "training.seed": seed})
    name = run_name(experiment.method.name, varied, seed)
    stream = experiment.continual is not None
    return Planned(name, experiment.method.name, seed, varied, experiment.training.epochs, stream), experiment


def _checked(
    path: Path, source: Source, method: str | None, varied: dict[str, Any], fixed: dict[str, Any]
) -> Experiment:
    try:
        return source.experiment(method, {**fixed, **varied})
    except BayesbinnError as error:
        settings = [f"{key}={value}" for key, value in varied.items()]
        at = ", ".join([*([method] if method else []), *settings])
        raise type(error)(f"{path}: {f'with {at}: ' if at else ''}{error}") from None


def _refuse_twins(path: Path, runs: list[tuple[Planned, Experiment]]) -> None:
    names, texts = dict[str, str](), dict[str, str]()
    for planned, experiment in runs:
        text = experiment.to_toml()
        for seen, key in ((texts, text), (names, planned.name)):
            if key in seen:
                raise InvalidInput(f"{path}: {seen[key]} and {planned.name} are the same run; remove one of them")
            seen[key] = planned.name


def run_name(method: str, varied: Mapping[str, Any], seed: int) -> str:
    """A readable folder name that does not depend on the rest of the grid.

    >>> run_name("ste", {"lr": 1e-4, "training.epochs": 5}, 3)
    'ste-lr0.0001-epochs5-s3'
    """
    parts = [f"{key.rpartition('.')[2]}{_word(value)}" for key, value in varied.items()]
    return "-".join([method, *parts, f"s{seed}"])


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    plain = re.sub(r"[^A-Za-z0-9.+-]+", "_", text).strip("_")
    if plain == text and len(plain) <= 40:
        return plain
    return f"{plain[:30]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


# ---- parts of a file ------------------------------------------------------------------------------


def read_toml(path: Path, allowed: Iterable[str]) -> dict[str, Any]:
    """Read a TOML file that has only the allowed keys."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: cannot read the file: {error}") from None
    raw = parse_toml(text, str(path), "; a method's own grid is [method.NAME]" if "[methods." in text else "")
    allowed = list(allowed)
    for key in raw:
        if key not in allowed:
            raise InvalidInput(f"{path}: unknown key {key!r}.{nearest(key, allowed)} Allowed: {', '.join(allowed)}")
    return raw


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; a range (with `low` or `high`) and a schedule (with `kind`) are values.

    >>> flat({"lr": [1], "training": {"epochs": [5]}})
    {'lr': [1], 'training.epochs': [5]}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, dict) and not value.keys() & {"low", "high", "kind"}
        found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


def _table(raw: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise InvalidInput(f"{path}: {key} must be a table, received {value!r}")
    return value


def _list(raw: Mapping[str, Any], key: str, path: Path, kind: type[Any]) -> list[Any]:
    values = _values(key, raw[key], path)
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidInput(f"{path}: {key} must be a list of {kind.__name__} values, received {value!r}")
    return values


def _values(key: str, value: Any, path: Path) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(f"{path}: {key} must be a list of values, received {value!r}; write [{value}]")
    if not value:
        raise InvalidInput(f"{path}: {key} is an empty list, so there is nothing to run; give a value or leave it out")
    for index, each in enumerate(value):
        if each in value[:index]:
            raise InvalidInput(f"{path}: {key} has {each!r} twice; remove one of them")
    return value


def _seeds(raw: Mapping[str, Any], first: int, path: Path) -> list[int]:
    given = raw.get("seeds", 1)
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise InvalidInput(f"{path}: seeds = {given}: must be 1 or more, or a list of seeds")
        return list(range(first, first + given))
    return _list(raw, "seeds", path, int)


# ---- the folder -----------------------------------------------------------------------------------


def write_plan(folder: Path, planned: Iterable[Planned]) -> None:
    """Write the list of runs to the sweep's folder, for `status`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"{folder}: cannot create the folder of the sweep ({error.strerror})") from None
    rows = [{**vars(each), "varied": dict(each.varied)} for each in planned]
    write_whole(folder / PLAN, json.dumps(rows, indent=1).encode())


def load_plan(folder: Path) -> list[Planned]:
    """The runs of the sweep in a folder."""
    path = folder / PLAN
    if not path.is_file():
        raise InvalidFile(f"{folder}: there is no sweep here (no {PLAN}); give its folder or its GRID.toml")
    try:
        return [Planned(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InvalidFile(f"{path}: cannot read the file ({error}); `bayesbinn sweep run` writes it again") from None


def refuse_others(sweep: Sweep, folder: Path) -> None:
    """Reject a folder in which runs of the same name belong to other experiments."""
    for planned, experiment in sweep.runs:
        config = folder / planned.name / "config.toml"
        if config.exists() and (change := difference(load_experiment(str(config)), experiment)):
            raise InvalidInput(
                f"{config.parent} holds another experiment ({change}); choose another --out or delete it"
            )
