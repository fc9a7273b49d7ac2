"""Full-precision Adam, the baseline for binary weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesbinn import kernels
from bayesbinn.errors import InvalidUse
from bayesbinn.methods.contract import BinaryOptimizer, Group, Members, Sample, State, mean_gradients
from bayesbinn.methods.registry import register
from bayesbinn.methods.settings import require, require_adam


@register
class FloatAdam(BinaryOptimizer):
    """Adam on real weights: the full-precision reference. Its weights are not binary.

    Args:
        params: parameters, ``(name, parameter)`` pairs or groups with their own settings.
        lr: Adam's learning rate.
        betas: Adam's decay rates.
        eps: Adam's ε.
        weight_decay: coupled L2, as in `torch.optim.Adam`.
        mc_samples: gradients averaged by ``step(closure)``.
        seed: not used by this method; all methods accept it.
    """

    name = "float"
    binary = False
    relaxes = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        mc_samples: int = 1,
        seed: int | None = None,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, mc_samples=mc_samples, seed=seed)

    def _check_settings(self, group: Group) -> None:
        require_adam(group)
        require(group, "weight_decay", least=0)

    def _start(self, parameter: Tensor, name: str, group: Group) -> State:
        moments = torch.zeros(2, *parameter.shape, dtype=torch.float32, device=parameter.device)
        return {"first": moments[0].clone(), "second": moments[1]}

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        group = members.group
        kernels.adam(
            members.parameters,
            mean_gradients(gradients, samples),
            members.state("first"),
            members.state("second"),
            kernels.AdamSettings.at_step(
                members.step, group["lr"], group["betas"], group["eps"], group["weight_decay"]
            ),
        )

    def _natural(self, parameter: Tensor, state: State, group: Group) -> Tensor:
        raise InvalidUse("full-precision weights have no Bernoulli posterior; train with a binary method")
