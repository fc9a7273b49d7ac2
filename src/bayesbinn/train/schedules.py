"""Learning-rate schedules, as factors on the initial rate.

They are relative to the length of the run, so a run with fewer epochs compresses them.
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

    def describe(self) -> str:
        return "constant"


class Cosine(_Schedule):
    """Half a cosine over the run, one rate per epoch e of T, counted from 1.

    end = "above_zero": (1 + cos(π·(e − ½)/T))/2, the cosine in the middle of the epoch. Every epoch trains, even
    in a run of one epoch.

    end = "authors": (1 + cos(π·e/T))/2. The authors advance the schedule at the start of an epoch: the first epoch
    already trains below the initial rate, and the last one at practically 0. That wastes one epoch of 500, but half of
    a run of two and all of a run of one, so only the paper's presets at their original length use it, and runs
    whose config.toml was written before there was a choice.
    """

    kind: Literal["cosine"] = "cosine"
    every_batch: bool = False
    """Advance with every batch instead, from 1 at the first; `end` then makes no difference."""
    end: Literal["authors", "above_zero"] = "authors"
    """The last epoch's rate: 0, as the authors do, or above 0. A file without this setting gets above_zero."""

    def factor(self, epoch: int, epochs: int, progress: float) -> float:
        if self.every_batch:
            return half_cosine(progress)
        return half_cosine(epoch / epochs) if self.end == "authors" else cosine(epoch, epochs)

    def describe(self) -> str:
        if self.every_batch:
            return "cosine, with every batch"
        return "cosine, 0 in the last epoch as the authors do" if self.end == "authors" else "cosine, ends above 0"


def half_cosine(progress: float) -> float:
    """From 1 at the start of a run, `progress` = 0, to 0 at its end."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def cosine(epoch: int, epochs: int) -> float:
    """The cosine in the middle of epoch `epoch` of `epochs`, counted from 1: above 0 in every epoch.

    >>> [round(cosine(epoch, 3), 3) for epoch in (1, 2, 3)], round(cosine(1, 1), 3)
    ([0.933, 0.5, 0.067], 0.5)
    """
    return half_cosine((epoch - 0.5) / epochs)


class Exponential(_Schedule):
    """From 1 in the first epoch down to `final` after the last, by an equal factor each epoch."""

    kind: Literal["exponential"] = "exponential"
    final: Annotated[float, Field(gt=0)]
    """The factor after the last epoch."""

    def factor(self, epoch: int, epochs: int, progress: float) -> float:
        return float(self.final ** ((epoch - 1) / epochs))

    def describe(self) -> str:
        return f"exponential, down to {self.final:g} of the initial rate"


class Step(_Schedule):
    """Multiply by `by` at given fractions of the run, or every time a fraction `every` of it has passed."""

    kind: Literal["step"] = "step"
    by: Annotated[float, Field(gt=0, le=1)]
    """The factor at each step."""
    at: tuple[float, ...] = ()
    """When to step, as fractions of the run between 0 and 1."""
    every: Annotated[float, Field(gt=0)] | None = None
    """The interval between steps, as a fraction of the run."""

    def factor(self, epoch: int, epochs: int, progress: float) -> float:
        # Slightly above, so that 0.2 of 500 epochs has passed after exactly 100 epochs.
        passed = progress + 1e-9
        drops = sum(passed >= part for part in self.at)
        if self.every is not None:
            drops += int(passed / self.every)
        return float(self.by**drops)

    def describe(self) -> str:
        return f"in steps, by {self.by:g} each"


SCHEDULES: dict[str, type[_Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "exponential": Exponential,
    "step": Step,
}
Schedule = Annotated[Constant | Cosine | Exponential | Step, Field(discriminator="kind")]
