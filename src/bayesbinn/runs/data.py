"""The data of a run: loaded in one place, and refused when they are not those that the run was made with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bayesbinn import data as data_sets
from bayesbinn.data import Dataset
from bayesbinn.data.card import FILE_NAME, DataCard, known_card
from bayesbinn.experiments.config import Experiment, load_experiment
from bayesbinn.runs.folder import refuse_another
from bayesbinn.train.checkpoints import read_checkpoint


def load_data(experiment: Experiment, data_dir: Path | None = None) -> Dataset:
    """The data set that an experiment names."""
    settings = experiment.data
    dataset = data_sets.load(settings.name, data_dir=data_dir, label=settings.label, task=settings.task)
    return replace(dataset, stratify=True) if settings.stratify else dataset


def card_of(experiment: Experiment, dataset: Dataset) -> DataCard:
    """What a run of this experiment remembers of its data."""
    settings = experiment.data
    return DataCard.of(dataset, validation=settings.validation, seed=experiment.split_seed, label=settings.label)


def refuse_other_source(experiment: Experiment, folder: Path) -> None:
    """Refuse a folder with a run on data of another name, before any are loaded."""
    config = folder / "config.toml"
    if config.exists():
        there, here = load_experiment(str(config)).data, experiment.data
        if (there.name, there.label, there.task) != (here.name, here.label, here.task):
            refuse_another(experiment, folder)


def refuse_other_data(card: DataCard, folder: Path) -> tuple[DataCard, tuple[str, ...]]:
    """Refuse data that are not those of the run in the folder; its card otherwise, and what the user should know."""
    saved = read_checkpoint(folder / "checkpoint.pt")
    stored = known_card(folder, saved)
    if stored is not None:
        stored.refuse_other(card, folder)
        return stored, ()
    if saved is None:
        return card, ()
    note = f"{folder} has no {FILE_NAME}, as runs of older versions: it is written for the data as they are now"
    return card, (note,)
