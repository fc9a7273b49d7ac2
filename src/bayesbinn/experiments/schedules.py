"""Learning-rate schedules, as factors on the initial rate.

They are stated relative to the length of the run, so that fewer epochs compress them.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Schedule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Constant(_Schedule):
    """The initial rate throughout."""

    kind: Literal["constant"] = "constant"

    def factor(self, epoch: int, epochs: int, progress: float) -> float:
        return 1.0


class Cosine(_Schedule):
    """(1 + cos(π·e/T))/2 in epoch e of T, counted from 1.

    The authors advance the schedule at the start of an epoch: the first one already trains below
    the initial rate, and the last one at practically 0.
    """

    kind: Literal["cosine"] = "cosine"
    every_batch: bool = False
    """Advance with every batch instead, from 1 at the first: what a run of a single epoch needs."""

    def factor(self, epoch: int, epochs: int, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * (progress if self.every_batch else epoch / epochs)))


class Exponential(_Schedule):
    """From 1 in the first epoch down to `final` after the last, by an equal factor each epoch."""

    kind: Literal["exponential"] = "exponential"
    final: Annotated[float, Field(gt=0)]

    def factor(self, epoch: int, epochs: int, progress: float) -> float:
        return float(self.final ** ((epoch - 1) / epochs))


class Step(_Schedule):
    """Multiplied by `by` at given parts of the run, or each time another `every` part of it has passed."""

    kind: Literal["step"] = "step"
    by: Annotated[float, Field(gt=0, le=1)]
    at: tuple[float, ...] = ()
    every: Annotated[float, Field(gt=0)] | None = None

    def factor(self, epoch: int, epochs: int, progress: float) -> float:
        # A hair above, so that 0.2 of 500 epochs has passed after exactly 100 of them.
        passed = progress + 1e-9
        drops = sum(passed >= part for part in self.at)
        if self.every is not None:
            drops += int(passed / self.every)
        return float(self.by**drops)


SCHEDULES: dict[str, type[_Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "exponential": Exponential,
    "step": Step,
}
Schedule = Annotated[Constant | Cosine | Exponential | Step, Field(discriminator="kind")]
