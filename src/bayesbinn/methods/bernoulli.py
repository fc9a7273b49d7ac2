"""What methods with a Bernoulli distribution over every weight share: λ, its samples and its mode."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesbinn import kernels
from bayesbinn.methods.contract import BinaryOptimizer, Group, Members, Sample, State


class BernoulliOptimizer(BinaryOptimizer):
    """A method whose state "natural" is λ = ½·log(p/(1 − p)), and whose sample is w = tanh((λ + δ)/τ).

    A subclass calls `_moved` once its update has written the new mode into the parameters.
    """

    keeps_slopes_from: ClassVar[float] = 0.0
    """A sample stores its 1 − w² if τ is at least this."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        # Memory that all samples reuse for their slopes: allocating it for each would cost more than the kernel.
        self._scratch: dict[Tensor, Tensor] = {}
        super().__init__(*arguments, **settings)

    def _fair_coins(self, parameter: Tensor, name: str) -> Tensor:
        """−1 and +1 in the shape of a parameter, by a fair coin: samples at λ = 0."""
        coins = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
        kernels.write_hard_sample([coins], [coins], [kernels.noise_key(self._counters.seed, "init", name)], 0)
        return coins

    def _relax(self, members: Members, draw: int) -> Sample:
        temperature = members.group["temperature"]
        slopes = self._memory_for_slopes(members) if temperature >= self.keeps_slopes_from else None
        kernels.write_training_sample(
            members.parameters,
            members.state("natural"),
            [None] * len(members.parameters) if slopes is None else slopes,
            self._keys(members, "train"),
            draw,
            temperature,
            members.mode_at == members.versions(),
        )
        return Sample(members.parameters, draw, temperature, slopes, members.versions())

    def _memory_for_slopes(self, members: Members) -> list[Tensor]:
        kept = [self._scratch.get(parameter) for parameter in members.parameters]
        if [None if slope is None else slope.device for slope in kept] != members.devices:
            for parameter, natural in zip(members.parameters, members.state("natural"), strict=True):
                self._scratch[parameter] = torch.empty_like(natural)
        return [self._scratch[parameter] for parameter in members.parameters]

    def _harden(self, members: Members, sample: Sample | None = None) -> None:
        if sample is not None and sample.versions == members.versions():
            kernels.restore_mode(members.parameters, members.state("natural"), sample.temperature)
        else:
            kernels.write_sign(members.parameters, members.state("natural"))
        self._moved(members)

    def _moved(self, members: Members) -> None:
        """Remember that the parameters hold the mode."""
        members.mode_at = members.versions()

    def _draw_hard(self, members: Members, draw: int) -> None:
        keys = self._keys(members, "evaluate")
        kernels.write_hard_sample(members.parameters, members.state("natural"), keys, draw)

    def _natural(self, parameter: Tensor, state: State, group: Group) -> Tensor:
        natural: Tensor = state["natural"]
        return natural

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_scratch": {}}  # a copy has other parameters
