"""The demo: binary networks on scikit-learn's digits, from training to a model file that runs without PyTorch."""

from bayesbinn.demo.contest import run_demo

__all__ = ["run_demo"]
