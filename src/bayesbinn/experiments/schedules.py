"""Public name of the learning-rate schedules in `bayesbinn.train.schedules`."""

from bayesbinn.train.schedules import Constant, Cosine, Exponential, Schedule, Step

__all__ = ["Constant", "Cosine", "Exponential", "Schedule", "Step"]
