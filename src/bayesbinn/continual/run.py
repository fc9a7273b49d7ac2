"""A continual experiment in a folder of its own.

config.toml             the complete experiment
metrics.jsonl           a line per epoch of every task; accuracies on the way are by 8-bit activations
tasks.jsonl             a line per finished task: accuracies by policy, entropy and histogram of the weights
result.json             forgetting and transfer, the untrained network, what the end knows of strange inputs
checkpoint.pt           everything the next batch needs
posterior.safetensors   q(w) as it is
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from bayesbinn import data as data_sets
from bayesbinn.continual.learner import Learner, Plan
from bayesbinn.continual.record import Record
from bayesbinn.data import Dataset, Stream
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment, load_experiment
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.run_files import begin_folder, read_rows, refuse_another
from bayesbinn.runs import LOSSES, build_model, check_loss, make_optimizers


def stream_for(experiment: Experiment, data_dir: Path | None = None) -> Stream:
    """The tasks of an experiment, made of its data set."""
    settings = experiment.continual
    if settings is None:
        raise InvalidInput(f"{experiment.title}: it has no section [continual], so there is one task only")
    dataset = data_sets.load(experiment.data.name, data_dir=data_dir, label=experiment.data.label)
    if settings.stream == "permuted":
        return data_sets.permuted(dataset, settings.tasks, seed=experiment.training.seed)
    return data_sets.split(dataset, settings.classes_per_task, settings.scenario)


def open_run(experiment: Experiment, folder: Path, data_dir: Path | None = None) -> Learner:
    """Start a run in a new folder, or resume the one that is there if it is of the same experiment."""
    refuse_another(experiment, folder)
    learner = _built(experiment, folder, data_dir)
    begin_folder(experiment, folder)
    return learner


def _built(experiment: Experiment, folder: Path, data_dir: Path | None) -> Learner:
    stream, settings = stream_for(experiment, data_dir), experiment.continual
    assert settings is not None
    first = stream[0]
    check_loss(experiment, first)
    torch.manual_seed(experiment.training.seed)
    model = build_model(experiment, first)
    optimizer, real_optimizer = make_optimizers(experiment, model, first)
    training = experiment.training
    plan = Plan(
        epochs=training.epochs,
        batch_size=training.batch_size,
        schedule=experiment.method.schedule,
        remember=settings.remember,
        samples=settings.samples,
        evaluate_every=training.evaluate_every if settings.rows == "all" else 0,
        rows=settings.rows,
        validation=experiment.data.validation,
        train_set_scale=experiment.method.train_set_scale,
        augment=experiment.data.augment,
        seed=training.seed,
    )
    loss = LOSSES[training.loss]
    return Learner(model, optimizer, stream, plan, real_optimizer=real_optimizer, folder=folder, loss=loss)


def load_learned(
    folder: Path, data_dir: Path | None = None
) -> tuple[Experiment, Dataset, nn.Module, BernoulliPosterior | None]:
    """The network of a run, its posterior (None for full precision), and the data of the task learned last."""
    experiment, record = load_record(folder)
    if not record.finished:
        raise InvalidInput(f"{folder}: no task is learned yet; train first")
    with torch.random.fork_rng([]):  # loading must not disturb what else the program draws
        learner = _built(experiment, folder, data_dir)
    posterior = learner.optimizer.posterior() if learner.optimizer.binary else None
    learner.model.eval()
    return experiment, learner.stream[len(record.finished) - 1], learner.model, posterior


def load_record(folder: Path) -> tuple[Experiment, Record]:
    """The experiment of a run and what it has measured so far, finished or not."""
    config = folder / "config.toml"
    if not config.is_file():
        raise InvalidFile(f"{folder}: there is no run here (no config.toml)")
    experiment = load_experiment(str(config))
    if experiment.continual is None:
        raise InvalidInput(f"{folder}: a run of one task; a continual one is needed")
    try:
        result = json.loads((folder / "result.json").read_text())
        finished = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
        record = Record(result["tasks"], read_rows(folder / "metrics.jsonl"), finished, result["start"], result["end"])
        record.summary()  # reads what was measured of every finished task
        return experiment, record
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InvalidFile(f"{folder}: no readable results ({error}); resuming the run writes them anew") from None
