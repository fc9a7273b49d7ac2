"""Chooses between the native kernels and the torch twin.

Each function below is the twin's sweep over one parameter. `_kernel` makes it accept lists of
tensors, all parameters of a group in one call, and hands the call to the native kernel of the
same name, if there is one, where memory allows: float32, contiguous, on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from bayesbinn.kernels import native
from bayesbinn.kernels import reference as twin
from bayesbinn.kernels.elementary import tanh
from bayesbinn.kernels.reference import AdamSettings, BiMUSettings, RuleSettings

# The twin walks through CPU tensors in pieces that stay in the cache; a GPU wants the whole tensor.
CPU_CHUNK = 1 << 15


def _kernel(lists: int, has_native: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Lift a sweep over one parameter, whose first `lists` arguments belong to it, to lists of parameters."""

    def lift(sweep: Callable[..., None]) -> Callable[..., None]:
        compiled = getattr(native, sweep.__name__) if has_native else None

        @wraps(sweep)
        def run(*arguments: Any) -> None:
            columns, scalars = arguments[:lists], arguments[lists:]
            tensors = [x for column in columns for x in column if x is not None and type(x) is not int]
            if compiled is not None and native.usable(*tensors):
                compiled(*arguments)
                return
            for row in zip(*columns, strict=True):
                staged = [_stage(x) for x in row]
                if compiled is not None and native.usable(*(x for x in staged if isinstance(x, Tensor))):
                    compiled(*([x] for x in staged), *scalars)
                else:
                    with torch.no_grad():
                        sweep(*staged, *scalars)
                if staged[0] is not row[0]:
                    row[0].detach().copy_(staged[0])

        return run

    return lift


def _stage(x: Any) -> Any:
    """A float32 tensor with its elements in logical order: itself where it is one already."""
    if not isinstance(x, Tensor) or (x.dtype is torch.float32 and x.is_contiguous() and not x.is_neg()):
        return x
    return x.detach().to(torch.float32).contiguous().resolve_neg()


def _pieces(tensor: Tensor) -> Iterator[slice]:
    size = tensor.numel()
    chunk = CPU_CHUNK if tensor.device.type == "cpu" else max(size, 1)
    for start in range(0, size, chunk):
        yield slice(start, min(start + chunk, size))


def _fill(target: Tensor, source: Tensor, compute: Callable[[Tensor, int], Tensor]) -> None:
    """target ← compute(source), piece by piece; `compute` also gets the index of a piece's first element.

    In-place torch operations advance autograd's version counter.
    """
    target, source = target.detach().view(-1), source.view(-1)
    for piece in _pieces(source):
        target[piece] = compute(source[piece], piece.start)


def first_beyond(tensors: Sequence[Tensor], limit: float) -> int | None:
    """The index of the first tensor that holds a value beyond ±`limit`, an infinity or a NaN."""
    limit = min(limit, torch.finfo(torch.float32).max)
    if native.usable(*tensors):
        return native.first_beyond(tensors, limit)
    for index, tensor in enumerate(tensors):
        if not bool((tensor.detach().to(torch.float32).abs() <= limit).all()):
            return index
    return None


@_kernel(lists=2)
def write_sign(parameter: Tensor, source: Tensor) -> None:
    """p ← sign(source)."""
    _fill(parameter, source, lambda x, _: twin.sign(x))


@_kernel(lists=2)
def write_tanh(parameter: Tensor, source: Tensor, scale: float) -> None:
    """p ← tanh(scale·source)."""
    _fill(parameter, source, lambda x, _: tanh(x * scale))


@_kernel(lists=2)
def write_pmf_weights(parameter: Tensor, logits: Tensor, beta: float) -> None:
    """p ← tanh(β(ũ₊ − ũ₋)/2); `logits` hold ũ₋ and ũ₊ along their first axis."""
    _fill(parameter, logits[1] - logits[0], lambda x, _: tanh(x * (beta / 2)))


@_kernel(lists=2)
def write_pmf_sign(parameter: Tensor, logits: Tensor) -> None:
    """p ← sign(ũ₊ − ũ₋)."""
    _fill(parameter, logits[1] - logits[0], lambda x, _: twin.sign(x))


@_kernel(lists=3)
def write_relaxed_sample(parameter: Tensor, natural: Tensor, key: int, draw: int, temperature: float) -> None:
    """p ← tanh((λ + δ)/τ)."""
    _fill(parameter, natural, lambda x, first: twin.relaxed_sample(x, key, draw, first, temperature))


@_kernel(lists=4)
def write_training_sample(
    parameter: Tensor, natural: Tensor, slope: Tensor | None, key: int, draw: int, temperature: float, held: bool
) -> None:
    """p ← tanh((λ + δ)/τ), and 1 − w² into `slope` where there is one.

    `held` promises that p is sign(λ), which spares the native kernel the weights that no noise can turn.
    """
    _fill(parameter, natural, lambda x, first: twin.relaxed_sample(x, key, draw, first, temperature))
    if slope is not None:
        _fill(slope, natural, lambda x, first: twin.sample_slope(x, key, draw, first, temperature))


@_kernel(lists=2)
def restore_mode(parameter: Tensor, natural: Tensor, temperature: float) -> None:
    """p ← sign(λ) after `write_training_sample`, which left the weights that no noise can turn at it."""
    _fill(parameter, natural, lambda x, _: twin.sign(x))


@_kernel(lists=3)
def write_hard_sample(parameter: Tensor, natural: Tensor, key: int, draw: int) -> None:
    """p ← sign(λ + δ)."""
    _fill(parameter, natural, lambda x, first: twin.hard_sample(x, key, draw, first))


def normal(key: int, draw: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard normal numbers: √2·erfinv(2u − 1), where 2u − 1 = tanh(½·log(u/(1 − u))) is a sample at λ = 0, τ = 1."""
    centred = torch.zeros(count, device=device)
    write_relaxed_sample([centred], [torch.zeros_like(centred)], [key], draw, 1.0)
    return torch.erfinv(centred) * math.sqrt(2)


@_kernel(lists=4)
def accumulate_scaled(
    total: Tensor, natural: Tensor, gradient: Tensor, key: int, draw: int, temperature: float, eps: float
) -> None:
    """total ← total + s⊙g, for the sample that `draw` names."""
    total, natural, gradient = total.view(-1), natural.view(-1), gradient.view(-1)
    for piece in _pieces(natural):
        s = twin.gradient_scale(natural[piece], key, draw, piece.start, temperature, eps)
        total[piece] += s * gradient[piece]


@_kernel(lists=6)
def bayesbinn_update(
    parameter: Tensor,
    natural: Tensor,
    gradient: Tensor,
    momentum: Tensor | None,
    prior: Tensor | None,
    key: int,
    draw: int | None,
    rule: RuleSettings,
) -> None:
    """One step of the Bayesian learning rule on λ; the parameter then holds the new mode.

    `draw` names the sample that the gradient belongs to; None says that it is Σ s⊙g already.
    """
    _natural_gradient_step(
        parameter,
        natural,
        gradient,
        momentum,
        prior,
        rule,
        lambda x, piece: (
            1.0 if draw is None else twin.gradient_scale(x, key, draw, piece.start, rule.temperature, rule.eps)
        ),
    )


@_kernel(lists=6)
def bayesbinn_update_from_slopes(
    parameter: Tensor,
    natural: Tensor,
    gradient: Tensor,
    slope: Tensor,
    momentum: Tensor | None,
    prior: Tensor | None,
    rule: RuleSettings,
) -> None:
    """The same step with 1 − w² as `write_training_sample` kept it."""
    _natural_gradient_step(
        parameter,
        natural,
        gradient,
        momentum,
        prior,
        rule,
        lambda x, piece: twin.scale_from_slope(x, slope.view(-1)[piece], rule.temperature, rule.eps),
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
    for piece in _pieces(flat):
        scaled = scale(flat[piece], piece) * gradient[piece]
        new, average = twin.natural_gradient_step(
            flat[piece],
            scaled,
            None if momentum is None else momentum.view(-1)[piece],
            None if prior is None else prior.view(-1)[piece],
            rule,
        )
        flat[piece] = new
        if momentum is not None and average is not None:
            momentum.view(-1)[piece] = average
    _fill(parameter, natural, lambda x, _: twin.sign(x))


@_kernel(lists=3, has_native=False)
def accumulate_slope(total: Tensor, slope: Tensor, gradient: Tensor, temperature: float) -> None:
    """total ← total + (1 − w²)/τ⊙g: ∂ℓ/∂λ by the chain rule, with 1 − w² as `write_training_sample` kept it."""
    total, slope, gradient = total.view(-1), slope.view(-1), gradient.view(-1)
    for piece in _pieces(total):
        total[piece] += slope[piece] * gradient[piece] * (1 / temperature)


@_kernel(lists=3, has_native=False)
def bimu_update(parameter: Tensor, natural: Tensor, total: Tensor, rule: BiMUSettings) -> None:
    """One step of BiMU on λ from the samples' ∂ℓ/∂λ added up; the parameter then holds the new mode."""
    flat, total = natural.view(-1), total.view(-1)
    for piece in _pieces(flat):
        flat[piece] = twin.bimu_step(flat[piece], total[piece], rule)
    _fill(parameter, natural, lambda x, _: twin.sign(x))


def _adam(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, settings: AdamSettings) -> None:
    value, gradient, first, second = (x.detach().view(-1) for x in (value, gradient, first, second))
    for piece in _pieces(value):
        g = gradient[piece]
        if settings.weight_decay:
            g = g + value[piece] * settings.weight_decay
        step, first[piece], second[piece] = twin.adam_direction(g, first[piece], second[piece], settings)
        value[piece] = value[piece] - step


@_kernel(lists=4)
def adam(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, settings: AdamSettings) -> None:
    """One Adam step, in place (weight decay is coupled, as Adam's own)."""
    _adam(value, gradient, first, second, settings)


@_kernel(lists=5)
def ste_update(
    parameter: Tensor,
    latent: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    clip: float,
    settings: AdamSettings,
) -> None:
    """Adam on the latent weights with the gradient at their signs, then clip; p ← sign(latent)."""
    _adam(latent, gradient, first, second, settings)
    latent.clamp_(-clip, clip)
    _fill(parameter, latent, lambda x, _: twin.sign(x))


@_kernel(lists=3)
def bop_update(parameter: Tensor, average: Tensor, gradient: Tensor, rate: float, threshold: float) -> None:
    """One step of Bop; the weights themselves are the state that flips, or their signs if a user changed them."""
    flipped, new = twin.bop_step(parameter.detach(), average, gradient, rate, threshold)
    average.copy_(new)
    parameter.detach().copy_(flipped)


@_kernel(lists=5)
def pmf_update(
    parameter: Tensor,
    logits: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    beta: float,
    settings: AdamSettings,
) -> None:
    """Adam on the two logits of each weight; the parameter then holds the rounded weights."""
    weight = tanh((logits[1] - logits[0]) * (beta / 2))
    for row, g in enumerate(twin.pmf_logit_gradients(weight, gradient, beta)):
        _adam(logits[row], g, first[row], second[row], settings)
    _fill(parameter, logits[1] - logits[0], lambda x, _: twin.sign(x))
