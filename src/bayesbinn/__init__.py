"""Train, understand and ship neural networks whose weights are only -1 and +1.

The public names are imported when they are first used, so that ``import bayesbinn`` is fast and
does not need PyTorch: a model file runs without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "BayesbinnError": "errors",
    "check_binary": "binary",
    "check_owners": "binary",
    "sign": "binary",
    "split_parameters": "binary",
    "BernoulliPosterior": "posterior",
    "LogitScale": "posterior",
    "BayesBiNN": "methods",
    "BiMU": "methods",
    "BinaryOptimizer": "methods",
    "Bop": "methods",
    "EWC": "methods",
    "FloatAdam": "methods",
    "LRNet": "methods",
    "METHODS": "methods",
    "PMF": "methods",
    "STEAdam": "methods",
    "get_method": "methods",
    "Prediction": "prediction",
    "predict": "prediction",
    "BatchNormStatistics": "prediction.batchnorm",
    "recalibrate": "prediction.batchnorm",
    "calibrate": "prediction.logit_scale",
    "pack": "packing",
    "pack_ensemble": "packing",
    "summary": "packing.sizes",
}

_MODULES = {"data", "errors", "metrics", "train"}

__all__ = [
    "EWC",
    "METHODS",
    "PMF",
    "BatchNormStatistics",
    "BayesBiNN",
    "BayesbinnError",
    "BernoulliPosterior",
    "BiMU",
    "BinaryOptimizer",
    "Bop",
    "FloatAdam",
    "LRNet",
    "LogitScale",
    "Prediction",
    "STEAdam",
    "__version__",
    "calibrate",
    "check_binary",
    "check_owners",
    "data",
    "errors",
    "get_method",
    "metrics",
    "pack",
    "pack_ensemble",
    "predict",
    "recalibrate",
    "sign",
    "split_parameters",
    "summary",
    "train",
]

if TYPE_CHECKING:
    from bayesbinn import data, errors, metrics, train
    from bayesbinn.binary import check_binary, check_owners, sign, split_parameters
    from bayesbinn.errors import BayesbinnError
    from bayesbinn.methods import (
        EWC,
        METHODS,
        PMF,
        BayesBiNN,
        BiMU,
        BinaryOptimizer,
        Bop,
        FloatAdam,
        LRNet,
        STEAdam,
        get_method,
    )
    from bayesbinn.packing.ensemble import pack_ensemble
    from bayesbinn.packing.packer import pack
    from bayesbinn.packing.sizes import summary
    from bayesbinn.posterior import BernoulliPosterior, LogitScale
    from bayesbinn.prediction.batchnorm import BatchNormStatistics, recalibrate
    from bayesbinn.prediction.logit_scale import calibrate
    from bayesbinn.prediction.predicting import Prediction, predict


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "scipy"):
            raise
        from bayesbinn.errors import MissingDependency, how_to_install

        raise MissingDependency(f"bayesbinn.{name} needs {error.name}: {how_to_install('train')}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
