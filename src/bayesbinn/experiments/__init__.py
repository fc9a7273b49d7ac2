"""Experiments: validated configurations, and one preset per experiment in the paper."""

from bayesbinn.experiments.config import Experiment, load_experiment, preset_names

__all__ = ["Experiment", "load_experiment", "preset_names"]
