"""Bop: flip a weight when the running mean of its gradient asks for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesbinn import kernels
from bayesbinn.methods.contract import BinaryOptimizer, Group, Members, Sample, State, mean_gradients
from bayesbinn.methods.gradients import ROOM
from bayesbinn.methods.registry import register
from bayesbinn.methods.settings import require


@register
class Bop(BinaryOptimizer):
    """The binary optimizer: no latent weights, only inertia against flipping.

    .. code-block:: text

        m ← (1 − γ)·m + γ·g
        w ← −w where w·m > τ

    The paper's text writes the same rule with m' = −m: flip where |m'| > τ and m' and w differ in
    sign. It calls the threshold γ and the rate α; the paper's table of settings, like Bop's
    authors, calls them τ and γ. This threshold is not a temperature.

    The weights start at the signs of the model's current weights.

    Args:
        params: parameters, ``(name, parameter)`` pairs or groups with their own settings.
        lr: γ, the adaptivity rate; a schedule decays this.
        threshold: τ. It is compared with the mean gradient of a minibatch.
        mc_samples: gradients averaged by ``step(closure)``.
        seed: not used by this method; all methods accept it.
    """

    name = "bop"
    relaxes = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        *,
        threshold: float = 1e-8,
        mc_samples: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "threshold": threshold}, mc_samples=mc_samples, seed=seed)

    def _check_settings(self, group: Group) -> None:
        require(group, "lr", least=0)
        require(group, "threshold", least=0)

    def _start(self, parameter: Tensor, name: str, group: Group) -> State:
        average = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
        return {"average": average}

    def _harden(self, members: Members, sample: Sample | None = None) -> None:
        # The weights are the state: binary already, except at construction and after loading a file.
        for parameter, state in zip(members.parameters, members.states, strict=True):
            positive = state.pop("positive", None)
            source = parameter.detach() if positive is None else positive.to(torch.float32) - 0.5
            kernels.write_sign([parameter], [source.to(torch.float32).contiguous()])

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        parameters = [p for group in self.param_groups for p in group["params"]]
        saved["state"] = {
            index: {**state, "positive": parameters[index].detach() >= 0} for index, state in saved["state"].items()
        }
        return saved

    def _gradient_limit(self, members: Members, sample: Sample | None) -> float:
        return ROOM / float(max(members.group["lr"], 1))  # for rates up to 1, the average is a mean

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        group = members.group
        gradients = mean_gradients(gradients, samples)
        kernels.bop_update(members.parameters, members.state("average"), gradients, group["lr"], group["threshold"])

    def _natural(self, parameter: Tensor, state: State, group: Group) -> Tensor:
        return torch.where(parameter.detach() >= 0, torch.inf, -torch.inf)
