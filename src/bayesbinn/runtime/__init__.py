"""Runs a model file: `load`, then `predict`. Needs NumPy and safetensors; never imports torch.

>>> import bayesbinn.runtime, sys
>>> model = bayesbinn.runtime.load("tests/fixtures/model-v1.safetensors")  # doctest: +SKIP
>>> model.predict_proba(x)  # doctest: +SKIP
"""

from bayesbinn.runtime.model import Model, load
from bayesbinn.runtime.prediction import Prediction, Regression

__all__ = ["Model", "Prediction", "Regression", "load"]
