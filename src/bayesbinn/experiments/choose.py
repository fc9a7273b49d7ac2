"""Network and settings for a user's own data, and the reasons, in words.

The rules look at the number of rows and columns and at the kind of data, never at the labels' values. They were chosen
on made-up tables other than those that `benchmarks/` reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

from bayesbinn import data as data_sets
from bayesbinn.data import Dataset
from bayesbinn.experiments.config import Experiment, override, validated

VALIDATION = 0.1

# Images with sides below these have too little structure for three halvings by max-pooling.
_SMALLEST_SIDE, _SMALLEST_LONGER_SIDE = 8, 16
_LEAST_STEPS = 100
_MAX_COPIES, _MAX_INPUTS = 5, 640  # of a table's code, and inputs of the first layer
_MANY_ROWS = 200_000  # from here on larger batches still make tens of thousands of steps


@dataclass(frozen=True)
class Choice:
    """A part of an experiment, and why it was chosen."""

    settings: dict[str, Any]
    reason: str


def choose_for_file(
    source: str, label: str | None, method: str, overrides: Mapping[str, Any]
) -> tuple[Experiment, tuple[str, ...]]:
    """An experiment for a user's file or folder, and what was chosen for it."""
    source = str(Path(source).resolve())  # so that the run can be used from any folder
    encode = bool(overrides.get("data.encode", True))
    dataset = data_sets.load(source, label=label, task=overrides.get("data.task"), encode=encode)
    return choose_for_data(dataset, method, source=source, label=label, overrides=overrides)


def choose_for_data(
    dataset: Dataset,
    method: str,
    *,
    source: str,
    label: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    changed_by: str = "--set",
) -> tuple[Experiment, tuple[str, ...]]:
    """An experiment for a data set that was loaded from `source`, and what was chosen for it, a sentence each.

    `changed_by` is what the notes tell the user to change it with.
    """
    rows = len(dataset.train_inputs)
    encoding = dataset.encoding
    shape = dataset.input_shape if encoding is None else (len(encoding.names) + len(encoding.ignored),)
    network = choose_network(shape, rows)
    convolutional = network.settings["name"] == "vgg"
    budget = choose_budget(rows, convolutional)
    steps = budget.settings["epochs"] * _batches(rows, budget.settings["batch_size"])
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
            **budget.settings,
            "loss": "cross_entropy" if dataset.task == "classification" else "mse",
        },
        "method": {
            "name": method,
            "settings": method_settings(method, steps, convolutional),
            "schedule": {"kind": "cosine", "end": "above_zero"},
        },
    }
    chosen = {key: dict(raw[key]) for key in ("model", "training")}
    for key, value in (overrides or {}).items():
        override(raw, key, value)
    if _saturates(raw["method"]["settings"]):
        raw["training"].setdefault("mean_samples", 0)
    experiment = validated(raw, source)
    as_chosen = {key: all(raw[key].get(name) == value for name, value in chosen[key].items()) for key in chosen}
    return experiment, (
        *dataset.notes,
        f"{rows} training and {len(dataset.test_inputs)} test examples of shape {dataset.input_shape}",
        *_notes(experiment, network.reason if as_chosen["model"] else "as you asked", changed_by),
    )


def choose_network(shape: tuple[int, ...], rows: int) -> Choice:
    """Convolutions for images of any height and width, and for everything else `table_mlp`."""
    if len(shape) == 3 and min(shape[1:]) >= _SMALLEST_SIDE and max(shape[1:]) >= _SMALLEST_LONGER_SIDE:
        settings = {"name": "vgg", "width": 0.25, "output_affine": True}
        return Choice(settings, f"convolutions, for images of {shape[1]}×{shape[2]} pixels")
    columns = prod(shape)
    what = f"{columns} columns" if len(shape) == 1 else f"{columns} values each, too small for convolutions"
    return Choice({"name": "table_mlp", "hidden": _hidden_units(rows, columns), "layers": 2}, f"{rows} rows of {what}")


def _hidden_units(rows: int, columns: int) -> int:
    """More units where more rows can teach them, and no fewer than half the columns.

    >>> [_hidden_units(*size) for size in ((142, 13), (9600, 10), (200_000, 50), (1000, 784))]
    [128, 256, 512, 512]
    """
    by_rows = 128 if rows < 1000 else 256 if rows < 10_000 else 512
    by_columns = 128 * ceil(columns / 256)
    return min(1024, max(by_rows, by_columns))


def choose_budget(rows: int, convolutional: bool) -> Choice:
    """Epochs and batch size.

    A small table is learned by heart in a few hundred steps, and its probabilities suffer long before its accuracy:
    20 epochs, and one more for every 60 rows up to 60. The largest tables need no more than 20. A hundred steps
    are the least in which a binary network learns anything.

    >>> [choose_budget(rows, False).settings["epochs"] for rows in (48, 142, 1437, 9600, 50_000, 1_000_000)]
    [50, 25, 43, 60, 40, 20]
    """
    if convolutional:
        epochs, batch_size = min(200, max(20, 60_000 // rows)), 32 if rows < 20_000 else 100
    else:
        batch_size = 32 if rows < 2000 else 100 if rows < _MANY_ROWS else 500
        by_rows = min(20 + rows // 60, 60, max(20, 2_000_000 // rows))
        epochs = max(by_rows, ceil(_LEAST_STEPS / _batches(rows, batch_size)))
    return Choice({"epochs": epochs, "batch_size": batch_size}, f"for {rows} rows")


def method_settings(method: str, steps: int, convolutional: bool = False) -> dict[str, Any]:
    """What works for a run of so many steps; empty for a method that is not for a user's own data."""
    short = steps < 1000 and not convolutional
    settings: dict[str, dict[str, Any]] = {
        "bayesbinn": {"lr": 1e-2 if short else 1e-3 if convolutional else 3e-3, "temperature": 1e-10},
        "ste": {"lr": 1e-2},
        "bop": {"lr": 1e-3, "threshold": 1e-7},
        # β must have grown to thousands by the end for the weights to be binary, however short the run.
        "pmf": {"lr": 1e-2, "beta_growth": 1.2, "beta_interval": max(1, steps // 50)},
        "lrnet": {"lr": 3e-2},
        "float": {"lr": 1e-2 if short else 1e-3},
    }
    return settings.get(method, {})


def _saturates(settings: Mapping[str, Any]) -> bool:
    """Whether every posterior sample will be the mode, so that a mean over samples only costs time."""
    temperature = settings.get("temperature")
    return "certainty" not in settings and isinstance(temperature, float) and temperature < 1e-6


def _batches(rows: int, batch_size: int) -> int:
    """How many an epoch has, without the rows for validation."""
    return ceil((rows - int(VALIDATION * rows)) / batch_size)


def _notes(experiment: Experiment, reason: str, changed_by: str) -> tuple[str, ...]:
    training, network, method = experiment.training, experiment.model, experiment.method
    size = f"of width {network.width:g}" if ":" not in network.name else "of your own"
    if network.name == "table_mlp":
        size = f"with {network.layers} hidden layers of {max(1, round(network.hidden * network.width))} units"
    settings = ", ".join(f"{key}={value}" for key, value in method.settings.items())
    validation = f"{100 * experiment.data.validation:g} % of the training data for validation"
    return (
        f"chosen network: {network.name} {size} ({reason})",
        f"chosen settings: method {method.name} ({settings}), {training.epochs} epochs, batch {training.batch_size}, "
        f"learning rate {method.schedule.describe()}, {validation}"
        f"{', from every class in proportion' if experiment.data.stratify and training.loss != 'mse' else ''}; "
        f"{changed_by} changes any of it",
    )


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


def choose_for_table(rows: int, codes: int) -> TableChoice:
    """Networks, epochs and batch size for so many training rows of so many codes.

    Four networks of 80 units: on ten tables that no benchmark reports, 96 units and eight networks were no better
    (a mean NLL of 0.437 and 0.433 after 0.433).

    >>> [(choice.hidden, choice.epochs) for choice in (choose_for_table(142, 20), choose_for_table(9600, 700))]
    [((80, 80), 25), ((128, 128), 60)]
    """
    budget = choose_budget(rows, False).settings
    units = 80 if rows < 5000 and codes <= 100 else 128
    copies = min(_MAX_COPIES, max(1, _MAX_INPUTS // codes))
    return TableChoice((units, units), 4, copies, budget["epochs"], budget["batch_size"])
