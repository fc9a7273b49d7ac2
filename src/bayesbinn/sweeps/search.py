"""Search for settings: Optuna proposes, the executor runs, and the validation accuracy or RMSE decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bayesbinn.environment import need
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput, nearest
from bayesbinn.experiments.config import Experiment
from bayesbinn.files import reason_of, write_whole
from bayesbinn.runs.folder import refuse_another
from bayesbinn.sweeps.executor import Ended, Job, run_all
from bayesbinn.sweeps.grid import Planned, flat, job_of, read_toml, write_plan
from bayesbinn.sweeps.sources import Source, source_of
from bayesbinn.sweeps.standings import standing_of
from bayesbinn.train.lock import NAME as LOCK
from bayesbinn.train.lock import RunLock

BEST, STUDY = "best.toml", "study.db"
_KEYS = ("experiment", "label", "method", "seed", "search", "set")
_RANGE = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Goal:
    """How a search compares trials: a metric on the validation data, at its best epoch."""

    metric: str
    """Its name in metrics.jsonl."""
    name: str
    direction: Literal["maximize", "minimize"]


HIGHEST_ACCURACY = Goal("validation_accuracy", "validation accuracy", "maximize")
LOWEST_RMSE = Goal("validation_rmse", "validation RMSE", "minimize")


@dataclass(frozen=True)
class Search:
    """Ranges for the settings of one method of an experiment."""

    name: str
    source: Source
    method: str | None
    fixed: dict[str, Any]
    ranges: dict[str, dict[str, Any]]

    def experiment(self, settings: dict[str, Any]) -> Experiment:
        """The complete experiment of one trial."""
        return self.source.experiment(self.method, {**self.fixed, **settings})

    @property
    def goal(self) -> Goal:
        """How trials are compared."""
        regression = self.experiment({key: value["low"] for key, value in self.ranges.items()}).training.loss == "mse"
        return LOWEST_RMSE if regression else HIGHEST_ACCURACY

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was chosen for the user's own data."""
        return self.source.notes(self.method, self.fixed, {key: value["low"] for key, value in self.ranges.items()})


def load_search(path: Path) -> Search:
    """Read a search file; both ends of every range must be valid experiments."""
    raw = read_toml(path, _KEYS)
    for key, kind in (("method", str), ("seed", int), ("search", dict), ("set", dict)):
        if key in raw and not isinstance(raw[key], kind):
            raise InvalidInput(f"{path}: {key} must be of type {kind.__name__}, received {raw[key]!r}")
    fixed, ranges = flat(raw.get("set", {})), flat(raw.get("search", {}))
    if "seed" in raw:
        fixed["training.seed"] = raw["seed"]
    if not ranges:
        raise InvalidInput(f"{path}: [search] is empty; add a range such as lr = {{low=1e-5, high=1e-1, log=true}}")
    for key, value in ranges.items():
        _check_range(path, key, value)
        if key in fixed:
            raise InvalidInput(f"{path}: {key} is both fixed and searched; keep one of them")
    search = Search(path.stem, source_of(raw, path), raw.get("method"), fixed, ranges)
    for end in ("low", "high"):
        experiment = search.experiment({key: value[end] for key, value in ranges.items()})
        if experiment.continual is not None:
            raise InvalidInput(
                f"{path}: {search.source.name} is a stream of tasks; a search needs an experiment with one task"
            )
        if experiment.data.validation == 0:
            raise InvalidInput(f"{path}: data.validation is 0, but a search needs validation data; set it to 0.1, say")
    return search


def _check_range(path: Path, key: str, value: Any) -> None:
    example = "{low=1e-5, high=1e-1, log=true}"
    if not isinstance(value, dict) or not {"low", "high"} <= value.keys():
        raise InvalidInput(f"{path}: search.{key} must be a range such as {example}, received {value!r}")
    for name, given in value.items():
        if name not in _RANGE:
            raise InvalidInput(f"{path}: search.{key} has no {name!r}.{nearest(name, _RANGE)} Allowed: {example}")
        number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if number == (name == "log"):
            raise InvalidInput(f"{path}: search.{key}.{name} is {given!r}; it must be like the one in {example}")
    if not value["low"] < value["high"]:
        raise InvalidInput(f"{path}: search.{key}: low {value['low']} must be below high {value['high']}")
    if value.get("log") and (value["low"] <= 0 or "step" in value):
        raise InvalidInput(f"{path}: search.{key}: a logarithmic range must start above 0 and have no step")


def _distribution(optuna: Any, given: dict[str, Any]) -> Any:
    low, high, log, step = (given.get(name) for name in _RANGE)
    whole = all(isinstance(each, int) for each in (low, high, step or 1))
    if whole:
        return optuna.distributions.IntDistribution(low, high, log=bool(log), step=step or 1)
    return optuna.distributions.FloatDistribution(low, high, log=bool(log), step=step)


@contextmanager
def _reading(study: Path) -> Iterator[None]:
    """Turn whatever SQLite, SQLAlchemy and Optuna raise about a damaged file into one line."""
    try:
        yield
    except BayesbinnError:
        raise
    except Exception as error:
        reason = reason_of(error).partition(" [SQL:")[0].partition(" (Background on")[0][:200]
        raise InvalidFile(
            f"{study}: not a usable search record ({reason}); move it away to start the trials again"
        ) from None


class Trials:
    """The trials of a search in its folder. Unfinished trials from an earlier session run first."""

    def __init__(
        self, search: Search, folder: Path, count: int, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        optuna = need("optuna", "sweep search", "optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.search, self.folder, self.count, self.goal = search, folder, count, search.goal
        self._states = optuna.trial.TrialState
        self._ranges = {key: _distribution(optuna, given) for key, given in search.ranges.items()}
        self._lock = RunLock(folder)
        self._own(tell)
        try:
            with _reading(folder / STUDY):
                storage = f"sqlite:///{(folder / STUDY).resolve()}"
                self._study = optuna.create_study(
                    storage=storage, study_name=search.name, direction=self.goal.direction, load_if_exists=True
                )
                seen = len(self._study.trials)
                # A sampler restarted with the same seed would propose the same trials again.
                seed = int(search.fixed.get("training.seed", 0)) + seen
                self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
                self._check_trials()
                self.runs: list[Planned] = [self._planned(each.number, each.params) for each in self._study.trials]
        except BaseException:
            self.close()
            raise

    def _own(self, tell: Callable[[str], None]) -> None:
        told = False
        while not self._lock.claim():
            if self._lock.waits_for and not told:
                tell(self._lock.waits_for)
                told = True
            time.sleep(1)

    def close(self) -> None:
        self._lock.release()

    def _check_trials(self) -> None:
        """Trials with other ranges or other fixed settings cannot be compared with new ones."""
        for trial in self._study.trials:
            if trial.distributions != self._ranges:
                raise InvalidInput(f"{self.folder} contains a search with other ranges; choose another --out")
            refuse_another(self.search.experiment(trial.params), self.folder / f"trial-{trial.number:04d}")

    def _planned(self, number: int, params: dict[str, Any]) -> Planned:
        experiment = self.search.experiment(params)
        training = experiment.training
        return Planned(f"trial-{number:04d}", experiment.method.name, training.seed, params, training.epochs)

    def run(
        self,
        executor: Executor,
        slots: Callable[[], int],
        threads: int,
        data_dir: Path | None,
        on_tick: Callable[[], None],
        should_stop: Callable[[], bool],
        track: tuple[str, ...] = (),
    ) -> Iterator[Ended]:
        """Request as many trials as there are slots, and report each as it ends."""
        jobs = (replace(job, track=track) for job in self._jobs(threads, data_dir))
        for ended in run_all(executor, jobs, slots=slots, on_tick=on_tick, should_stop=should_stop):
            self._tell(ended)
            yield ended

    def _jobs(self, threads: int, data_dir: Path | None) -> Iterator[Job]:
        with _reading(self.folder / STUDY):
            left = [each for each in self._study.trials if each.state == self._states.RUNNING]
        for trial in left:
            yield self._job(trial.number, trial.params, threads, data_dir)
        while True:
            with _reading(self.folder / STUDY):
                if len(self._study.trials) >= self.count:
                    return
                trial = self._study.ask(self._ranges)
            self.runs.append(self._planned(trial.number, trial.params))
            write_plan(self.folder, self.runs)
            yield self._job(trial.number, trial.params, threads, data_dir)

    def _job(self, number: int, params: dict[str, Any], threads: int, data_dir: Path | None) -> Job:
        name = f"trial-{number:04d}"
        return job_of(name, self.search.experiment(params), self.folder / name, threads, data_dir)

    def _tell(self, ended: Ended) -> None:
        number = int(ended.name.removeprefix("trial-"))
        value = None
        if ended.state == "finished":
            value = standing_of(self.runs[number], self.folder / ended.name).best.get(self.goal.metric)
        with _reading(self.folder / STUDY):
            if value is not None:
                self._study.tell(number, float(value))
            elif ended.state != "stopped":
                self._study.tell(number, state=self._states.FAIL)

    def write_best(self) -> dict[str, Any]:
        """Write the best experiment so far as best.toml, for `bayesbinn train`; empty if no trial has finished."""
        with _reading(self.folder / STUDY):
            trials = self._study.trials
        finished = [trial for trial in trials if trial.state == self._states.COMPLETE]
        if not finished:
            return {}
        sign = -1 if self.goal.direction == "maximize" else 1
        best = min(finished, key=lambda trial: sign * float(trial.value))
        path = self.folder / BEST
        write_whole(path, self.search.experiment(best.params).to_toml().encode())
        name = f"trial-{best.number:04d}"
        standing = standing_of(self.runs[best.number], self.folder / name)
        return {
            "trials": f"{len(finished)} finished of {len(trials)}",
            "best": name,
            self.goal.name: best.value,
            "reached in epoch": standing.best.get("epoch"),
            "in the last epoch": standing.last.get(self.goal.metric),
            "settings": best.params,
            "experiment": str(path),
        }


def refuse_sweep(folder: Path) -> None:
    """Reject a folder that contains the runs of a grid."""
    others = [path for path in folder.iterdir() if not path.name.startswith(LOCK)] if folder.is_dir() else []
    if others and not (folder / STUDY).exists():
        raise InvalidFile(f"{folder}: contains something other than a search; choose another --out")
