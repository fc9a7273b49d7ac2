"""scikit-learn estimators."""

from bayesbinn.sklearn.estimators import BinaryNetworkClassifier, BinaryNetworkRegressor, Uncertainty

__all__ = ["BinaryNetworkClassifier", "BinaryNetworkRegressor", "Uncertainty"]
