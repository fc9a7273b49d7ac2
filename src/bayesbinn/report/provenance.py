"""Where a run comes from: its settings, seed, versions, and the command that repeats it."""

from __future__ import annotations

import shlex
from pathlib import Path

from bayesbinn.data.card import DataCard
from bayesbinn.environment import describe
from bayesbinn.errors import BayesbinnError
from bayesbinn.experiments.config import Experiment, load_experiment, preset_names
from bayesbinn.report.blocks import Code, Facts, Section, Text


def command_of(experiment: Experiment, folder: Path) -> str:
    """The shortest command that repeats this run: with its preset if there is one, otherwise with its settings."""
    training = experiment.training
    method = experiment.method.name
    changes = {"training.seed": training.seed, "training.epochs": training.epochs}
    for name in preset_names():
        try:
            same = load_experiment(name, method=method, overrides=changes) == experiment
        except BayesbinnError:
            continue
        if same:
            words = ["bayesbinn", "train", name, "--method", method, "--seed", str(training.seed)]
            return shlex.join([*words, "--epochs", str(training.epochs)])
    return shlex.join(["bayesbinn", "train", str(folder / "config.toml"), "--out", f"{folder}-again"])


def section(experiment: Experiment, card: DataCard | None, folder: Path) -> Section:
    """Settings, data, versions and command."""
    rows = [("seed", str(experiment.training.seed))]
    if card is not None:
        rows += [
            (
                "data",
                f"{card.name}: {card.train_rows - card.validation_rows:,} rows to train on, "
                f"{card.validation_rows:,} for validation, {card.test_rows:,} to test on",
            ),
            ("test part", card.test_part),
            ("fingerprint of the data", card.fingerprint),
        ]
    return Section(
        "Settings",
        [
            Facts(rows),
            Text("The complete experiment, as config.toml in the folder of the run:"),
            Code(experiment.to_toml().strip()),
            Text("This command repeats the run:"),
            Code(command_of(experiment, folder)),
            Text("This page was made with:"),
            versions(),
        ],
    )


def versions() -> Facts:
    """The software and the machine that made the page."""
    facts = describe()
    names = ("bayesbinn", "python", "torch", "numpy", "processor", "cores", "kernels")
    return Facts([(name, str(facts[name])) for name in names if name in facts])
