"""A trained network as a function: predictions, calibration and BatchNorm statistics."""

from bayesbinn.prediction.predicting import Prediction, predict

__all__ = ["Prediction", "predict"]
