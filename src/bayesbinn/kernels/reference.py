"""The update rules as pure functions on flat float32 tensors: slow, obvious, on any device.

Each native kernel is tested against these, bit for bit. Symbols follow the paper: λ is `natural`, δ the noise, τ the
temperature, α the learning rate, N the training-set size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayesbinn.kernels.elementary import MAX_LOGISTIC, SATURATION, half_logit, sech2, sqrt, tanh
from bayesbinn.kernels.noise import uniform


class RuleSettings(NamedTuple):
    """The scalars of one BayesBiNN update, the same for all parameters of a group."""

    lr: float
    """α, divided by the bias correction 1 − βᵏ if there is momentum."""
    temperature: float
    eps: float
    data_weight: float
    """N/S: training-set size over the number of Monte-Carlo samples."""
    kl_weight: float
    momentum: float
    steady: bool = False
    """Whether steps are proportional to v(λ), the weight's variance: the gradient in λ, not the natural gradient."""
    relaxation: float = 0.0
    """ρ: how fast a steady rule lets λ fade."""
    fading: float = 0.05
    """φ: how fast a steady rule lets a certain weight fade, relative to an uncertain one."""


class AdamSettings(NamedTuple):
    """The scalars of one Adam update at step k."""

    step_size: float
    """lr / (1 − β₁ᵏ)"""
    beta1: float
    beta2: float
    second_scale: float
    """1 / √(1 − β₂ᵏ)"""
    eps: float
    weight_decay: float = 0.0

    @classmethod
    def at_step(
        cls, k: int, lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0
    ) -> AdamSettings:
        beta1, beta2 = betas
        return cls(lr / (1 - beta1**k), beta1, beta2, (1 - beta2**k) ** -0.5, eps, weight_decay)


class BiMUSettings(NamedTuple):
    """The scalars of one BiMU update."""

    lr: float
    """η"""
    max_lr: float
    """η_max"""
    gain: float
    """a"""
    curvature: float
    """k"""
    memory_size: float
    """N, in steps."""
    samples: int
    """S, the number of Monte-Carlo samples behind the total."""


def sign(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0)


def logistic_noise(natural: Tensor, key: int, draw: int, first: int) -> Tensor:
    """δ = ½·log(u/(1−u)) for the elements of `natural`."""
    return half_logit(uniform(key, draw, natural.numel(), natural.device, first))


def relaxed_sample(natural: Tensor, key: int, draw: int, first: int, temperature: float) -> Tensor:
    """w = tanh((λ + δ)/τ), the Concrete relaxation of a draw from q(w)."""
    return tanh((natural + logistic_noise(natural, key, draw, first)) * (1 / temperature))


def hard_sample(natural: Tensor, key: int, draw: int, first: int) -> Tensor:
    """sign(λ + δ): +1 with probability σ(2λ). The relaxed sample in the limit τ → 0."""
    return sign(natural + logistic_noise(natural, key, draw, first))


def gradient_scale(natural: Tensor, key: int, draw: int, first: int, temperature: float, eps: float) -> Tensor:
    """s = ((1 − w²) + ε) / (τ·(v(λ) + ε)), the paper's factor between ∂ℓ/∂w and ∂ℓ/∂μ.

    At the paper's τ = 1e-10, ε decides everything. There (λ + δ)/τ is of the order 1e11, so
    1 − w² = 0, and |λ| > 9.01, so v(λ) = 0: without ε the quotient is 0/0. With it, s = 1/τ.
    """
    return scale_from_slope(natural, sample_slope(natural, key, draw, first, temperature), temperature, eps)


def sample_slope(natural: Tensor, key: int, draw: int, first: int, temperature: float) -> Tensor:
    """1 − w² of a relaxed sample, without rounding w first."""
    return sech2((natural + logistic_noise(natural, key, draw, first)) * (1 / temperature))


def scale_from_slope(natural: Tensor, slope: Tensor, temperature: float, eps: float) -> Tensor:
    """s when 1 − w² is already known."""
    return (slope + eps) / ((sech2(natural) + eps) * temperature)


def largest_scale(temperature: float, eps: float) -> float:
    """A bound on s. From |λ| = max |δ| + 13·ln 2·τ on, 1 − w² is 0 whatever the noise, and s is at most 1/τ."""
    reach = (MAX_LOGISTIC + SATURATION * temperature) * (1 + 1e-5)
    variance = math.cosh(reach) ** -2 if reach < SATURATION else 0.0
    return (1 + eps) / ((variance + eps) * temperature)


def natural_gradient_step(
    natural: Tensor, scaled_gradient: Tensor, momentum: Tensor | None, prior: Tensor | None, rule: RuleSettings
) -> tuple[Tensor, Tensor | None]:
    """λ ← λ − α·m,  m ← β·m + (1 − β)·[(N/S)·Σ s⊙g + κ·(λ − λ₀)]; returns (λ, m).

    A steady rule uses v(λ)·[(N/S)·Σ s⊙g + κ·(λ − λ₀)] + (v(λ) + φ)·ρ·λ, with the κ term only if there is a prior.
    """
    coins = torch.zeros_like(natural) if rule.steady else natural  # a steady rule has ρ for the uniform prior
    pull = coins if prior is None else natural - prior
    direction = scaled_gradient * rule.data_weight + pull * rule.kl_weight
    if rule.steady:
        variance = sech2(natural)
        direction = direction * variance + natural * rule.relaxation * (variance + rule.fading)
    if momentum is not None:
        direction = momentum = momentum * rule.momentum + direction * (1 - rule.momentum)
    return natural - direction * rule.lr, momentum


def bimu_step(natural: Tensor, total: Tensor, rule: BiMUSettings) -> Tensor:
    """λ ← λ − (η·a·g + λ·c/N) / (c + 2a·g·tanh λ + 2a·|g| + 1/η_max),  c = k·(1 − tanh²λ), g = total/S.

    The denominator is never below 1/η_max, because g·tanh λ + |g| ≥ 0.
    """
    metric = sech2(natural) * rule.curvature
    gradient = total * (rule.gain / rule.samples)
    damping = gradient * tanh(natural) * 2 + gradient.abs() * 2 + 1 / rule.max_lr
    return natural - (gradient * rule.lr + natural * metric * (1 / rule.memory_size)) / (metric + damping)


def without_subnormals(x: Tensor) -> Tensor:
    """0 for what is smaller than the smallest normal number.

    Processors compute with such numbers up to a hundred times slower, and a moment whose gradients have ended would
    keep one forever: 0.9 times the smallest number rounds back to it. Half of PMF's moments end so.
    """
    return torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0.0, x)


def adam_direction(
    gradient: Tensor, first: Tensor, second: Tensor, adam: AdamSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's step and its two moments: returns (step, m, v)."""
    first = without_subnormals(first * adam.beta1 + gradient * (1 - adam.beta1))
    second = without_subnormals(second * adam.beta2 + gradient * gradient * (1 - adam.beta2))
    return first / (sqrt(second) * adam.second_scale + adam.eps) * adam.step_size, first, second


def bop_step(weight: Tensor, average: Tensor, gradient: Tensor, rate: float, threshold: float) -> tuple[Tensor, Tensor]:
    """m ← (1 − γ)·m + γ·g, then flip w where w·m > τ; returns (w, m), with w exactly ±1 whatever it was before."""
    weight = sign(weight)
    average = average * (1 - rate) + gradient * rate
    return torch.where(weight * average > threshold, -weight, weight), average


def pmf_logit_gradients(weight: Tensor, gradient: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """∂L/∂ũ₋ and ∂L/∂ũ₊ as the PMF code computes them from ∂L/∂w.

    This is not the true Jacobian: softmax is applied a second time, to β·u, and the identity
    replaces diag(u'). With m = tanh(β·w/2):
        g₋ = −β·g·(1 + m(1 − m)/2),   g₊ = β·g·(1 − m(1 + m)/2).
    The two never vanish together, and Adam normalizes each separately, so keep both.
    """
    m = tanh(weight * (beta / 2))
    g = gradient * beta
    return -(g * (m * (1 - m) * 0.5 + 1)), g * (1 - m * (1 + m) * 0.5)
