"""Continual learning: one network learns one task after another; each task's posterior is the next task's prior.

stream = data.permuted(data.load("mnist"), tasks=5, seed=1)
learner = Learner(model, optimizer, stream, Plan(epochs=100))
learner.train()
learner.record.matrix("shared")       # accuracy on task j after task i
learner.record.summary()              # average accuracy, forgetting, transfer
"""

from bayesbinn.continual.evaluation import policies_of
from bayesbinn.continual.learner import Learner
from bayesbinn.continual.plan import Plan
from bayesbinn.continual.record import Record

__all__ = ["Learner", "Plan", "Record", "policies_of"]
