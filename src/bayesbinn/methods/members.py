"""What the contract passes to a method: the parameters of one call with their states, the sample, and the counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    """`versions()` when the mode was last written: while they stay the same, the parameters hold the mode."""

    def state(self, key: str) -> list[Any]:
        return [state.get(key) for state in self.states]

    def versions(self) -> list[int]:
        """The parameters' addresses and autograd's version counters, which show whether anything was written since.

        In-place writes through ``.data`` do not show; the next step writes every weight that it trains.
        """
        return [x for parameter in self.parameters for x in (parameter.data_ptr(), parameter._version)]

    @property
    def step(self) -> int:
        """The step count that the members share."""
        steps: int = self.states[0]["step"]
        return steps

    def by_step(self) -> list[Members]:
        """Split into parts that share a step count: a parameter without a gradient misses a step."""
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


class Sample(NamedTuple):
    """One training sample of a group, from `_relax`, which writes it, to `_update`, which learns from its gradient."""

    parameters: list[Tensor]
    """The parameters that hold it; only their gradients belong to it."""
    draw: int
    """Its number in the noise stream."""
    temperature: float = 0.0
    """The sample's τ: the group's may change before the step."""
    slopes: list[Tensor] | None = None
    """1 − w² of each parameter, if the method stores them. The next sample overwrites them."""
    versions: list[int] | None = None
    """`Members.versions` after it was written: while they stay the same, the parameters hold it."""

    def slopes_of(self, members: Members) -> list[Tensor]:
        """The slopes of some of its parameters."""
        assert self.slopes is not None
        if members.parameters is self.parameters:
            return self.slopes
        found = {id(parameter): slope for parameter, slope in zip(self.parameters, self.slopes, strict=True)}
        return [found[id(parameter)] for parameter in members.parameters]


@dataclass
class Counters:
    """The positions of the noise streams, and the number of steps made."""

    seed: int
    steps: int = 0
    draws: int = 0
    evaluation_draws: int = 0


@dataclass
class Samples:
    """The samples drawn since the last step.

    One object that is only changed in place, so that a wrapper that copies the optimizer's
    attributes (as Lightning's does) sees the same samples.
    """

    inside: str | None = None
    """The kind of block the program is in: "train", "evaluation" or None."""
    count: int = 0
    pending: list[Sample] | None = None
    """The sample whose gradients are in ``p.grad``: one entry per group at the time."""
    totals: dict[Tensor, Tensor] = field(default_factory=dict)
    """Contributions of earlier samples, by parameter."""

    def clear(self) -> None:
        self.count, self.pending = 0, None
        self.totals.clear()
