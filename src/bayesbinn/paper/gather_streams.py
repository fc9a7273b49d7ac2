"""The continual runs behind a figure: finished ones are reused, unfinished ones resumed, missing ones run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesbinn.continual import Record
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment, preset_names
from bayesbinn.paper import records
from bayesbinn.paper.drawing import BLACK, BLUE, GRAY, ORANGE, SKY
from bayesbinn.paper.earlier import MARK
from bayesbinn.paper.gather import Budget, Cell
from bayesbinn.paper.published import Value
from bayesbinn.runs.folder import difference
from bayesbinn.runs.stream import load_record, open_run
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.progress import RunStopped, stoppable

Array = NDArray[np.float64]

POLICIES = {
    "shared": "the last task's running statistics for every task, as the authors do; needs no extra information",
    "per-task": "the statistics stored after learning the task; needs to know which task an input belongs to",
    "recalibrated": "the statistics of the test batch of 1000 inputs; needs a batch of inputs of one task, but neither "
    "labels nor the name of the task",
    "none": "the network has no BatchNorm",
}
"""The BatchNorm policies, and what each needs to know at test time."""

WALL_TIME = (
    "Wall times are means over seeds, for training and for all tests; a reused run keeps the times of the "
    "machine that ran it."
)

_NOT_THERE = "not found"


@dataclass(frozen=True)
class Variant:
    """A way of learning a stream, repeated over seeds."""

    label: str
    stem: str
    """The name of its folders, before the seed."""
    cell: Cell

    def folders(self, experiment: Experiment, budget: Budget) -> list[Path]:
        """The folder of a run, then where else it may be: with its own budget, under the plain name."""
        width = [] if budget.width is None else [f"width{budget.width:g}"]
        plain = "-".join([self.stem, *width, str(experiment.training.seed)])
        names = [plain] if budget.epochs is None else [f"{plain}-e{budget.epochs}", plain]
        return [budget.runs / name for name in names]


@dataclass(frozen=True)
class Learned:
    """A run that has learned all of its tasks."""

    seed: int
    folder: Path
    experiment: Experiment
    record: Record

    @property
    def epochs(self) -> int:
        """Per task."""
        return self.experiment.training.epochs

    def seconds(self, what: str) -> float:
        """Wall time of ``"train"`` or ``"evaluation"``."""
        return sum(float(line[f"{what}_seconds"]) for line in self.record.finished)

    def weights(self, key: str) -> list[float | None]:
        """`entropy` or `saturated` at the start and after each task; None without a distribution."""
        return [line.get(key) for line in (self.record.start, *self.record.finished)]


@dataclass
class Gathered:
    """The runs of a variant, and why there are not more."""

    variant: Variant
    runs: list[Learned] = field(default_factory=list)
    earlier: list[int] = field(default_factory=list)
    """Seeds whose numbers come from the figure as it was."""
    missing: list[str] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """Why there are not more runs, in words."""
        if not self.runs and all(each.endswith(f": {_NOT_THERE}") for each in self.missing):
            return "no run found"
        return "; ".join(self.missing)

    def seeds(self) -> str:
        """For a table: the available seeds, then what happened to the others."""
        names = [f"{run.seed}{MARK if run.seed in self.earlier else ''}" for run in self.runs]
        return ", ".join(names) + (f" ({self.reason})" if self.missing else "")

    def policies(self) -> list[str]:
        return self.runs[0].record.policies() if self.runs else []

    def mean_seconds(self, what: str) -> float:
        return float(np.mean([run.seconds(what) for run in self.runs]))

    def described(self) -> dict[str, Any]:
        """What all figures store about a variant in addition to its numbers."""
        return {
            "variant": self.variant.label,
            "method": self.variant.cell.method,
            "seeds": [run.seed for run in self.runs],
            "earlier": self.earlier,
            "not run": self.missing,
            "epochs per task": self.runs[0].epochs if self.runs else None,
            "samples": samples(self.runs[0]) if self.runs else None,
            "train seconds": [run.seconds("train") for run in self.runs],
            "evaluation seconds": [run.seconds("evaluation") for run in self.runs],
        }


def earlier_and_others(found: Iterable[Gathered]) -> tuple[bool, list[Path]]:
    """Whether some numbers come from the figure as it was, and the folders of the runs whose numbers do not."""
    listed = list(found)
    others = [run.folder for each in listed for run in each.runs if run.seed not in each.earlier]
    return any(each.earlier for each in listed), others


def samples(run: Learned) -> int:
    """The number of posterior samples behind an accuracy."""
    assert run.experiment.continual is not None
    return run.experiment.continual.samples


def gather(
    variant: Variant, budget: Budget, known: Callable[[Experiment], Record | None] = lambda wanted: None
) -> Generator[str, None, Gathered]:
    """Reuse, resume or run every seed of a variant; yields one line per seed.

    `known` returns what an earlier figure shows of a missing run, see `bayesbinn.paper.earlier`.

    A failure (a missing preset or missing data, a diverged run) ends this variant, not the figure.
    """
    found = Gathered(variant)
    for index in range(budget.seeds):
        try:
            experiment = _wanted(variant, budget, index)
        except InvalidInput as error:
            found.missing.append(_line(error))
            yield f"{variant.label}: omitted: {found.missing[-1]}"
            return found
        seed, name = experiment.training.seed, experiment.data.name
        folders = [*variant.folders(experiment, budget), records.find(budget.runs, experiment)]
        states = [_read(folder, experiment) for folder in folders if folder is not None]
        state = next((each for each in states if not each.lacks), states[0])
        if not state.lacks:
            yield f"{state.folder}: reused, {len(state.record.tasks)} tasks × {experiment.training.epochs} epochs"
        elif not budget.train and (record := known(experiment)) is not None:
            found.earlier.append(seed)
            state = replace(state, experiment=experiment, record=record)
            yield f"{variant.label}, seed {seed}: not there; its numbers are those of the figure as it was"
        elif not budget.train:
            found.missing.append(f"seed {seed}: {state.lacks}")
            yield f"{state.folder}: {state.lacks}, omitted"
            continue
        elif name in budget.unavailable:
            found.missing.append(budget.unavailable[name])
            return found
        else:
            yield f"{state.folder}: training ({state.lacks})"
            try:
                state = _train(state, budget)
            except RunStopped:
                raise
            except BayesbinnError as error:
                found.missing.append(f"seed {seed}: {_line(error)}")
                if isinstance(error, InvalidFile) and not state.folder.exists():
                    budget.unavailable[name] = _line(error)  # nothing was started because the data could not be loaded
                yield f"{state.folder}: not run: {_line(error)}"
                return found
        found.runs.append(Learned(seed, state.folder, state.experiment, state.record))
    return found


def _wanted(variant: Variant, budget: Budget, index: int) -> Experiment:
    if variant.cell.preset not in preset_names():
        raise InvalidInput(f"there is no preset {variant.cell.preset!r}")
    return variant.cell.experiment(budget, index)


@dataclass(frozen=True)
class _State:
    """What is in a folder, and what is missing, in words; empty if the run has finished."""

    folder: Path
    experiment: Experiment
    record: Record
    lacks: str


def _read(folder: Path, wanted: Experiment) -> _State:
    nothing = Record([])
    if not (folder / "config.toml").is_file():
        return _State(folder, wanted, nothing, _NOT_THERE)
    try:
        existing, record = load_record(folder)
    except BayesbinnError as error:
        return _State(folder, wanted, nothing, _line(error))
    if change := difference(_learning(existing), _learning(wanted)):
        return _State(folder, wanted, nothing, f"a different experiment ({change})")
    count, learned = len(record.tasks), len(record.finished)
    return _State(folder, existing, record, "" if learned == count else f"in task {learned + 1} of {count}")


def _learning(experiment: Experiment) -> Experiment:
    """The settings that affect a run's result: not its title, nor how often it is evaluated during training."""
    training = experiment.training.model_copy(update={"evaluate_every": 1})
    return experiment.model_copy(update={"title": "", "training": training})


def _train(state: _State, budget: Budget) -> _State:
    with RunFolder.locked(state.folder) as writable:
        learner = open_run(state.experiment, writable, budget.data_dir)
        # Signals can be caught in the main thread only.
        here = threading.current_thread() is threading.main_thread()
        with stoppable() if here else nullcontext(lambda: False) as should_stop:
            learner.train(should_stop=should_stop)
    return replace(state, record=learner.record, lacks="")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def without_stopping(name: str, budget: Budget) -> Budget:
    """These figures compare finished runs: reject a budget that stops earlier."""
    if budget.stop_after is not None:
        raise InvalidInput(f"--stop-after {budget.stop_after}: {name} shows finished runs; shorten them with --epochs")
    return budget


# ---- text and drawing -----------------------------------------------------------------------------


def text_of(values: Sequence[float | None], digits: int = 2) -> str:
    """Mean ± population standard deviation of the measured values; empty if there are none.

    >>> text_of([1.0, 2.0]), text_of([0.5], 3), text_of([None])
    ('1.50 ± 0.50', '0.500', '')
    """
    measured = [value for value in values if value is not None]
    if not measured:
        return ""
    value = Value.of(measured)
    return f"{value.mean:.{digits}f}" + ("" if value.std is None else f" ± {value.std:.{digits}f}")


def numbers_of(values: Sequence[float | None]) -> dict[str, Any] | None:
    """The same as numbers; None if nothing was measured."""
    measured = [value for value in values if value is not None]
    return {**asdict(Value.of(measured)), "values": measured} if measured else None


LOOKS: tuple[tuple[str, str], ...] = (
    (BLUE, "-"),
    (ORANGE, "--"),
    (BLACK, "-."),
    (GRAY, ":"),
    (SKY, "-"),
    ("#009E73", "--"),
    ("#CC79A7", "-."),
)
"""The color and line style of each variant, in order."""


def draw_mean(axis: Any, x: Array, values: Array, look: tuple[str, str], **options: Any) -> None:
    """Draw the mean over seeds, [seeds, points], with a band of ± 1 standard deviation if there are several."""
    color, style = look
    mean, spread = values.mean(0), values.std(0)
    if len(values) > 1:
        axis.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)
    axis.plot(x, mean, style, color=color, **options)
