"""How a stream of tasks is learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bayesbinn.errors import InvalidInput
from bayesbinn.train.schedules import Constant, Schedule


@dataclass(frozen=True)
class Plan:
    """How a stream is learned and what is measured."""

    epochs: int
    """Epochs per task."""
    batch_size: int = 100
    schedule: Schedule = field(default_factory=Constant)
    """The learning-rate schedule; it restarts with every task."""
    remember: bool = True
    """Whether the method consolidates after each task: the posterior becomes the prior. False: only the weights
    themselves are kept (the paper's "without prior")."""
    samples: int = 100
    """Posterior samples used for every accuracy."""
    evaluate_every: int = 0
    """Epochs between evaluations of all seen tasks within a task; 0: only after each task."""
    rows: Literal["all", "diagonal"] = "all"
    """What is tested after a task: all seen tasks and the next, or only the new one. After the last task, all."""
    validation: float = 0.0
    """The share of the training data to hold out; accuracies are then measured on it, not on the test data."""
    train_set_scale: float = 1.0
    """The factor on N: the learner gives the optimizer the size of every task, whatever it was created with."""
    augment: bool = False
    """Crop and flip training images at random."""
    shift: int = 0
    """Shift training images at random by up to this many pixels."""
    distort: float = 0.0
    """Distort training images at random, this strongly."""
    seed: int = 0

    def __post_init__(self) -> None:
        least_values = {"epochs": 1, "batch_size": 1, "samples": 0, "evaluate_every": 0, "shift": 0, "seed": 0}
        for name, least in least_values.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidInput(f"{name}={value!r}: must be a whole number, {least} or more")
        if self.rows not in ("all", "diagonal"):
            raise InvalidInput(f"rows={self.rows!r}: must be 'all' or 'diagonal'")
        if not 0 <= self.validation < 1:
            raise InvalidInput(f"validation={self.validation!r}: must be at least 0 and less than 1")
        if not 0 <= self.distort <= 2:
            raise InvalidInput(f"distort={self.distort!r}: must be from 0 to 2")
        if not self.train_set_scale > 0:
            raise InvalidInput(f"train_set_scale={self.train_set_scale!r}: must be above 0")
