"""Every element-wise kernel, one row each: its name, its buffers, its settings and its reference.

A row is a function on the buffers of one parameter, computed with the pure functions of `reference`. Its
positional-only arguments are the buffers, the others the settings. `@kernel` makes it a function on lists of buffers,
all parameters of a group in one call, and calls the native kernel of the same name if the tensors allow it. The native
kernel has the same buffers and settings (csrc/training/kernels.hpp), possibly in another order.

The first buffer is the one that autograd watches: writing to it advances its version counter.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesbinn.kernels import reference
from bayesbinn.kernels.dispatch import fill, kernel, pieces
from bayesbinn.kernels.elementary import tanh
from bayesbinn.kernels.reference import AdamSettings, BiMUSettings, RuleSettings

__all__ = [
    "accumulate_scaled",
    "accumulate_slope",
    "adam",
    "bayesbinn_update",
    "bayesbinn_update_from_slopes",
    "bimu_update",
    "bop_update",
    "normal",
    "pmf_update",
    "restore_mode",
    "ste_update",
    "write_hard_sample",
    "write_pmf_sign",
    "write_pmf_weights",
    "write_relaxed_sample",
    "write_sign",
    "write_tanh",
    "write_training_sample",
]


@kernel
def write_sign(parameter: Tensor, source: Tensor, /) -> None:
    """p ← sign(source)."""
    fill(parameter, source, lambda x, _: reference.sign(x))


@kernel
def write_tanh(parameter: Tensor, source: Tensor, /, scale: float) -> None:
    """p ← tanh(scale·source)."""
    fill(parameter, source, lambda x, _: tanh(x * scale))


@kernel
def write_pmf_weights(parameter: Tensor, logits: Tensor, /, beta: float) -> None:
    """p ← tanh(β(ũ₊ − ũ₋)/2); `logits` holds ũ₋ and ũ₊ along its first axis."""
    fill(parameter, logits[1] - logits[0], lambda x, _: tanh(x * (beta / 2)))


@kernel
def write_pmf_sign(parameter: Tensor, logits: Tensor, /) -> None:
    """p ← sign(ũ₊ − ũ₋)."""
    fill(parameter, logits[1] - logits[0], lambda x, _: reference.sign(x))


@kernel
def write_relaxed_sample(parameter: Tensor, natural: Tensor, key: int, /, draw: int, temperature: float) -> None:
    """p ← tanh((λ + δ)/τ)."""
    fill(parameter, natural, lambda x, first: reference.relaxed_sample(x, key, draw, first, temperature))


@kernel
def write_training_sample(
    parameter: Tensor, natural: Tensor, slope: Tensor | None, key: int, /, draw: int, temperature: float, held: bool
) -> None:
    """p ← tanh((λ + δ)/τ), and slope ← 1 − w² if `slope` is given.

    `held` promises that p is sign(λ), so that the native kernel can skip the weights that no noise can flip.
    """
    fill(parameter, natural, lambda x, first: reference.relaxed_sample(x, key, draw, first, temperature))
    if slope is not None:
        fill(slope, natural, lambda x, first: reference.sample_slope(x, key, draw, first, temperature))


@kernel
def restore_mode(parameter: Tensor, natural: Tensor, /, temperature: float) -> None:
    """p ← sign(λ) after `write_training_sample`, which left it in the weights that no noise can flip."""
    fill(parameter, natural, lambda x, _: reference.sign(x))


@kernel
def write_hard_sample(parameter: Tensor, natural: Tensor, key: int, /, draw: int) -> None:
    """p ← sign(λ + δ)."""
    fill(parameter, natural, lambda x, first: reference.hard_sample(x, key, draw, first))


@kernel
def accumulate_scaled(
    total: Tensor, natural: Tensor, gradient: Tensor, key: int, /, draw: int, temperature: float, eps: float
) -> None:
    """total ← total + s⊙g, for the sample with number `draw`."""
    total, natural, gradient = total.view(-1), natural.view(-1), gradient.view(-1)
    for piece in pieces(natural):
        s = reference.gradient_scale(natural[piece], key, draw, piece.start, temperature, eps)
        total[piece] += s * gradient[piece]


@kernel
def bayesbinn_update(
    parameter: Tensor,
    natural: Tensor,
    gradient: Tensor,
    momentum: Tensor | None,
    prior: Tensor | None,
    key: int,
    /,
    draw: int | None,
    rule: RuleSettings,
) -> None:
    """One step of the Bayesian learning rule on λ; the parameter then holds the new mode.

    `draw` is the number of the sample behind the gradient; None means that the gradient is already Σ s⊙g.
    """
    _natural_gradient_step(
        parameter,
        natural,
        gradient,
        momentum,
        prior,
        rule,
        lambda x, piece: (
            1.0 if draw is None else reference.gradient_scale(x, key, draw, piece.start, rule.temperature, rule.eps)
        ),
    )


@kernel
def bayesbinn_update_from_slopes(
    parameter: Tensor,
    natural: Tensor,
    gradient: Tensor,
    slope: Tensor,
    momentum: Tensor | None,
    prior: Tensor | None,
    /,
    rule: RuleSettings,
) -> None:
    """The same step, with the 1 − w² that `write_training_sample` stored."""
    _natural_gradient_step(
        parameter,
        natural,
        gradient,
        momentum,
        prior,
        rule,
        lambda x, piece: reference.scale_from_slope(x, slope.view(-1)[piece], rule.temperature, rule.eps),
    )


def _natural_gradient_step(
    parameter: Tensor,
    natural: Tensor,
    gradient: Tensor,
    momentum: Tensor | None,
    prior: Tensor | None,
    rule: RuleSettings,
    scale: Callable[[Tensor, slice], Tensor | float],
) -> None:
    flat, gradient = natural.view(-1), gradient.view(-1)
    for piece in pieces(flat):
        scaled = scale(flat[piece], piece) * gradient[piece]
        new, average = reference.natural_gradient_step(
            flat[piece],
            scaled,
            None if momentum is None else momentum.view(-1)[piece],
            None if prior is None else prior.view(-1)[piece],
            rule,
        )
        flat[piece] = new
        if momentum is not None and average is not None:
            momentum.view(-1)[piece] = average
    fill(parameter, natural, lambda x, _: reference.sign(x))


@kernel
def accumulate_slope(total: Tensor, slope: Tensor, gradient: Tensor, /, temperature: float) -> None:
    """total ← total + (1 − w²)/τ⊙g: ∂ℓ/∂λ by the chain rule, with the 1 − w² that `write_training_sample` stored."""
    total, slope, gradient = total.view(-1), slope.view(-1), gradient.view(-1)
    for piece in pieces(total):
        total[piece] += slope[piece] * gradient[piece] * (1 / temperature)


@kernel
def bimu_update(parameter: Tensor, natural: Tensor, total: Tensor, /, bimu: BiMUSettings) -> None:
    """One step of BiMU on λ from the sum of the samples' ∂ℓ/∂λ; the parameter then holds the new mode."""
    flat, total = natural.view(-1), total.view(-1)
    for piece in pieces(flat):
        flat[piece] = reference.bimu_step(flat[piece], total[piece], bimu)
    fill(parameter, natural, lambda x, _: reference.sign(x))


def _adam(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, settings: AdamSettings) -> None:
    value, gradient, first, second = (x.detach().view(-1) for x in (value, gradient, first, second))
    for piece in pieces(value):
        g = gradient[piece]
        if settings.weight_decay:
            g = g + value[piece] * settings.weight_decay
        step, first[piece], second[piece] = reference.adam_direction(g, first[piece], second[piece], settings)
        value[piece] = value[piece] - step


@kernel
def adam(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, /, settings: AdamSettings) -> None:
    """One Adam step, in place (weight decay is coupled, as in Adam)."""
    _adam(value, gradient, first, second, settings)


@kernel
def ste_update(
    parameter: Tensor,
    latent: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    /,
    clip: float,
    settings: AdamSettings,
) -> None:
    """Adam on the latent weights with the gradient at their signs, then clip; p ← sign(latent)."""
    _adam(latent, gradient, first, second, settings)
    latent.clamp_(-clip, clip)
    fill(parameter, latent, lambda x, _: reference.sign(x))


@kernel
def bop_update(parameter: Tensor, average: Tensor, gradient: Tensor, /, rate: float, threshold: float) -> None:
    """One step of Bop; the state that flips is the weights, or their signs if a user changed them."""
    flipped, new = reference.bop_step(parameter.detach(), average, gradient, rate, threshold)
    average.copy_(new)
    parameter.detach().copy_(flipped)


@kernel
def pmf_update(
    parameter: Tensor,
    logits: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    /,
    beta: float,
    settings: AdamSettings,
) -> None:
    """Adam on the two logits of each weight; the parameter then holds the rounded weights."""
    weight = tanh((logits[1] - logits[0]) * (beta / 2))
    for row, g in enumerate(reference.pmf_logit_gradients(weight, gradient, beta)):
        _adam(logits[row], g, first[row], second[row], settings)
    fill(parameter, logits[1] - logits[0], lambda x, _: reference.sign(x))


# ---- built from them --------------------------------------------------------------------------


def normal(key: int, draw: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal numbers: √2·erfinv(2u − 1), where 2u − 1 = tanh(½·log(u/(1 − u))) is a sample at λ = 0, τ = 1."""
    centered = torch.zeros(count, device=device)
    write_relaxed_sample([centered], [torch.zeros_like(centered)], [key], draw, 1.0)
    return torch.erfinv(centered) * math.sqrt(2)
