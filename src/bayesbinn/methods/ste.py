"""STE-Adam: Adam on real latent weights, with the gradient taken at their signs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesbinn import kernels
from bayesbinn.methods.contract import BinaryOptimizer, Group, Members, Sample, State, mean_gradients
from bayesbinn.methods.registry import register
from bayesbinn.methods.settings import require, require_adam


@register
class STEAdam(BinaryOptimizer):
    """The straight-through estimator with Adam on clipped latent weights.

    .. code-block:: text

        w_b = sign(w_r)                      what the model holds, also in training
        g   = ∂ℓ/∂w at w_b                   passed straight through to w_r
        w_r ← clip(w_r − Adam(g), −c, c)     c = 1

    The latent weights start at the model's current weights, clipped.

    Args:
        params: parameters, ``(name, parameter)`` pairs or groups with their own settings.
        lr: Adam's learning rate (the paper: 1e-2 with a cosine schedule).
        betas: Adam's decay rates.
        eps: Adam's ε.
        clip: c, the bound of the latent weights.
        mc_samples: gradients averaged by ``step(closure)``.
        seed: not used by this method; all methods accept it.
    """

    name = "ste"
    relaxes = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip: float = 1.0,
        mc_samples: int = 1,
        seed: int | None = None,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "clip": clip}
        super().__init__(params, defaults, mc_samples=mc_samples, seed=seed)

    def _check_settings(self, group: Group) -> None:
        require_adam(group)
        require(group, "clip", above=0)

    def _start(self, parameter: Tensor, name: str, group: Group) -> State:
        latent = parameter.detach().to(torch.float32, copy=True).contiguous().clamp_(-group["clip"], group["clip"])
        return {"latent": latent, "first": torch.zeros_like(latent), "second": torch.zeros_like(latent)}

    def _harden(self, members: Members, sample: Sample | None = None) -> None:
        kernels.write_sign(members.parameters, members.state("latent"))

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        group = members.group
        kernels.ste_update(
            members.parameters,
            members.state("latent"),
            mean_gradients(gradients, samples),
            members.state("first"),
            members.state("second"),
            group["clip"],
            kernels.AdamSettings.at_step(members.step, group["lr"], group["betas"], group["eps"]),
        )

    def _natural(self, parameter: Tensor, state: State, group: Group) -> Tensor:
        return torch.where(state["latent"] >= 0, torch.inf, -torch.inf)
