"""The networks that experiments can name.

The decorator of each network states which data it fits and which experiment settings it takes, so that a new network
touches no other file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeVar

from torch import nn

from bayesbinn.errors import InvalidInput, nearest


class Data(Protocol):
    """What a network is fitted to: a data set, or a run's record of one."""

    @property
    def name(self) -> str: ...

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def task(self) -> str: ...


Fit = Callable[[str, Data], dict[str, Any]]
"""From a network's name and the data to the arguments that depend on the data; rejects data that do not fit."""


@dataclass(frozen=True)
class Network:
    """A network that experiments can name."""

    make: Callable[..., nn.Module]
    fits: str
    """The data it fits, in words."""
    fit: Fit
    settings: tuple[str, ...]
    """The keys of an experiment's `model` section that `make` takes."""
    single: bool
    """Whether it has a single output: one logit for two classes."""


REGISTRY: dict[str, Network] = {}
_Maker = TypeVar("_Maker", bound=Callable[..., nn.Module])


def network(fits: str, fit: Fit, *settings: str, single: bool = False) -> Callable[[_Maker], _Maker]:
    """Register the function below as a network that experiments can name."""

    def register(make: _Maker) -> _Maker:
        REGISTRY[make.__name__] = Network(make, fits, fit, settings, single)
        return make

    return register


def named(name: str) -> Network:
    """A network of the registry."""
    if name not in REGISTRY:
        hint = nearest(name, REGISTRY)
        raise InvalidInput(f"there is no network {name!r}.{hint} Name your own as package.module:function")
    return REGISTRY[name]


def fitted(name: str, settings: Any, data: Data) -> nn.Module:
    """A network by name, with these settings (it ignores those it does not take), fitted to the data."""
    found = named(name)
    chosen = {setting: getattr(settings, setting) for setting in found.settings}
    return found.make(**found.fit(name, data), **chosen)


def loss_for(name: str, task: str) -> str:
    """The loss that suits the task and the network's output."""
    if task == "regression":
        return "mse"
    return "binary_cross_entropy" if named(name).single else "cross_entropy"


def outputs_for(data: Data) -> int:
    """An output per class, or one for a quantity."""
    return max(data.num_classes, 1)


def any_shape(name: str, data: Data) -> dict[str, Any]:
    """Any inputs, flattened."""
    return {"classes": outputs_for(data), "inputs": prod(data.input_shape)}


def two_classes(name: str, data: Data) -> dict[str, Any]:
    """Any inputs, flattened, for one output."""
    if data.num_classes > 2:
        raise InvalidInput(f"{data.name}: {data.num_classes} classes; {name} has one output, for 2 classes")
    return {"inputs": prod(data.input_shape)}


def images(name: str, data: Data) -> dict[str, Any]:
    """Images of any size."""
    size = data.input_shape
    if len(size) != 3:
        raise InvalidInput(f"{data.name}: {name} needs images (channels, height, width), these examples are {size}")
    return {"classes": outputs_for(data), "channels": size[0], "image_size": size[1:]}


def images_of(*wanted: int) -> Fit:
    """Images of one size, (channels, height, width)."""

    def fit(name: str, data: Data) -> dict[str, Any]:
        if data.input_shape != wanted:
            raise InvalidInput(f"{data.name}: {name} takes images of {wanted}, these examples are {data.input_shape}")
        return {"classes": outputs_for(data)}

    return fit
