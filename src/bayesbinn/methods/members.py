"""What the contract hands to a method: the parameters of one call with their states, and the counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]
State = dict[str, Any]


@dataclass
class Members:
    """The parameters of one group that take part in one call."""

    group: Group
    parameters: list[Tensor]
    names: list[str]
    states: list[State]
    devices: list[torch.device]
    mode_at: list[int] | None = None
    """Versions of the parameters when the mode was last written into them: while they last, it is still there."""
    sampled: tuple[list[int], float] | None = None
    """Likewise for the training sample, and its temperature."""

    def state(self, key: str) -> list[Any]:
        return [state.get(key) for state in self.states]

    def versions(self) -> list[int]:
        """Where the parameters lie and autograd's version counters: they tell whether anybody has written since.

        Anybody but who writes in place through ``.data``, which hides it; the next step writes every weight it trains.
        """
        return [x for parameter in self.parameters for x in (parameter.data_ptr(), parameter._version)]

    @property
    def step(self) -> int:
        """The step count that the members share."""
        steps: int = self.states[0]["step"]
        return steps

    def by_step(self) -> list[Members]:
        """Split into parts that share a step count: a parameter without gradient misses a step."""
        parts: dict[int, list[int]] = {}
        for index, state in enumerate(self.states):
            parts.setdefault(state["step"], []).append(index)
        if len(parts) == 1:
            return [self]
        return [
            Members(
                self.group,
                [self.parameters[i] for i in chosen],
                [self.names[i] for i in chosen],
                [self.states[i] for i in chosen],
                [self.devices[i] for i in chosen],
            )
            for chosen in parts.values()
        ]


@dataclass
class Counters:
    """Where the noise streams are, and how many steps were made."""

    seed: int
    steps: int = 0
    draws: int = 0
    evaluation_draws: int = 0


@dataclass
class Samples:
    """The samples drawn since the last step.

    One object that is only ever changed in place, so that a wrapper around the optimizer which
    borrows its attributes (Lightning's does) sees the same samples.
    """

    inside: str | None = None
    """Which kind of block the program is in: "train", "evaluation" or none."""
    count: int = 0
    pending: int | None = None
    """The draw whose gradients are in ``p.grad``."""
    drawn: frozenset[int] = frozenset()
    """The parameters, by id, that took part in the pending draw: no other gradient belongs to it."""
    totals: dict[Tensor, Tensor] = field(default_factory=dict)
    """Contributions of earlier samples, by parameter."""

    def clear(self) -> None:
        self.count, self.pending = 0, None
        self.totals.clear()
