"""A user's own network: a function in a module of theirs, named as ``package.module:function``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesbinn.data import Dataset
from bayesbinn.data.card import DataCard
from bayesbinn.data.dataset import Task
from bayesbinn.errors import BayesbinnError, InvalidInput, nearest


@dataclass(frozen=True)
class DataInfo:
    """What the user's function gets: enough to build a network that fits the data."""

    name: str
    task: Task
    input_shape: tuple[int, ...]
    """Of one example: (codes,) of a table, (channels, height, width) of an image."""
    classes: tuple[str, ...]
    """Their names in the order of the outputs; empty for regression."""
    outputs: int
    """How many numbers the network must give for each example: one for each class, 1 for regression."""


def is_own(name: str) -> bool:
    """Whether a network's name is that of a user's function."""
    return ":" in name


def build_own(name: str, dataset: Dataset | DataCard) -> nn.Module:
    """Call the user's function and try the network that it returns on two made-up examples."""
    outputs = max(dataset.num_classes, 1)
    info = DataInfo(dataset.name, dataset.task, tuple(dataset.input_shape), tuple(dataset.classes), outputs)
    function = _found(name)
    try:
        model = function(info)
    except BayesbinnError:
        raise
    except Exception as error:
        raise InvalidInput(f"model {name!r}: the function failed ({_one_line(error)})") from error
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model {name!r}: it returned {type(model).__name__}, a torch.nn.Module is needed")
    _check_shape(name, model, info)
    return model


def _found(name: str) -> Callable[[DataInfo], Any]:
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` has it; the installed program starts elsewhere
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may fail in any way
        raise InvalidInput(
            f"model {name!r}: the module {module_name!r} cannot be imported ({_one_line(error)}); install it, or "
            "start in its folder"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        there = [each for each in dir(module) if callable(getattr(module, each)) and not each.startswith("_")]
        raise InvalidInput(
            f"model {name!r}: {module_name} has no function {function_name!r}.{nearest(function_name, there)}"
        )
    found: Callable[[DataInfo], Any] = function
    return found


def _check_shape(name: str, model: nn.Module, info: DataInfo) -> None:
    wanted, was_training = (2, info.outputs), model.training
    model.eval()  # so that BatchNorm keeps the statistics that it has
    try:
        with torch.no_grad():
            output = model(torch.zeros(2, *info.input_shape))
    except Exception as error:
        raise InvalidInput(
            f"model {name!r}: it does not take inputs of shape [batch, {', '.join(map(str, info.input_shape))}] "
            f"({_one_line(error)})"
        ) from error
    model.train(was_training)
    found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if found != wanted:
        raise InvalidInput(f"model {name!r}: two examples give {found}, but {list(wanted)} is needed for {info.name}")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
