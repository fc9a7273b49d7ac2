"""What an experiment is: data, network, method and budget, validated before anything runs.

A preset lists the settings of every method for one experiment in the paper. Choosing a method gives a complete
`Experiment`: written to a run's ``config.toml``, it can be run again.
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
"""Maximum nesting of tables and lists in a TOML file."""
_POSITIVE = Field(gt=0)
# Method settings that the training loop provides, or that are not plain values.
PROVIDED = {"train_set_size", "seed", "prior", "independent_noise"}
# Where `override` records which method settings the user gave, until `validated` runs.
_GIVEN = "--set"
_REPLACED_BY_CERTAINTY = ("lr", "temperature", "initial_strength", "memory")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(_Section):
    """Which data, and how it is divided."""

    name: str
    """The name of a data set, or the path to your own."""
    label: str | None = None
    """The label column of a table."""
    task: Literal["classification", "regression"] | None = None
    """Whether numeric labels are classes or quantities; by default decided from the data, with a note saying how."""
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """The fraction of the training data held out for validation."""
    augment: bool = False
    """Pad by 4, crop and flip the training images."""
    shift: Annotated[int, Field(ge=0, le=16)] = 0
    """Shift the training images at random by up to this many pixels in each direction, instead of `augment`."""
    distort: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Distort the training images as different hands would: turn, shear, stretch, shift, thicken. 1: by up to 15°, 0.2,
    a fifth, 2 of 28 pixels, a pixel on each side; for drawings, instead of `augment` and `shift`."""
    split_seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    """Seeds the choice of validation data; by default training.seed. Runs of an ensemble can share it."""
    encode: bool = False
    """Whether a table's columns become codes, so that it may hold text, dates and missing cells. `bayesbinn train FILE`
    sets it."""
    stratify: bool = False
    """Stratify the validation data by class; the authors choose them at random."""


class ModelSettings(_Section):
    """Which network of `bayesbinn.models`."""

    name: str
    """The name of a network, or your own as package.module:function: a function that takes the data's shape and classes
    (`input_shape`, `classes`, `outputs`, `task`) and returns a torch.nn.Module."""
    order: Literal["authors", "paper"] = "authors"
    """The order of layers: BatchNorm before ReLU as in the authors' code, or after it as in the paper."""
    width: Annotated[float, _POSITIVE] = 1.0
    """A factor on the number of hidden units and channels."""
    output_batchnorm: bool = False
    """For synthetic_mlp: whether it ends in a BatchNorm."""
    batchnorm: bool = True
    """For continual_mlp: whether it has BatchNorm, whose statistics reveal the task."""
    hidden: Annotated[int, _POSITIVE] = 128
    """For table_mlp and table_ensemble: the units of each hidden layer."""
    layers: Annotated[int, _POSITIVE] = 2
    """For table_mlp and table_ensemble: the number of hidden layers."""
    networks: Annotated[int, _POSITIVE] = 4
    """For table_ensemble: how many networks are trained side by side."""
    copies: Annotated[int, _POSITIVE] = 1
    """For table_ensemble: how often the first layer gets every input; more copies make finer weights."""
    output_affine: bool = False
    """For vgg: the last BatchNorm has a learned gain and shift, as in table_mlp, which helps with rare classes."""
    affine: bool = False
    """For mnist_mlp: every BatchNorm has a learned gain and shift."""


class TrainingSettings(_Section):
    """The budget, and how results are measured."""

    epochs: Annotated[int, _POSITIVE]
    """Passes over the training data; for a stream, per task."""
    batch_size: Annotated[int, _POSITIVE]
    """Examples per step; 2 or more if the network has BatchNorm, which needs more than one example."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seeds the split, the initialization, the order of batches and the noise."""
    loss: Literal["cross_entropy", "binary_cross_entropy", "mse"] = "cross_entropy"
    """mse for regression; binary_cross_entropy for synthetic_mlp, which has one output; cross_entropy otherwise."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """For cross_entropy: the fraction of every target that is spread over all classes."""
    average_epochs: Annotated[int, Field(ge=0)] = 0
    """The final network uses the mean of λ over the last N epochs; 0 or 1 uses the last λ."""
    mean_samples: Annotated[int, Field(ge=0)] = 10
    """Number of posterior samples for `test_accuracy_mean`; 0 omits it."""
    evaluate_every: Annotated[int, _POSITIVE] = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    independent_noise: bool = False
    """Each data-parallel rank draws its own noise; only for methods that sample weights."""
    sync_batchnorm: bool = False
    """With data-parallel ranks, compute BatchNorm over the whole batch; GPUs only."""


class MethodSettings(_Section):
    """A method and its settings."""

    name: str
    """The name of a method."""
    settings: dict[str, Any]
    """Arguments of the method's class, such as `lr` and `temperature`."""
    schedule: Schedule = Constant()
    """How the learning rate changes during a run."""
    train_set_scale: Annotated[float, _POSITIVE] = 1.0
    """A factor on the training-set size N (the authors count every CIFAR image ten times)."""
    binary_biases: bool = False
    """Make biases binary as well, as in the synthetic networks."""
    real_lr: Annotated[float, _POSITIVE] = 1e-2
    """Adam's learning rate for parameters that stay real, if any."""
    real_clip: Annotated[float, _POSITIVE] | None = None
    """Clip real parameters to ± this value (the authors clip STE's biases and latent weights to ±1)."""


class ContinualSettings(_Section):
    """A stream of tasks made from the data set, learned one after another."""

    stream: Literal["permuted", "split"] = "permuted"
    """Each task permutes the inputs in its own way, or has a few of the classes."""
    tasks: Annotated[int, _POSITIVE] = 5
    """The number of permutations; for a split, the number of tasks follows from the classes."""
    classes_per_task: Annotated[int, _POSITIVE] = 2
    """For a split: the number of classes per task."""
    scenario: Literal["class", "domain"] = "class"
    """For a split: one head for all classes, or only for the classes of one task, with labels starting at 0."""
    remember: bool = True
    """Consolidate after each task in the method's own way; false is the paper's "without prior"."""
    samples: Annotated[int, Field(ge=0)] = 100
    """Posterior samples behind each accuracy; 0 uses the mode."""
    rows: Literal["all", "diagonal"] = "all"
    """What to test after each task: all tasks seen so far, or only the new one (all at the end)."""


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
    """Set if there is a stream of tasks instead of one."""

    @property
    def split_seed(self) -> int:
        """Of the choice of validation data."""
        return self.training.seed if self.data.split_seed is None else self.data.split_seed

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
    """Load an experiment from a preset or a TOML file, for one of its methods, with changes.

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
    return validated(raw, source)


def _states_end(changes: Mapping[str, Any]) -> bool:
    """Whether the user specified how the cosine ends."""
    whole = [changes.get(key) for key in ("schedule", "method.schedule")]
    return "method.schedule.end" in changes or any(isinstance(each, dict) and "end" in each for each in whole)


def _end_cosine_above_zero(raw: dict[str, Any], own: dict[str, Any], source: str) -> None:
    """Keep the authors' cosine only for an unchanged preset, or for a run that was started with it.

    `own` is the experiment before the user's changes. With a different length or different data, the authors' schedule
    would only waste the last epoch, which is the whole run if there is only one.
    """
    schedule = _part(raw, "method.schedule")
    if not isinstance(schedule, dict) or schedule.get("kind") != "cosine" or schedule.get("every_batch"):
        return
    known = source in preset_names() or Path(source).name == "config.toml"
    changed = any(_part(own, key) != _part(raw, key) for key in ("training.epochs", "data.name", "method.schedule"))
    if changed or (not known and "end" not in schedule):
        schedule["end"] = "above_zero"


def _part(tree: Any, key: str) -> Any:
    """The value at a dotted key, or None."""
    for step in key.split("."):
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


def as_begun(begun: Experiment, wanted: Experiment) -> Experiment:
    """`wanted`, completed as older versions did where the run's config.toml is silent.

    That is the authors' cosine if it does not say how a cosine ends, and a table of plain numbers.
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
    """Check every section and every setting of the method; report the first problem in one line."""
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
            f"{source}: training.independent_noise is for methods that sample weights ({able}); remove it "
            f"for {method.name!r}"
        )
    if experiment.continual is not None and experiment.data.split_seed is not None:
        raise InvalidInput(f"{source}: data.split_seed is for runs of one task; leave it out with a stream")
    _try_settings(experiment.method, source)
    return experiment


def _try_settings(settings: MethodSettings, source: str) -> None:
    """Build the optimizer for a single weight, because only it knows which values are valid."""
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
    """The nearest setting of the method, or one of that name in a section: batch_size is training.batch_size."""
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
            raise InvalidFile(f"{source}: cannot read the file: {error}") from None
    else:
        known = preset_names()
        raise InvalidInput(f"there is no preset {source!r}.{nearest(source, known)} Presets: {', '.join(known)}")
    return parse_toml(text, source)


def parse_toml(text: str, source: str, hint: str = "") -> dict[str, Any]:
    """Parse a TOML file nested at most `MAX_DEPTH` deep; any problem is reported in one line."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # An integer with thousands of digits raises ValueError, deeply nested brackets RecursionError.
        raise InvalidFile(f"{source}: not TOML: {reason_of(error)}{hint}") from None
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return tree
    raise InvalidFile(f"{source}: tables and lists are nested more than {MAX_DEPTH} deep; no experiment needs that")


def _choose_method(raw: dict[str, Any], method: str | None, source: str) -> dict[str, Any]:
    """Replace a preset's table of methods by the chosen one."""
    offered = _table(raw, "methods", source)
    if not offered:
        raise InvalidInput(f"{source}: add a table [method], or [methods.NAME] for each method on offer")
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
            raise InvalidInput(f"--set {key}: {step!r} is a value, not a section, so it has no settings")
    target[last] = value


def _make_room_for_certainty(raw: dict[str, Any]) -> None:
    """If the user set `certainty`, drop the preset's settings for the other rule.

    A rate and a temperature chosen for one network would leave the posterior at its initial state. Whatever the user
    set stays, in any order.
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
    # A misspelled name is also reported as missing; the user needs to know about the spelling.
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
    """Write nested tables of plain values as TOML.

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
    raise InvalidInput(f"cannot write {value!r} as TOML")
