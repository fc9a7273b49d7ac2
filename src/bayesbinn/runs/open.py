"""From the arguments of `train` to a run that is ready to train."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bayesbinn import ranks
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.choose import choose_for_file
from bayesbinn.experiments.config import Experiment, load_experiment, preset_names
from bayesbinn.runs.best_epoch import best_epoch as best_epoch
from bayesbinn.runs.single import Run
from bayesbinn.runs.stream import open_run
from bayesbinn.runs.trackers import usual_trackers, watchers_of
from bayesbinn.runs.tracking import check_trackers
from bayesbinn.train.folder import RunFolder
from bayesbinn.train.schedules import Cosine
from bayesbinn.train.trainer import Trainer


@dataclass(frozen=True)
class Chosen:
    """An experiment to run, its folder, and what was decided on the user's behalf."""

    experiment: Experiment
    folder: Path
    notes: tuple[str, ...]


def prepare(
    source: str,
    method: str | None,
    seed: int | None,
    epochs: int | None,
    label: str | None,
    changes: list[str],
    data_dir: Path | None,
) -> Chosen:
    """Turn the arguments of `train` into an experiment."""
    overrides: dict[str, Any] = dict(_parse_change(change) for change in changes)
    if seed is not None:
        overrides["training.seed"] = seed
    if epochs is not None:
        overrides["training.epochs"] = epochs
    notes: tuple[str, ...] = ()
    if source in preset_names() or source.endswith(".toml"):
        if label is not None:
            raise InvalidInput(f"--label is for your own table, but {source} is an experiment; leave it out")
        experiment = load_experiment(source, method=method, overrides=overrides)
        notes = schedule_notes(experiment)
        name = Path(source).stem
    elif Path(source).exists():
        experiment, notes = choose_for_file(source, label, method or "bayesbinn", overrides)
        name = Path(source).stem
    elif Path(source).suffix or len(Path(source).parts) > 1:
        raise InvalidInput(f"{source}: no such file or folder; presets: {', '.join(preset_names())}")
    else:
        experiment = load_experiment(source)  # raises with the nearest preset
        name = source
    return Chosen(experiment, default_folder(experiment, name, Path(source).suffix), notes)


def default_folder(experiment: Experiment, name: str, suffix: str) -> Path:
    """The default folder of a run: runs/NAME-METHOD-SEED.

    If that folder holds a run on other data, such as wine.csv when this is wine.tsv, the suffix is added to the name.
    """
    ending = f"{experiment.method.name}-{experiment.training.seed}"
    plain, distinct = Path("runs") / f"{name}-{ending}", Path("runs") / f"{name}{suffix}-{ending}"
    used = {folder: _data_name(folder) for folder in (plain, distinct)}
    wanted = experiment.data.name
    return distinct if used[distinct] == wanted or used[plain] not in (None, wanted) else plain


def _data_name(folder: Path) -> str | None:
    """The name of a run's data; None if there is no run."""
    config = folder / "config.toml"
    return load_experiment(str(config)).data.name if config.is_file() else None


def schedule_notes(experiment: Experiment) -> tuple[str, ...]:
    """Notes for the user about a schedule that differs from its preset's."""
    schedule = experiment.method.schedule
    if isinstance(schedule, Cosine) and schedule.end == "above_zero":
        return (f"learning rate: {schedule.describe()} (--set method.schedule.end=authors: 0 in the last epoch)",)
    return ()


def _parse_change(change: str) -> tuple[str, Any]:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise InvalidInput(f"--set {change}: must be key=value, such as --set lr=0.01")
    if text.lower() in ("true", "false"):
        return key, text.lower() == "true"
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return key, text


def open_any(
    experiment: Experiment, folder: RunFolder | Path, data_dir: Path | None, track: Sequence[str] = ()
) -> Trainer:
    """Open a run of one task, or of a stream of tasks, whose metrics also go to the named trackers."""
    world = ranks.world()
    ranks.decided(lambda: check_ranks(experiment, world))
    asked = check_trackers(track)
    run: Trainer
    if experiment.continual is None:
        run, asked = Run.open(experiment, folder, data_dir), (*usual_trackers(), *asked)
    else:
        run = open_run(experiment, folder, data_dir)
    run.watchers = watchers_of(asked, experiment)
    return run


def check_ranks(experiment: Experiment, world: int) -> None:
    """Reject what several ranks cannot do."""
    training = experiment.training
    if world == 1:
        return
    if experiment.continual is not None:
        raise InvalidInput(
            f"{experiment.title}: only one process can learn a stream of tasks; start it without torchrun"
        )
    if training.batch_size < 2 * world:
        raise InvalidInput(
            f"training.batch_size={training.batch_size}: {world} ranks need {2 * world} or more, 2 examples per rank"
        )
    if training.sync_batchnorm and not torch.cuda.is_available():
        raise InvalidInput(
            "sync_batchnorm: torch's SyncBatchNorm does not run on CPUs; leave it out, and every rank uses the "
            "statistics of its share of the batch"
        )
