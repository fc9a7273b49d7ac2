"""BiMU: Bernoulli distributions over binary weights that keep learning on an endless stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesbinn import kernels
from bayesbinn.methods.bernoulli import BernoulliOptimizer
from bayesbinn.methods.contract import Group, Members, Sample, State
from bayesbinn.methods.gradients import ROOM
from bayesbinn.methods.registry import register
from bayesbinn.methods.settings import require


@register
class BiMU(BernoulliOptimizer):
    r"""A Bernoulli distribution over every weight, learned from a stream with a memory of bounded length.

    Cottart et al., "Active Continual Learning with Metaplastic Binary Bayesian Neural Networks"
    (2026). q(w) has natural parameter λ and mean μ = tanh λ. One step with S samples:

    .. code-block:: text

        w = tanh((λ + δ)/τ),  δ = ½·log(u/(1 − u))          the relaxed sample
        g = (1/S)·Σ (1 − w²)/τ⊙∂ℓ/∂w                        ∂ℓ/∂λ by the chain rule
        c = k·(1 − tanh²λ)
        λ ← λ − (η·a·g + λ·c/N) / (c + 2a·g·tanh λ + 2a·|g| + 1/η_max)

    The objective is the negative ELBO of the examples seen, with a window: each new example
    adds its loss, and the prior removes 1/N of what is known. The KL divergence from fair
    coins has the derivative λ·(1 − tanh²λ), so λ·c/N is that of KL/N, and the numerator is
    the gradient of both terms, weighted by η·a and k.

    The denominator is a curvature, so this is a second-order step. 1 − tanh²λ is the Fisher
    information of λ. With this term only, the step would be λ ← (1 − 1/N)·λ − (η·a/k)·∂ℓ/∂μ: the
    natural gradient, and evidence that fades after N steps. But then a certain weight, whose
    information is nearly 0, would make unbounded steps. 1/η_max bounds them by
    η·η_max·a·|g|, and also slows the fading to c·η_max/(1 + c·η_max) of its speed. A loss that
    is linear in μ has the second derivative −2g·tanh λ. The authors add it with the opposite sign,
    and 2a·|g|, so that the sum is never negative: it is 2a·|g|·(1 + |μ|) for a step toward 0 and
    2a·|g|·(1 − |μ|) for a step away from it. A certain weight thus changes its sign slowly, and
    apart from the fading no step toward 0 is longer than η/2.

    The method does not need to know where a task ends: `consolidate` does nothing.

    Args:
        params: parameters, ``(name, parameter)`` pairs or groups with their own settings.
        lr: η. The defaults are the authors' values for one example per step.
        max_lr: η_max.
        gain: a, the weight of the loss.
        curvature: k, the weight of the KL divergence.
        memory_size: N, the length of the memory in steps.
        temperature: τ of the relaxation.
        initial_strength: λ starts at ± this value, by a fair coin.
        mc_samples: S, the number of samples that ``step(closure)`` draws.
        independent_noise: with several data-parallel ranks, let each draw its own noise.
        seed: seed of the noise.
    """

    name = "bimu"

    def __init__(
        self,
        params: Any,
        lr: float = 4.9,
        *,
        max_lr: float = 0.0023,
        gain: float = 161.3,
        curvature: float = 3.76,
        memory_size: float = 1e5,
        temperature: float = 1.0,
        initial_strength: float = 0.1,
        mc_samples: int = 5,
        independent_noise: bool = False,
        seed: int | None = None,
    ) -> None:
        self._strength = initial_strength
        require({"initial_strength": initial_strength}, "initial_strength", above=0)
        defaults = {
            "lr": lr,
            "max_lr": max_lr,
            "gain": gain,
            "curvature": curvature,
            "memory_size": memory_size,
            "temperature": temperature,
        }
        super().__init__(params, defaults, mc_samples=mc_samples, independent_noise=independent_noise, seed=seed)

    def _check_settings(self, group: Group) -> None:
        require(group, "lr", least=0)
        require(group, "max_lr", above=0)
        require(group, "gain", above=0)
        require(group, "curvature", least=0)
        require(group, "memory_size", least=1)
        require(group, "temperature", least=1e-6)

    def _start(self, parameter: Tensor, name: str, group: Group) -> State:
        return {"natural": self._fair_coins(parameter, name).mul_(self._strength)}

    def _accumulate(self, members: Members, totals: list[Tensor], sample: Sample) -> None:
        gradients = [parameter.grad for parameter in members.parameters if parameter.grad is not None]
        kernels.accumulate_slope(totals, sample.slopes_of(members), gradients, sample.temperature)

    def _gradient_limit(self, members: Members, sample: Sample | None) -> float:
        group = members.group
        chained = 1.0 if sample is None else min(1.0, sample.temperature)
        return ROOM * chained / float(group["gain"] * max(group["lr"], 4))

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        group, naturals = members.group, members.state("natural")
        totals = gradients
        if sample is not None:
            totals = [torch.zeros_like(natural) for natural in naturals]
            kernels.accumulate_slope(totals, sample.slopes_of(members), gradients, sample.temperature)
        rule = kernels.BiMUSettings(
            lr=group["lr"],
            max_lr=group["max_lr"],
            gain=group["gain"],
            curvature=group["curvature"],
            memory_size=group["memory_size"],
            samples=samples,
        )
        kernels.bimu_update(members.parameters, naturals, totals, rule)
        self._moved(members)
