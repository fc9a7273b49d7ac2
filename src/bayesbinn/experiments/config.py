"""What an experiment is: data, network, method and budget, validated before anything runs.

A preset lists the settings of every method for one experiment of the paper; choosing a method
gives an `Experiment`, which is complete: written to a run's ``config.toml``, it can be run again.
"""

from __future__ import annotations

import copy
import json
import tomllib
import warnings
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bayesbinn.errors import BayesbinnWarning, InvalidFile, InvalidInput, nearest
from bayesbinn.files import reason_of
from bayesbinn.train.schedules import SCHEDULES, Constant, Cosine, Schedule

MAX_DEPTH = 32
"""Levels of tables and lists in a TOML file."""
_POSITIVE = Field(gt=0)
# Settings of a method that the loop provides, or that are no plain values.
PROVIDED = {"train_set_size", "seed", "prior", "independent_noise"}
# Where `override` notes the method's settings that the user gave, until `validated`.
_GIVEN = "--set"
_REPLACED_BY_CERTAINTY = ("lr", "temperature", "initial_strength", "memory")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(_Section):
    """Which data, and how it is divided."""

    name: str
    """A data set by name, or the path of a user's own."""
    label: str | None = None
    """The label column of a table."""
    task: Literal["classification", "regression"] | None = None
    """Whether numbers in the label are classes or quantities; by default the data decide, and a note says how."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The share of the training data that is kept for validation."""
    augment: bool = False
    """Pad by 4, crop and flip the training images."""
    encode: bool = False
    """Whether a table's columns become codes, so that it may hold text, dates and missing cells; `bayesbinn train` and
    TOML files do so unless they say otherwise."""
    stratify: bool = False
    """Take validation data from every class in proportion; the authors take them at random."""


class ModelSettings(_Section):
    """Which network of `bayesbinn.models`."""

    name: str
    """A network by name, or your own as package.module:function: a function that gets the data's shape and classes
    (`input_shape`, `classes`, `outputs`, `task`) and returns a torch.nn.Module."""
    order: Literal["authors", "paper"] = "authors"
    """The order of layers: BatchNorm before ReLU as in the authors' code, or after it as in the paper."""
    width: Annotated[float, _POSITIVE] = 1.0
    """The factor on the number of hidden units and channels."""
    output_batchnorm: bool = False
    """For synthetic_mlp: whether it ends in a BatchNorm."""
    batchnorm: bool = True
    """For continual_mlp: whether it has BatchNorm, whose statistics tell tasks apart."""
    hidden: Annotated[int, _POSITIVE] = 128
    """For table_mlp: the units of each hidden layer."""
    layers: Annotated[int, _POSITIVE] = 2
    """For table_mlp: the number of hidden layers."""
    output_affine: bool = False
    """For vgg: the last BatchNorm has a learned gain and shift, as table_mlp's have, so that classes may be rare."""


class TrainingSettings(_Section):
    """The budget, and how results are taken."""

    epochs: Annotated[int, _POSITIVE]
    """How often the training data are seen; of a stream, in each task."""
    batch_size: Annotated[int, Field(ge=2)]
    """2 or more: BatchNorm has no statistics of a single example."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of the split, the start, the order and the noise."""
    loss: Literal["cross_entropy", "binary_cross_entropy", "mse"] = "cross_entropy"
    """mse for regression, binary_cross_entropy for synthetic_mlp, which has one output, cross_entropy otherwise."""
    mean_samples: Annotated[int, Field(ge=0)] = 10
    """Posterior samples behind `test_accuracy_mean`; 0 leaves it out."""
    evaluate_every: Annotated[int, _POSITIVE] = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""
    independent_noise: bool = False
    """Data-parallel ranks draw noise of their own, for the methods that draw weights."""
    sync_batchnorm: bool = False
    """BatchNorm of data-parallel ranks sees the whole batch; on GPUs only."""


class MethodSettings(_Section):
    """A method with its settings."""

    name: str
    """A method by name."""
    settings: dict[str, Any]
    """What the method's class takes, such as `lr` and `temperature`."""
    schedule: Schedule = Constant()
    """How the learning rate changes during a run."""
    train_set_scale: Annotated[float, _POSITIVE] = 1.0
    """The factor on the training-set size N (the authors count every CIFAR image ten times)."""
    binary_biases: bool = False
    """Biases are binary too, as in the synthetic networks."""
    real_lr: Annotated[float, _POSITIVE] = 1e-2
    """Adam's rate for parameters that stay real, where there are any."""
    real_clip: Annotated[float, _POSITIVE] | None = None
    """The bound of real parameters (the authors clip STE's biases to ±1 with its latent weights)."""


class ContinualSettings(_Section):
    """A stream of tasks made of the data set, learned one after the other."""

    stream: Literal["permuted", "split"] = "permuted"
    """Every task shuffles the inputs by its own permutation, or has a few of the classes."""
    tasks: Annotated[int, _POSITIVE] = 5
    """How many permutations; a split has as many tasks as its classes make."""
    classes_per_task: Annotated[int, _POSITIVE] = 2
    """For a split: how many classes a task has."""
    scenario: Literal["class", "domain"] = "class"
    """For a split: one head for all classes, or for the classes of one task, whose labels then start at 0."""
    remember: bool = True
    """Consolidate after each task, as the method does it; false is the paper's "without prior"."""
    samples: Annotated[int, Field(ge=0)] = 100
    """Posterior samples behind every accuracy; 0 is the mode."""
    rows: Literal["all", "diagonal"] = "all"
    """What is tested after a task: all seen tasks, or the new one alone (all at the end)."""


SECTIONS: dict[str, type[_Section]] = {
    "data": DataSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "method": MethodSettings,
    "continual": ContinualSettings,
}


class Experiment(_Section):
    """A complete, reproducible run."""

    title: str
    data: DataSettings
    model: ModelSettings
    training: TrainingSettings
    method: MethodSettings
    continual: ContinualSettings | None = None
    """Where there is a stream of tasks instead of one."""

    def to_toml(self) -> str:
        """The text of a ``config.toml``."""
        return to_toml(self.model_dump(exclude_none=True))


def preset_names() -> list[str]:
    """The presets that ship with the package."""
    folder = files("bayesbinn.experiments").joinpath("presets")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def describe_presets() -> dict[str, dict[str, Any]]:
    """Title and methods of every preset."""
    raw = {name: _read(name) for name in preset_names()}
    return {name: {"title": each["title"], "methods": list(each["methods"])} for name, each in raw.items()}


def load_experiment(
    source: str, *, method: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Experiment:
    """An experiment from a preset's name or a TOML file, for one of its methods, with changes.

    `overrides` maps dotted keys to values: ``{"training.epochs": 5, "lr": 1e-3}``. A key without a dot
    is a setting of the method.
    """
    raw = _read(source)
    if "method" not in raw:
        raw = _choose_method(raw, method, source)
    elif method is not None and method != (name := _table(raw, "method", source).get("name")):
        raise InvalidInput(f"{source} is a complete experiment for {name!r}, not {method!r}")
    own, changes = copy.deepcopy(raw), overrides or {}
    for key, value in changes.items():
        override(raw, key, value)
    if not _states_end(changes):
        _end_cosine_above_zero(raw, own, source)
    _encode_own_tables(raw, source)
    return validated(raw, source)


def _encode_own_tables(raw: dict[str, Any], source: str) -> None:
    """Encode a user's own table, unless the file says otherwise or is a run's, which states what it was begun with."""
    data = raw.get("data")
    own = source not in preset_names() and Path(source).name != "config.toml"
    if own and isinstance(data, dict) and data.get("label") is not None:  # only tables have one
        data.setdefault("encode", True)


def _states_end(changes: Mapping[str, Any]) -> bool:
    """Whether the user says how the cosine is to end."""
    whole = [changes.get(key) for key in ("schedule", "method.schedule")]
    return "method.schedule.end" in changes or any(isinstance(each, dict) and "end" in each for each in whole)


def _end_cosine_above_zero(raw: dict[str, Any], own: dict[str, Any], source: str) -> None:
    """Keep the authors' cosine only where a preset, or a run that was begun with it, is taken as it is.

    `own` is the experiment before the user's changes. At another length, or on other data, the authors' schedule
    would only waste the last epoch: the whole run, if there is one epoch.
    """
    schedule = _part(raw, "method.schedule")
    if not isinstance(schedule, dict) or schedule.get("kind") != "cosine" or schedule.get("every_batch"):
        return
    known = source in preset_names() or Path(source).name == "config.toml"
    changed = any(_part(own, key) != _part(raw, key) for key in ("training.epochs", "data.name", "method.schedule"))
    if changed or (not known and "end" not in schedule):
        schedule["end"] = "above_zero"


def _part(tree: Any, key: str) -> Any:
    """What stands under a dotted key; None if nothing does."""
    for step in key.split("."):
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


def as_begun(begun: Experiment, wanted: Experiment) -> Experiment:
    """`wanted`, with what a run of an older version does where its config.toml states nothing.

    That is the authors' cosine, if it does not say how a cosine ends, and a table of plain numbers.
    """
    if "encode" not in begun.data.model_fields_set:
        wanted = wanted.model_copy(update={"data": wanted.data.model_copy(update={"encode": begun.data.encode})})
    schedule = wanted.method.schedule
    old = begun.method.schedule
    if not isinstance(schedule, Cosine) or not isinstance(old, Cosine) or "end" in old.model_fields_set:
        return wanted
    method = wanted.method.model_copy(update={"schedule": schedule.model_copy(update={"end": old.end})})
    return wanted.model_copy(update={"method": method})


def validated(raw: dict[str, Any], source: str) -> Experiment:
    """Check every section and every setting of the method; the first problem is one line."""
    _make_room_for_certainty(raw)
    try:
        experiment = Experiment.model_validate(raw)
    except ValidationError as error:
        raise InvalidInput(f"{source}: {_first_problem(error)}") from None
    from bayesbinn.methods import METHODS, get_method

    method = get_method(experiment.method.name)
    allowed = [name for name in method.settings if name not in PROVIDED]
    for key in experiment.method.settings:
        if key not in allowed:
            raise InvalidInput(f"{source}: method {method.name!r} has no setting {key!r}.{_nearest_key(key, allowed)}")
    missing = [k for k in allowed if k not in method.defaults and k not in experiment.method.settings]
    if missing:
        raise InvalidInput(f"{source}: method {method.name!r} needs {missing[0]!r}; add --set {missing[0]}=VALUE")
    if experiment.training.independent_noise and "independent_noise" not in method.settings:
        able = ", ".join(name for name, each in METHODS.items() if "independent_noise" in each.settings)
        raise InvalidInput(
            f"{source}: training.independent_noise is for methods that draw their weights ({able}); leave it out "
            f"with {method.name!r}"
        )
    _try_settings(experiment.method, source)
    return experiment


def _try_settings(settings: MethodSettings, source: str) -> None:
    """Build the optimizer for a single weight: it knows which values it takes."""
    import torch

    from bayesbinn import ranks
    from bayesbinn.methods import get_method

    try:
        weight = [("weight", torch.nn.Parameter(torch.ones(1, 1)))]
        with ranks.alone(), warnings.catch_warnings():
            warnings.simplefilter("ignore", BayesbinnWarning)  # they depend on the size of the training set
            get_method(settings.name).create(weight, train_set_size=2, seed=0, **settings.settings)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"{source}: method {settings.name!r}: {reason}") from None


def _nearest_key(key: str, allowed: list[str]) -> str:
    """The nearest setting of the method, or the one of that name elsewhere: batch_size is training.batch_size."""
    for section, kind in SECTIONS.items():
        if key in kind.model_fields:
            return f" Did you mean {f'{section}.{key}'!r}?"
    return nearest(key, [*allowed, *MethodSettings.model_fields])


def _read(source: str) -> dict[str, Any]:
    if source in preset_names():
        text = files("bayesbinn.experiments").joinpath("presets", f"{source}.toml").read_text(encoding="utf-8")
    elif Path(source).suffix == ".toml":
        path = Path(source)
        if not path.is_file():
            raise InvalidFile(f"{source}: there is no such file; presets: {', '.join(preset_names())}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidFile(f"{source}: cannot be read: {error}") from None
    else:
        known = preset_names()
        raise InvalidInput(f"there is no preset {source!r}.{nearest(source, known)} Presets: {', '.join(known)}")
    return parse_toml(text, source)


def parse_toml(text: str, source: str, hint: str = "") -> dict[str, Any]:
    """The tables of a TOML file, which may be nested `MAX_DEPTH` deep; whatever is wrong is one line."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # An integer of thousands of digits is a plain ValueError, deeply nested brackets a RecursionError.
        raise InvalidFile(f"{source}: not TOML: {reason_of(error)}{hint}") from None
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return tree
    raise InvalidFile(f"{source}: its tables and lists are nested more than {MAX_DEPTH} deep; no experiment needs that")


def _choose_method(raw: dict[str, Any], method: str | None, source: str) -> dict[str, Any]:
    """Replace a preset's table of methods by the chosen one."""
    offered = _table(raw, "methods", source)
    if not offered:
        raise InvalidInput(f"{source}: it needs a table [method], or [methods.NAME] for each method that it offers")
    name = method or next(iter(offered))
    if name not in offered:
        raise InvalidInput(f"{source} has no method {name!r}.{nearest(name, offered)} It has: {', '.join(offered)}")
    chosen = dict(_table(offered, name, source))
    del raw["methods"]
    known = set(MethodSettings.model_fields) - {"name", "settings"}
    for section in ("training", "model", "continual"):
        shared, own = _table(raw, section, source), _table(chosen, section, source)
        chosen.pop(section, None)
        if shared or own:
            raw[section] = {**shared, **own}
    raw["method"] = {
        "name": name,
        "settings": {key: value for key, value in chosen.items() if key not in known},
        **{key: value for key, value in chosen.items() if key in known},
    }
    return raw


def _table(tree: dict[str, Any], key: str, source: str) -> dict[str, Any]:
    value = tree.get(key, {})
    if not isinstance(value, dict):
        raise InvalidInput(f"{source}: {key} must be a table, received {value!r}")
    return value


def override(raw: dict[str, Any], key: str, value: Any) -> None:
    """Change one setting; a key without a dot is a setting of the method."""
    section, _, field = key.partition(".")
    if not field:
        section, field = "method", section
    if section not in SECTIONS:
        raise InvalidInput(f"--set {key}: there is no section {section!r}.{nearest(section, SECTIONS)}")
    if section == "method" and field not in MethodSettings.model_fields and "." not in field:
        field = f"settings.{field}"
    if section == "method" and field.startswith("settings.") and isinstance(raw.get("method"), dict):
        raw["method"].setdefault(_GIVEN, []).append(field.removeprefix("settings."))
    *steps, last = [section, *field.split(".")]
    target = raw
    for step in steps:
        target = target.setdefault(step, {})
        if not isinstance(target, dict):
            raise InvalidInput(f"--set {key}: {step!r} is a value, not a section: nothing can be below it")
    target[last] = value


def _make_room_for_certainty(raw: dict[str, Any]) -> None:
    """Where the user set `certainty`, drop the settings of the other rule that came with the preset.

    A rate and a temperature chosen for one network would leave the posterior where it starts. What the user set, in
    whatever order, stays.
    """
    method = raw.get("method")
    if not isinstance(method, dict):
        return
    given = method.pop(_GIVEN, [])
    if "certainty" in given:
        for key in _REPLACED_BY_CERTAINTY:
            if key not in given:
                method["settings"].pop(key, None)


def _first_problem(error: ValidationError) -> str:
    # A misspelt name is also missing under its right one: the spelling is what the user wants to hear of.
    problem = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *parents, name = problem["loc"]
        if parents[:2] == ["method", "schedule"]:
            kind: type[BaseModel] = SCHEDULES[str(parents[2])]
        else:
            kind = SECTIONS[str(parents[0])] if parents else Experiment
        return f"there is no setting {place!r}.{nearest(str(name), kind.model_fields)}"
    received = "" if problem["type"] == "missing" else f" (received {problem['input']!r})"
    return f"{place}: {problem['msg'][0].lower()}{problem['msg'][1:]}{received}"


def to_toml(tree: Mapping[str, Any], prefix: str = "") -> str:
    """TOML for nested tables of plain values.

    >>> print(to_toml({"title": "x", "a": {"lr": 1e-10, "on": True, "betas": [0.9, 0.999]}}))
    title = "x"
    <BLANKLINE>
    [a]
    lr = 1e-10
    on = true
    betas = [0.9, 0.999]
    <BLANKLINE>
    """
    lines = [f"{key} = {_toml_value(value)}" for key, value in tree.items() if not isinstance(value, Mapping)]
    text = "\n".join(lines) + "\n" if lines else ""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            body = to_toml(value, f"{prefix}{key}.")
            text += f"\n[{prefix}{key}]\n{body}" if not body.startswith("\n") else body
    return text


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, (int, float)):
        return repr(value)
    raise InvalidInput(f"{value!r} cannot be written as TOML")
