"""Learning-rate schedules under their public name; `bayesbinn.train.schedules` has them."""

from bayesbinn.train.schedules import Constant, Cosine, Exponential, Schedule, Step

__all__ = ["Constant", "Cosine", "Exponential", "Schedule", "Step"]
