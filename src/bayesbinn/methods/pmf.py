"""PMF: proximal mean-field, a softmax over {−1, +1} whose sharpness β grows during training."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesbinn import kernels
from bayesbinn.errors import InvalidInput
from bayesbinn.methods.contract import BinaryOptimizer, Group, Members, Sample, State, mean_gradients
from bayesbinn.methods.gradients import SQUARABLE
from bayesbinn.methods.registry import register
from bayesbinn.methods.settings import require, require_adam


@register
class PMF(BinaryOptimizer):
    """Two logits per weight, trained by Adam at soft weights that an annealed β hardens.

    .. code-block:: text

        w = tanh(β(ũ₊ − ũ₋)/2)               the soft weight, u = softmax(β·ũ), w = u₊ − u₋
        g₋, g₊ from ∂ℓ/∂w                    see `kernels.reference.pmf_logit_gradients`
        ũ ← ũ − Adam(g)
        β ← min(ρ·β, β_max)                  every `beta_interval` steps, the first included

    Args:
        params: parameters, ``(name, parameter)`` pairs or groups with their own settings.
        lr: Adam's learning rate.
        betas: Adam's decay rates.
        eps: Adam's ε.
        weight_decay: coupled L2 on the logits.
        beta_growth: ρ (the paper: 1.2 for MNIST, 1.05 for CIFAR).
        beta_interval: steps between two increases of β.
        beta_max: the largest β.
        init: ``"random"`` (Xavier-uniform logits) or ``"weights"`` (ũ₊ − ũ₋ is the current weight).
        mc_samples: gradients averaged by ``step(closure)``.
        seed: seed of the initial logits and of the samples for evaluation.
    """

    name = "pmf"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        beta_growth: float = 1.05,
        beta_interval: int = 100,
        beta_max: float = 1e4,
        init: str = "random",
        mc_samples: int = 1,
        seed: int | None = None,
    ) -> None:
        if init not in ("random", "weights"):
            raise InvalidInput(f"init={init!r}: it must be 'random' or 'weights'")
        self._init = init
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "beta_growth": beta_growth,
            "beta_interval": beta_interval,
            "beta_max": beta_max,
        }
        super().__init__(params, defaults, mc_samples=mc_samples, seed=seed)

    def _check_settings(self, group: Group) -> None:
        require_adam(group)
        require(group, "weight_decay", least=0)
        require(group, "beta_growth", least=1)
        require(group, "beta_interval", least=1)
        require(group, "beta_max", least=1)

    def _start(self, parameter: Tensor, name: str, group: Group) -> State:
        logits = self._initial_logits(parameter, name)
        return {"logits": logits, "first": torch.zeros_like(logits), "second": torch.zeros_like(logits)}

    def _initial_logits(self, parameter: Tensor, name: str) -> Tensor:
        if self._init == "weights":
            half = parameter.detach().to(torch.float32) / 2
            return torch.stack([-half, half]).contiguous()
        bound = math.sqrt(6 / sum(_fans(parameter)))
        key = kernels.noise_key(self._counters.seed, "init", name)
        logits = torch.zeros(2, *parameter.shape, dtype=torch.float32, device=parameter.device)
        kernels.write_relaxed_sample([logits], [logits], [key], 0, 1.0)  # at λ = 0 and τ = 1: uniform in (−1, 1)
        return logits.mul_(bound)

    def _beta(self, group: Group, steps: int) -> float:
        """β after `steps` steps: it grows after step 1 (iteration 0), then every `beta_interval` steps."""
        growths = -(-steps // group["beta_interval"])
        exponent = min(growths * math.log(group["beta_growth"]), math.log(group["beta_max"]))
        return math.exp(exponent)

    def _relax(self, members: Members, draw: int) -> Sample:
        for part in members.by_step():
            kernels.write_pmf_weights(part.parameters, part.state("logits"), self._beta(part.group, part.step))
        return Sample(members.parameters, draw)

    def _harden(self, members: Members, sample: Sample | None = None) -> None:
        kernels.write_pmf_sign(members.parameters, members.state("logits"))

    def _draw_hard(self, members: Members, draw: int) -> None:
        naturals = [
            self._natural(parameter, state, members.group)
            for parameter, state in zip(members.parameters, members.states, strict=True)
        ]
        kernels.write_hard_sample(members.parameters, naturals, self._keys(members, "evaluate"), draw)

    def _gradient_limit(self, members: Members, sample: Sample | None) -> float:
        """A logit's gradient is at most 9/8·β·|∂ℓ/∂w|, and Adam squares it."""
        return SQUARABLE / (1.125 * self._beta(members.group, members.step))

    def _update(self, members: Members, gradients: list[Tensor], sample: Sample | None, samples: int) -> None:
        group = members.group
        kernels.pmf_update(
            members.parameters,
            members.state("logits"),
            mean_gradients(gradients, samples),
            members.state("first"),
            members.state("second"),
            self._beta(group, members.step - 1),
            kernels.AdamSettings.at_step(
                members.step, group["lr"], group["betas"], group["eps"], group["weight_decay"]
            ),
        )

    def _natural(self, parameter: Tensor, state: State, group: Group) -> Tensor:
        """λ = β(ũ₊ − ũ₋)/2."""
        difference: Tensor = state["logits"][1] - state["logits"][0]
        return difference * (self._beta(group, state["step"]) / 2)


def _fans(parameter: Tensor) -> tuple[int, int]:
    if parameter.dim() < 2 or parameter.numel() == 0:
        return max(parameter.numel(), 1), 1
    rest = parameter[0, 0].numel()
    return parameter.shape[1] * rest, parameter.shape[0] * rest
