"""Runs a model file: `load`, then `predict`. Needs NumPy and safetensors; never imports torch.

The names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesbinn.runtime.model import Model, load
    from bayesbinn.runtime.prediction import Prediction, Regression

__all__ = ["Model", "Prediction", "Regression", "load"]

_HOME = {"Model": "model", "load": "model", "Prediction": "prediction", "Regression": "prediction"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
