"""A continual experiment in its own folder.

config.toml             the complete experiment
data.json               what the run knows about the data set that its tasks are made from
metrics.jsonl           a line per epoch of every task; accuracies within a task use 8-bit activations
tasks.jsonl             a line per finished task: accuracies by policy, entropy and histogram of the weights
result.json             forgetting and transfer, the untrained network, final uncertainty about unfamiliar inputs
checkpoint.pt           everything the next batch needs
posterior.safetensors   the current q(w)
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from bayesbinn import data as data_sets
from bayesbinn.continual.learner import Learner
from bayesbinn.continual.plan import Plan
from bayesbinn.continual.record import Record
from bayesbinn.data import Dataset, Stream
from bayesbinn.data.card import FILE_NAME as CARD
from bayesbinn.data.card import DataCard
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.config import Experiment, load_experiment
from bayesbinn.runs.averaging import check_averaging
from bayesbinn.runs.build import build_model, check_batch_size, check_loss, loss_of, make_optimizers
from bayesbinn.runs.data import card_of, load_data, refuse_other_data, refuse_other_source
from bayesbinn.runs.folder import CONFIG, refuse_another
from bayesbinn.train.folder import RunFolder, owned
from bayesbinn.train.rows import read_rows


def stream_for(experiment: Experiment, data_dir: Path | None = None) -> Stream:
    """The tasks of an experiment, made from its data set."""
    return _stream_of(experiment, load_data(experiment, data_dir))


def _stream_of(experiment: Experiment, dataset: Dataset) -> Stream:
    settings = experiment.continual
    if settings is None:
        raise InvalidInput(f"{experiment.title}: has no section [continual], so there is only one task")
    if settings.stream == "permuted":
        return data_sets.permuted(dataset, settings.tasks, seed=experiment.training.seed)
    return data_sets.split(dataset, settings.classes_per_task, settings.scenario)


def open_run(experiment: Experiment, folder: RunFolder | Path, data_dir: Path | None = None) -> Learner:
    """Start a run in a new folder, or resume the one that is there if it is of the same experiment.

    A path is locked while something is written there: now, and during `train`.
    """
    with owned(folder) as writable:
        place = writable.path
        experiment = refuse_other_source(experiment, place)
        dataset = load_data(experiment, data_dir)
        # Check the data first: settings chosen for them, such as the number of epochs, change with them.
        card, notes = refuse_other_data(card_of(experiment, dataset), place)
        experiment = refuse_another(experiment, place)
        learner = _built(experiment, folder, dataset, card)
        learner.notes = notes
        writable.keep(CONFIG, experiment.to_toml().encode())
        writable.keep(CARD, learner.card.to_json().encode())
        return learner


def _built(experiment: Experiment, folder: RunFolder | Path, dataset: Dataset, card: DataCard) -> Learner:
    stream, settings = _stream_of(experiment, dataset), experiment.continual
    assert settings is not None
    first = stream[0]
    check_loss(experiment, first)
    torch.manual_seed(experiment.training.seed)
    model = build_model(experiment, first)
    check_batch_size(experiment, model)
    optimizer, real_optimizer = make_optimizers(experiment, model, first)
    check_averaging(experiment, optimizer)
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
        shift=experiment.data.shift,
        distort=experiment.data.distort,
        seed=training.seed,
    )
    loss = loss_of(training)
    return Learner(model, optimizer, stream, plan, real_optimizer=real_optimizer, folder=folder, loss=loss, card=card)


def load_record(folder: Path) -> tuple[Experiment, Record]:
    """The experiment of a run and what it has measured so far, finished or not."""
    config = folder / "config.toml"
    if not config.is_file():
        raise InvalidFile(f"{folder}: there is no run here (no config.toml)")
    experiment = load_experiment(str(config))
    if experiment.continual is None:
        raise InvalidInput(f"{folder}: a run of one task; expected a continual run")
    try:
        result = json.loads((folder / "result.json").read_text())
        finished = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
        record = Record(result["tasks"], read_rows(folder / "metrics.jsonl"), finished, result["start"], result["end"])
        record.summary()  # reads the measurements of every finished task
        return experiment, record
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InvalidFile(f"{folder}: no readable results ({error}); resume the run to rewrite them") from None
