"""The runs behind one cell of a table or one curve of a figure: finished ones are reused, missing ones are run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from bayesbinn.environment import cores
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment, load_experiment
from bayesbinn.paper import records
from bayesbinn.runs.evaluate import best_epoch
from bayesbinn.runs.folder import load_run
from bayesbinn.runs.single import Run
from bayesbinn.sweeps.executor import ERROR, LOG, Interrupted, open_executor, run_all
from bayesbinn.sweeps.grid import job_of
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.progress import RunStopped, stoppable


@dataclass(frozen=True)
class Budget:
    """How much compute to spend, and where the runs are kept."""

    seeds: int
    epochs: int | None
    """None: the paper's."""
    width: float | None
    runs: Path
    data_dir: Path | None
    stop_after: int | None = None
    """Stop after this epoch of the unchanged schedule."""
    train: bool = True
    """Whether missing runs are run; otherwise they are omitted."""
    workers: int = 1
    """The number of missing runs to run at once."""
    scheduler: str | None = None
    """The address of a Dask scheduler whose workers run the missing runs."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates that replace those of the presets, by ``PRESET.METHOD``."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Data sets that could not be loaded, with the reason, so that they are not tried again."""

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "width", "stop_after", "workers"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"--{name.replace('_', '-')} {value}: must be above 0")
        for name, rate in self.rates.items():
            if not 0 < rate < inf:
                raise InvalidInput(f"--rate {name}={rate}: must be a number above 0")


@dataclass(frozen=True)
class Cell:
    """An experiment repeated over seeds."""

    preset: str
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def changes_within(self, budget: Budget) -> dict[str, Any]:
        """Its changes to the preset, and the budget's learning rate if it has none of its own."""
        rate = budget.rates.get(f"{self.preset}.{self.method}")
        return {**({} if rate is None else {"lr": rate}), **self.changes}

    def experiment(self, budget: Budget, index: int) -> Experiment:
        """The complete experiment of seed number `index`, counted from the preset's seed."""
        first = load_experiment(self.preset, method=self.method).training.seed
        overrides: dict[str, Any] = {**self.changes_within(budget), "training.seed": first + index}
        if budget.epochs is not None:
            overrides["training.epochs"] = budget.epochs
        if budget.width is not None:
            overrides["model.width"] = budget.width
        return load_experiment(self.preset, method=self.method, overrides=overrides)

    def folder(self, experiment: Experiment, budget: Budget) -> Path:
        """The folder of this run; its name contains everything that differs between the runs of a table."""
        parts = [self.preset, self.method, *(f"{key}{value:g}" for key, value in self.changes_within(budget).items())]
        if budget.width is not None:
            parts.append(f"width{budget.width:g}")
        training = experiment.training
        return budget.runs / "-".join([*parts, str(training.seed), f"e{training.epochs}"])


@dataclass(frozen=True)
class Trained:
    """One run of a cell, as far as the budget goes."""

    seed: int
    folder: Path
    epochs: int
    """The length of the schedule."""
    rows: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        return sum(float(row["seconds"]) for row in self.rows)

    def best(self) -> dict[str, Any]:
        """The first epoch with the highest validation accuracy; without validation data, the last."""
        return best_epoch(self.rows) or self.rows[-1]

    def last(self) -> dict[str, Any]:
        return self.rows[-1]

    def accuracy_of_the_mean(self, row: dict[str, Any]) -> float | None:
        """From posterior samples; the mode's if the samples equal the mode, None if none were drawn."""
        if row.get("test_accuracy_mean") is not None:
            return float(row["test_accuracy_mean"])
        measured = records.measured_mean(self.folder)
        if measured is not None and measured.epoch == row["epoch"]:
            return measured.accuracy
        flips = records.expected_flips(self.folder)
        return float(row["test_accuracy"]) if flips is not None and flips < SATURATED else None


@dataclass
class Outcome:
    """The result of a cell: its runs, and why there are not more."""

    runs: list[Trained] = field(default_factory=list)
    reason: str | None = None
    earlier: bool = False
    """Whether the numbers come from a figure as it was, without a record of the runs."""


# With fewer expected differences from the mode than this, 99 in 100 samples equal the mode.
SATURATED = 0.01


Lines = Generator[str, None, Outcome]
"""Yields a line of progress per run, returns the outcome."""


def outcome_of(cell: Cell, budget: Budget, *, accept_unfinished: bool = False) -> Lines:
    """Reuse or run every seed of a cell.

    A failure (missing data, a diverged run) ends this cell, not the table. With `accept_unfinished`, an unfinished run
    is used up to its last epoch.
    """
    outcome = Outcome()
    for index in range(budget.seeds):
        experiment = cell.experiment(budget, index)
        name = experiment.data.name
        needed = min(experiment.training.epochs, budget.stop_after or experiment.training.epochs)
        found = _find(cell, experiment, budget, 1 if accept_unfinished else needed)
        if found is not None:
            folder, rows = found
            yield f"{folder}: reused, {rows[-1]['epoch']} of {experiment.training.epochs} epochs"
        elif name in budget.unavailable:
            outcome.reason = budget.unavailable[name]
            return outcome
        elif not budget.train:
            if not outcome.runs:
                outcome.reason = "no run found"
            yield f"{cell.folder(experiment, budget)}: not found, omitted"
            continue
        else:
            folder = cell.folder(experiment, budget)
            yield f"{folder}: training to epoch {needed} of {experiment.training.epochs}"
            try:
                rows = _train(experiment, folder, budget)
            except RunStopped:
                raise
            except BayesbinnError as error:
                outcome.reason = " ".join(str(error).split())
                if isinstance(error, InvalidFile) and not (folder / "config.toml").exists():
                    with suppress(OSError):
                        folder.rmdir()  # nothing was started because the data could not be loaded
                    budget.unavailable[name] = outcome.reason
                yield f"{folder}: not run: {outcome.reason}"
                return outcome
        kept = [row for row in rows if budget.stop_after is None or row["epoch"] <= budget.stop_after]
        outcome.runs.append(Trained(experiment.training.seed, folder, experiment.training.epochs, kept))
    return outcome


def train_ahead(cells: Iterable[Cell], budget: Budget, *, accept_unfinished: bool = False) -> Iterator[str]:
    """With several workers, run what `outcome_of` will need; it then finds the runs, or reports why one failed."""
    scheduler, workers = budget.scheduler, budget.workers
    if (workers == 1 and scheduler is None) or not budget.train:
        return
    threads = 1 if scheduler else max(1, cores() // workers)
    jobs = {}
    for cell in cells:
        for index in range(budget.seeds):
            experiment = cell.experiment(budget, index)
            needed = min(experiment.training.epochs, budget.stop_after or experiment.training.epochs)
            folder = cell.folder(experiment, budget)
            if _find(cell, experiment, budget, 1 if accept_unfinished else needed) is None:
                jobs[folder] = job_of(str(folder), experiment, folder, threads, budget.data_dir, budget.stop_after)
    if not jobs:
        return
    where = f"on {scheduler}" if scheduler else f"{workers} at once, {threads} threads each"
    yield f"training {len(jobs)} runs, {where}"
    try:
        with _stopping() as should_stop, open_executor(workers, threads, scheduler) as (executor, slots):
            most = slots if workers > 1 else None
            for ended in run_all(executor, jobs.values(), slots=most, should_stop=should_stop):
                yield f"{ended.name}: {ended.state}{f': {ended.reason}' if ended.reason else ''}"
    except Interrupted as stopped:
        raise RunStopped(str(stopped)) from None
    finally:
        for folder in jobs:
            _clear_unstarted(folder)


def _clear_unstarted(folder: Path) -> None:
    """Remove the folder of a run that could not start, for example because its data are missing."""
    if folder.is_dir() and not (folder / "config.toml").exists():
        with suppress(OSError):
            for name in (LOG, ERROR):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def _find(cell: Cell, experiment: Experiment, budget: Budget, needed: int) -> tuple[Path, list[dict[str, Any]]] | None:
    """A run of the same experiment with at least `needed` epochs. Also looks in the default folder of `bayesbinn train`
    and among the records of `make evidence`."""
    default = budget.runs / f"{cell.preset}-{cell.method}-{experiment.training.seed}"
    recorded = records.find(budget.runs, experiment)
    for folder in (cell.folder(experiment, budget), default, recorded):
        if folder is None or not (folder / "config.toml").is_file():
            continue
        existing, rows = load_run(folder)
        # A different title does not make a different experiment.
        same = existing.model_copy(update={"title": experiment.title}) == experiment
        if same and rows and rows[-1]["epoch"] >= needed:
            return folder, rows
    return None


def _train(experiment: Experiment, folder: Path, budget: Budget) -> list[dict[str, Any]]:
    with RunFolder.locked(folder) as writable:
        run = Run.open(experiment, writable, budget.data_dir)
        with _stopping() as should_stop:
            run.train(stop_after=budget.stop_after, should_stop=should_stop)
    return run.rows


def _stopping() -> AbstractContextManager[Callable[[], bool]]:
    """Let Ctrl-C stop between two batches, if this is the main thread, the only one that can catch signals."""
    if threading.current_thread() is threading.main_thread():
        return stoppable()
    return nullcontext(lambda: False)


def duration(seconds: float) -> str:
    """A human-readable wall time.

    >>> duration(42), duration(750), duration(9000), duration(200_000)
    ('42 s', '12.5 min', '2.5 h', '2.3 d')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    for limit, unit, name in ((5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds / 86_400:.1f} d"
