"""Choose a network and settings for a user's own data, and explain the choice.

The rules use the number of rows and columns and the kind of data, never the label values. They were tuned on tables
other than those that `benchmarks/tables.py` reports. A table gets the same networks and settings from the command
line as from the estimators of `bayesbinn.sklearn`: both ask `choose_for_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

from bayesbinn import data as data_sets
from bayesbinn.data import Dataset
from bayesbinn.data.own.labels import check_repeating
from bayesbinn.experiments.config import Experiment, override, validated

VALIDATION = 0.1

# Smaller images are not worth halving three times by max-pooling.
_SMALLEST_SIDE, _SMALLEST_LONGER_SIDE = 8, 16
_LEAST_STEPS = 100
# Copies of a table's code, and inputs of the first layer: with more, the file would be larger than a tenth of a float
# network with as many units.
_COPIES, _COPIES_OF_A_COLUMN, _MAX_INPUTS = 5, 10, 448
_CERTAINTY, _ENOUGH_ROWS = 1000.0, 1500
_CERTAINTY_OF_MANY = {"classification": 10.0, "regression": 100.0}
_MANY_ROWS = 200_000  # from here on larger batches still make tens of thousands of steps


@dataclass(frozen=True)
class Choice:
    """Part of an experiment, and why it was chosen."""

    settings: dict[str, Any]
    reason: str


def choose_for_file(
    source: str, label: str | None, method: str, overrides: Mapping[str, Any]
) -> tuple[Experiment, tuple[str, ...]]:
    """An experiment for a user's file or folder, and notes on what was chosen."""
    source = str(Path(source).resolve())  # so that the run can be used from any folder
    dataset = data_sets.load(source, label=label, task=overrides.get("data.task"), encode=encodes(overrides))
    if label and dataset.task == "classification" and "data.task" not in overrides:
        check_repeating(dataset.classes, len(dataset.train_inputs) + len(dataset.test_inputs), source)
    return choose_for_data(dataset, method, source=source, label=label, overrides=overrides)


def encodes(overrides: Mapping[str, Any]) -> bool:
    """Whether a table is encoded: unless the user does not want it."""
    return bool(overrides.get("data.encode", True))


def choose_for_data(
    dataset: Dataset,
    method: str,
    *,
    source: str,
    label: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    changed_by: str = "--set",
) -> tuple[Experiment, tuple[str, ...]]:
    """An experiment for a data set loaded from `source`, and one sentence per choice.

    `changed_by` names the option that the notes recommend for changing the choices.
    """
    rows, encoding = len(dataset.train_inputs), dataset.encoding
    if encoding is None:
        network = choose_network(dataset.input_shape, rows)
        budget = choose_budget(rows, network.settings["name"] == "vgg").settings
    else:
        network, budget = _choices_for_encoded(rows - int(VALIDATION * rows), encoding.width, len(encoding.columns))
    convolutional = network.settings["name"] == "vgg"
    steps = budget["epochs"] * _batches(rows, budget["batch_size"])
    settings = method_settings(method, steps, convolutional)
    if encoding is not None:
        asked = [key.rpartition(".")[2] for key in overrides or {}]
        settings = table_settings(method, rows - int(VALIDATION * rows), steps, dataset.task, asked)
    raw: dict[str, Any] = {
        "title": Path(source).name,
        "data": {
            "name": source,
            "validation": VALIDATION,
            "stratify": True,
            **({"label": label} if label else {}),
            **({} if encoding is None else {"encode": True}),
        },
        "model": network.settings,
        "training": {
            **budget,
            "loss": "cross_entropy" if dataset.task == "classification" else "mse",
        },
        "method": {
            "name": method,
            "settings": settings,
            "schedule": {"kind": "cosine", "end": "above_zero"},
        },
    }
    chosen = {key: dict(raw[key]) for key in ("model", "training")}
    for key, value in (overrides or {}).items():
        override(raw, key, value)
    if encoding is not None or _saturates(raw["method"]["settings"]):
        raw["training"].setdefault("mean_samples", 0)
    experiment = validated(raw, source)
    as_chosen = {key: all(raw[key].get(name) == value for name, value in chosen[key].items()) for key in chosen}
    return experiment, (
        *dataset.notes,
        f"{rows} training and {len(dataset.test_inputs)} test examples of shape {dataset.input_shape}",
        *_notes(experiment, network.reason if as_chosen["model"] else "as you asked", changed_by),
    )


def _choices_for_encoded(rows: int, codes: int, columns: int) -> tuple[Choice, dict[str, Any]]:
    """`choose_for_table` as sections of an experiment."""
    found = choose_for_table(rows, codes, columns)
    settings = {
        "name": "table_ensemble",
        "hidden": found.hidden[0],
        "layers": len(found.hidden),
        "networks": found.networks,
        "copies": found.copies,
    }
    budget = {"epochs": found.epochs, "batch_size": found.batch_size}
    return Choice(settings, f"{rows} rows to train on, {codes} codes"), budget


@dataclass(frozen=True)
class TableChoice:
    """Networks and training for a table, from its size alone."""

    hidden: tuple[int, ...]
    networks: int
    """How many are trained side by side; their mean predicts, and their disagreement is uncertainty."""
    copies: int
    """How often the first layer gets every code: more let a binary unit weigh it in finer steps."""
    epochs: int
    batch_size: int


def choose_for_table(rows: int, codes: int, columns: int) -> TableChoice:
    """Networks, epochs and batch size for this many training rows, and for columns that became this many codes.

    Four networks of 80 units: on ten tables that no benchmark reports, 96 units and eight networks were no better
    (a mean NLL of 0.437 and 0.433 after 0.433). A column of one code gets ten copies of it, one of two codes five of
    each.

    >>> small, large = choose_for_table(142, 20, 13), choose_for_table(9600, 700, 40)
    >>> (small.hidden, small.copies, small.epochs), (large.hidden, large.copies, large.epochs)
    (((80, 80), 6, 25), ((128, 128), 1, 60))
    """
    budget = choose_budget(rows, False).settings
    units = 80 if rows < 5000 and codes <= 100 else 128
    wanted = max(_COPIES, _COPIES_OF_A_COLUMN * columns // codes)
    copies = min(wanted, _COPIES_OF_A_COLUMN, max(1, _MAX_INPUTS // codes))
    return TableChoice((units, units), 4, copies, budget["epochs"], budget["batch_size"])


def choose_network(shape: tuple[int, ...], rows: int) -> Choice:
    """Convolutions for images of any height and width; `table_mlp` for everything else."""
    if len(shape) == 3 and min(shape[1:]) >= _SMALLEST_SIDE and max(shape[1:]) >= _SMALLEST_LONGER_SIDE:
        settings = {"name": "vgg", "width": 0.25, "output_affine": True}
        return Choice(settings, f"convolutions, for images of {shape[1]}×{shape[2]} pixels")
    columns = prod(shape)
    what = f"{columns} columns" if len(shape) == 1 else f"{columns} values each, too small for convolutions"
    return Choice({"name": "table_mlp", "hidden": _hidden_units(rows, columns), "layers": 2}, f"{rows} rows of {what}")


def _hidden_units(rows: int, columns: int) -> int:
    """More units if there are more rows to train them, but at least half the number of columns.

    >>> [_hidden_units(*size) for size in ((142, 13), (9600, 10), (200_000, 50), (1000, 784))]
    [128, 256, 512, 512]
    """
    by_rows = 128 if rows < 1000 else 256 if rows < 10_000 else 512
    by_columns = 128 * ceil(columns / 256)
    return min(1024, max(by_rows, by_columns))


def choose_budget(rows: int, convolutional: bool) -> Choice:
    """Epochs and batch size.

    A network memorizes a small table in a few hundred steps, and its probabilities suffer long before its accuracy
    does: 20 epochs, plus one for every 60 rows, up to 60. Large tables need no more than 20, and those of a million
    rows 8, which are 16,000 steps and some minutes. A binary network needs at least a hundred steps to learn anything.

    >>> [choose_budget(rows, False).settings["epochs"] for rows in (48, 142, 1437, 9600, 50_000, 1_000_000)]
    [50, 25, 43, 60, 40, 8]
    """
    if convolutional:
        epochs, batch_size = min(200, max(20, 60_000 // rows)), 32 if rows < 20_000 else 100
    else:
        batch_size = 32 if rows < 2000 else 100 if rows < _MANY_ROWS else 500
        by_rows = min(20 + rows // 60, 60, max(20, 2_000_000 // rows), max(8, 8_000_000 // rows))
        epochs = max(by_rows, ceil(_LEAST_STEPS / _batches(rows, batch_size)))
    return Choice({"epochs": epochs, "batch_size": batch_size}, f"for {rows} rows")


def method_settings(method: str, steps: int, convolutional: bool = False) -> dict[str, Any]:
    """Settings that work for a run of this many steps; empty for a method not meant for a user's own data."""
    short = steps < 1000 and not convolutional
    settings: dict[str, dict[str, Any]] = {
        "bayesbinn": {"lr": 1e-2 if short else 1e-3 if convolutional else 3e-3, "temperature": 1e-10},
        "ste": {"lr": 1e-2},
        "bop": {"lr": 1e-3, "threshold": 1e-7},
        # For the weights to become binary, β must reach the thousands by the end, however short the run.
        "pmf": {"lr": 1e-2, "beta_growth": 1.2, "beta_interval": max(1, steps // 50)},
        "lrnet": {"lr": 3e-2},
        "float": {"lr": 1e-2 if short else 1e-3},
    }
    return settings.get(method, {})


def table_settings(
    method: str, rows: int, steps: int, task: str = "classification", asked: Iterable[str] = ()
) -> dict[str, Any]:
    """`method_settings` for an encoded table, where BayesBiNN learns with a certainty.

    `asked` are the user's own settings, which these complete: a temperature asks for the paper's rule.

    No benchmark reports the tables behind these numbers. On six small ones, a certainty of 1,000 was 2 points more
    accurate than the paper's rule at a temperature of 1e-10; 100 and 10,000 were a little worse. From about 1,500 rows
    on, classes need only 10, because less noise is memorized: the NLL was 0.02 to 0.05 lower than with 1,000 on noisy
    tables, and on 10,000 rows whose classes depend on a ratio the accuracy was 66 %, where the paper's rule reached
    49 %. A quantity needs 100: `benchmarks/table_settings.py`.

    >>> [table_settings("bayesbinn", rows, 1000)["certainty"] for rows in (142, 9600)]
    [1000.0, 10.0]
    >>> table_settings("bayesbinn", 9600, 1000, "regression")["certainty"]
    100.0
    """
    if method == "bayesbinn" and not {"temperature", "memory"} & set(asked):
        return {"certainty": _CERTAINTY if rows < _ENOUGH_ROWS else _CERTAINTY_OF_MANY[task]}
    return method_settings(method, steps)


def _saturates(settings: Mapping[str, Any]) -> bool:
    """Whether every posterior sample will equal the mode, so that averaging samples only costs time."""
    temperature = settings.get("temperature")
    return "certainty" not in settings and isinstance(temperature, float) and temperature < 1e-6


def _batches(rows: int, batch_size: int) -> int:
    """The number of batches per epoch, not counting the validation rows."""
    return ceil((rows - int(VALIDATION * rows)) / batch_size)


def _notes(experiment: Experiment, reason: str, changed_by: str) -> tuple[str, ...]:
    training, network, method = experiment.training, experiment.model, experiment.method
    size = f"of width {network.width:g}" if ":" not in network.name else "of your own"
    layers = f"with {network.layers} hidden layers of {max(1, round(network.hidden * network.width))} units"
    if network.name == "table_mlp":
        size = layers
    elif network.name == "table_ensemble":
        copies = f", which get every code {network.copies} times" if network.copies > 1 else ""
        size = f"of {network.networks} networks side by side {layers}{copies}"
    settings = ", ".join(f"{key}={value}" for key, value in method.settings.items())
    validation = f"{100 * experiment.data.validation:g} % of the training data for validation"
    return (
        f"chosen network: {network.name} {size} ({reason})",
        f"chosen settings: method {method.name} ({settings}), {training.epochs} epochs, batch {training.batch_size}, "
        f"learning rate {method.schedule.describe()}, {validation}"
        f"{', stratified by class' if experiment.data.stratify and training.loss != 'mse' else ''}; "
        f"use {changed_by} to change any of these",
    )
