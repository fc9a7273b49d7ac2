"""The data of a run: loaded in one place, and rejected if they are not the data that the run was created with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bayesbinn import data as data_sets
from bayesbinn.data import Dataset
from bayesbinn.data.card import FILE_NAME, DataCard, known_card
from bayesbinn.experiments.config import Experiment, as_begun, load_experiment
from bayesbinn.runs.folder import refuse_another
from bayesbinn.train.checkpoints import read_checkpoint


def load_data(experiment: Experiment, data_dir: Path | None = None) -> Dataset:
    """The data set that an experiment names."""
    settings = experiment.data
    dataset = data_sets.load(
        settings.name, data_dir=data_dir, label=settings.label, task=settings.task, encode=settings.encode
    )
    return replace(dataset, stratify=True) if settings.stratify else dataset


def card_of(experiment: Experiment, dataset: Dataset) -> DataCard:
    """What a run of this experiment stores about its data."""
    settings = experiment.data
    return DataCard.of(dataset, validation=settings.validation, seed=experiment.split_seed, label=settings.label)


def refuse_other_source(experiment: Experiment, folder: Path) -> Experiment:
    """Refuse a folder with a run on data of another name, before any are loaded; the experiment as it was begun."""
    config = folder / "config.toml"
    if not config.exists():
        return experiment
    begun = load_experiment(str(config))
    there, here = begun.data, experiment.data
    if (there.name, there.label, there.task) != (here.name, here.label, here.task):
        refuse_another(experiment, folder)
    return as_begun(begun, experiment)


def refuse_other_data(card: DataCard, folder: Path) -> tuple[DataCard, tuple[str, ...]]:
    """Reject data that differ from those of the run in the folder; else return its card and notes for the user."""
    saved = read_checkpoint(folder / "checkpoint.pt")
    stored = known_card(folder, saved)
    if stored is not None:
        stored.refuse_other(card, folder)
        return stored, ()
    if saved is None:
        return card, ()
    note = f"{folder} has no {FILE_NAME} (a run from an older version); it will be written for the current data"
    return card, (note,)
