"""How a stream of tasks is learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bayesbinn.errors import InvalidInput
from bayesbinn.train.schedules import Constant, Schedule


@dataclass(frozen=True)
class Plan:
    """How a stream is learned and what is measured on the way."""

    epochs: int
    """Per task."""
    batch_size: int = 100
    schedule: Schedule = field(default_factory=Constant)
    """Of the learning rate; it starts anew with every task."""
    remember: bool = True
    """Whether the method consolidates after each task: the posterior becomes the prior. False: nothing is kept
    but the weights themselves (the paper's "without prior")."""
    samples: int = 100
    """Posterior samples behind every accuracy."""
    evaluate_every: int = 0
    """Epochs between evaluations of all seen tasks inside a task; 0: only after each task."""
    rows: Literal["all", "diagonal"] = "all"
    """What is tested after a task: all seen tasks and the next, or the new one alone. The end has always all."""
    validation: float = 0.0
    """The share of the training data that is kept aside; then accuracies are measured there, not on the test data."""
    train_set_scale: float = 1.0
    """The factor on N: the learner tells the optimizer the size of every task, whatever it was built with."""
    augment: bool = False
    """Crop and mirror training images at random."""
    shift: int = 0
    """Shift training images at random by up to this many pixels."""
    seed: int = 0

    def __post_init__(self) -> None:
        least_values = {"epochs": 1, "batch_size": 1, "samples": 0, "evaluate_every": 0, "shift": 0, "seed": 0}
        for name, least in least_values.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidInput(f"{name}={value!r}: it must be a whole number, {least} or more")
        if self.rows not in ("all", "diagonal"):
            raise InvalidInput(f"rows={self.rows!r}: it must be 'all' or 'diagonal'")
        if not 0 <= self.validation < 1:
            raise InvalidInput(f"validation={self.validation!r}: it must be a share from 0 to less than 1")
        if not self.train_set_scale > 0:
            raise InvalidInput(f"train_set_scale={self.train_set_scale!r}: it must be above 0")
