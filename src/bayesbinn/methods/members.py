"""What the contract hands to a method: the parameters of one call with their states, the sample, and the counters."""

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
    """Versions of the parameters when the mode was last written into them: while they last, it is still there."""

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


class Sample(NamedTuple):
    """One training sample of a group, from `_relax`, which writes it, to `_update`, which learns from its gradient."""

    parameters: list[Tensor]
    """Those that hold it; no other gradient belongs to it."""
    draw: int
    """Which numbers of the noise stream it was made of."""
    temperature: float = 0.0
    """τ, the sample's own: the group's may be changed before the step."""
    slopes: list[Tensor] | None = None
    """1 − w² of each parameter, where a method keeps them. The next sample overwrites them."""
    versions: list[int] | None = None
    """`Members.versions` once it was written: while they last, the parameters hold it."""

    def slopes_of(self, members: Members) -> list[Tensor]:
        """The slopes of some of its parameters."""
        assert self.slopes is not None
        if members.parameters is self.parameters:
            return self.slopes
        found = {id(parameter): slope for parameter, slope in zip(self.parameters, self.slopes, strict=True)}
        return [found[id(parameter)] for parameter in members.parameters]


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
    pending: list[Sample] | None = None
    """The sample whose gradients are in ``p.grad``: one for each group that there was."""
    totals: dict[Tensor, Tensor] = field(default_factory=dict)
    """Contributions of earlier samples, by parameter."""

    def clear(self) -> None:
        self.count, self.pending = 0, None
        self.totals.clear()
