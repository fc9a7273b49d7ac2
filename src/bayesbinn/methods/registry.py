"""The methods by name. Registering a class makes it available everywhere, including the conformance tests."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, TypeVar

from bayesbinn.errors import InvalidInput, nearest
from bayesbinn.methods.contract import BinaryOptimizer

Optimizer = TypeVar("Optimizer", bound=type[BinaryOptimizer])


@dataclass(frozen=True)
class Method:
    """A registered method: its optimizer, what it is, and its settings."""

    name: str
    optimizer: type[BinaryOptimizer]
    description: str
    defaults: dict[str, Any]
    """Settings and their default values, without the required ones."""
    settings: tuple[str, ...]
    """All settings, including the required ones."""

    def create(self, params: Any, *, train_set_size: int, seed: int | None = None, **settings: Any) -> BinaryOptimizer:
        """Build the optimizer. `train_set_size` is passed to the methods that need it."""
        for key in settings:
            if key not in self.settings:
                raise InvalidInput(f"method {self.name!r} has no setting {key!r}.{nearest(key, self.settings)}")
        if "train_set_size" in self.settings:
            settings["train_set_size"] = train_set_size
        optimizer: BinaryOptimizer = self.optimizer(params, **settings, seed=seed)
        return optimizer


METHODS: dict[str, Method] = {}


def register(optimizer: Optimizer) -> Optimizer:
    """Class decorator: add an optimizer to `METHODS` under its `name`."""
    parameters = list(inspect.signature(optimizer.__init__).parameters.values())[2:]  # without self and params
    METHODS[optimizer.name] = Method(
        name=optimizer.name,
        optimizer=optimizer,
        description=(inspect.getdoc(optimizer) or "").partition("\n")[0],
        defaults={p.name: p.default for p in parameters if p.default is not p.empty},
        settings=tuple(p.name for p in parameters),
    )
    return optimizer


def get_method(name: str) -> Method:
    """Look up a method; the error for an unknown name suggests the nearest known one."""
    if name not in METHODS:
        raise InvalidInput(f"there is no method {name!r}.{nearest(name, METHODS)} Known: {', '.join(METHODS)}")
    return METHODS[name]
