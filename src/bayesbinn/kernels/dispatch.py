"""Chooses, tensor by tensor, between the native kernels and the torch twin, and moves the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from bayesbinn.kernels import twin
from bayesbinn.kernels.elementary import tanh
from bayesbinn.kernels.twin import AdamSettings, RuleSettings

# The twin walks through CPU tensors in pieces that stay in the cache; a GPU wants the whole tensor.
CPU_CHUNK = 1 << 15

Tensors = Sequence[Tensor]
MaybeTensors = Sequence[Tensor | None]


def _pieces(tensor: Tensor) -> Iterator[slice]:
    size = tensor.numel()
    chunk = CPU_CHUNK if tensor.device.type == "cpu" else max(size, 1)
    for start in range(0, size, chunk):
        yield slice(start, min(start + chunk, size))


def _flat(tensor: Tensor) -> Tensor:
    """A float32 vector of the elements in logical order: the tensor's own memory where that is possible."""
    return tensor.detach().contiguous().view(-1).to(torch.float32)


def _write(parameter: Tensor, source: Tensor, compute: Callable[[Tensor, int], Tensor]) -> None:
    """p ← compute(source), piece by piece; `compute` also gets the index of a piece's first element.

    In-place torch operations advance autograd's version counter.
    """
    own = parameter.dtype is torch.float32 and parameter.is_contiguous()
    target = parameter.detach().view(-1) if own else torch.empty_like(source).view(-1)
    source = source.view(-1)
    for piece in _pieces(source):
        target[piece] = compute(source[piece], piece.start)
    if not own:
        parameter.detach().copy_(target.view(parameter.shape))


@torch.no_grad()
def first_nonfinite(tensors: Tensors) -> int | None:
    """The index of the first tensor that holds a NaN or an infinity."""
    for index, tensor in enumerate(tensors):
        if not bool(torch.isfinite(tensor).all()):
            return index
    return None


@torch.no_grad()
def write_sign(parameters: Tensors, sources: Tensors) -> None:
    """p ← sign(source)."""
    for parameter, source in zip(parameters, sources, strict=True):
        _write(parameter, source, lambda x, _: twin.sign(x))


@torch.no_grad()
def write_tanh(parameters: Tensors, sources: Tensors, scale: float) -> None:
    """p ← tanh(scale·source)."""
    for parameter, source in zip(parameters, sources, strict=True):
        _write(parameter, source, lambda x, _: tanh(x * scale))


@torch.no_grad()
def write_pmf_weights(parameters: Tensors, logits: Tensors, beta: float) -> None:
    """p ← tanh(β(ũ₊ − ũ₋)/2); `logits` hold ũ₋ and ũ₊ along their first axis."""
    write_tanh(parameters, [pair[1] - pair[0] for pair in logits], beta / 2)


@torch.no_grad()
def write_relaxed_sample(
    parameters: Tensors, naturals: Tensors, keys: Sequence[int], draw: int, temperature: float
) -> None:
    """p ← tanh((λ + δ)/τ)."""
    for parameter, natural, key in zip(parameters, naturals, keys, strict=True):
        _write(parameter, natural, lambda x, at, key=key: twin.relaxed_sample(x, key, draw, at, temperature))  # type: ignore[misc]


@torch.no_grad()
def write_hard_sample(parameters: Tensors, naturals: Tensors, keys: Sequence[int], draw: int) -> None:
    """p ← sign(λ + δ)."""
    for parameter, natural, key in zip(parameters, naturals, keys, strict=True):
        _write(parameter, natural, lambda x, at, key=key: twin.hard_sample(x, key, draw, at))  # type: ignore[misc]


@torch.no_grad()
def accumulate_scaled(
    totals: Tensors,
    naturals: Tensors,
    gradients: Tensors,
    keys: Sequence[int],
    draw: int,
    temperature: float,
    eps: float,
) -> None:
    """total ← total + s⊙g, for the sample that `draw` names."""
    for total, natural, gradient, key in zip(totals, naturals, gradients, keys, strict=True):
        total, natural, gradient = total.view(-1), natural.view(-1), _flat(gradient)
        for piece in _pieces(natural):
            s = twin.gradient_scale(natural[piece], key, draw, piece.start, temperature, eps)
            total[piece] += s * gradient[piece]


@torch.no_grad()
def bayesbinn_update(
    parameters: Tensors,
    naturals: Tensors,
    gradients: Tensors,
    momenta: MaybeTensors,
    priors: MaybeTensors,
    keys: Sequence[int],
    draw: int | None,
    rule: RuleSettings,
) -> None:
    """One step of the Bayesian learning rule on λ; the parameters then hold the new mode.

    `draw` names the sample that the gradients belong to; None says that they are Σ s⊙g already.
    """
    for parameter, natural, gradient, momentum, prior, key in zip(
        parameters, naturals, gradients, momenta, priors, keys, strict=True
    ):
        natural, gradient = natural.view(-1), _flat(gradient)
        for piece in _pieces(natural):
            scaled = gradient[piece]
            if draw is not None:
                s = twin.gradient_scale(natural[piece], key, draw, piece.start, rule.temperature, rule.eps)
                scaled = s * scaled
            new, average = twin.natural_gradient_step(
                natural[piece],
                scaled,
                None if momentum is None else momentum.view(-1)[piece],
                None if prior is None else prior.view(-1)[piece],
                rule,
            )
            natural[piece] = new
            if momentum is not None and average is not None:
                momentum.view(-1)[piece] = average
        _write(parameter, natural, lambda x, _: twin.sign(x))


@torch.no_grad()
def adam(values: Tensors, gradients: Tensors, firsts: Tensors, seconds: Tensors, settings: AdamSettings) -> None:
    """One Adam step on float32 `values`, in place (weight decay is coupled, as Adam's own)."""
    for value, gradient, first, second in zip(values, gradients, firsts, seconds, strict=True):
        value, gradient, first, second = (value.detach().view(-1), _flat(gradient), first.view(-1), second.view(-1))
        for piece in _pieces(value):
            g = gradient[piece]
            if settings.weight_decay:
                g = g + value[piece] * settings.weight_decay
            step, first[piece], second[piece] = twin.adam_direction(g, first[piece], second[piece], settings)
            value[piece] = value[piece] - step


@torch.no_grad()
def ste_update(
    parameters: Tensors,
    latents: Tensors,
    gradients: Tensors,
    firsts: Tensors,
    seconds: Tensors,
    clip: float,
    settings: AdamSettings,
) -> None:
    """Adam on the latent weights with the gradient at their signs, then clip; p ← sign(latent)."""
    adam(latents, gradients, firsts, seconds, settings)
    for latent in latents:
        latent.clamp_(-clip, clip)
    write_sign(parameters, latents)


@torch.no_grad()
def bop_update(parameters: Tensors, averages: Tensors, gradients: Tensors, rate: float, threshold: float) -> None:
    """One step of Bop; the weights themselves are the state that flips."""
    for parameter, average, gradient in zip(parameters, averages, gradients, strict=True):
        flipped, new = twin.bop_step(_flat(parameter), average.view(-1), _flat(gradient), rate, threshold)
        average.view(-1).copy_(new)
        parameter.detach().copy_(flipped.view(parameter.shape))


@torch.no_grad()
def pmf_update(
    parameters: Tensors,
    logits: Tensors,
    gradients: Tensors,
    firsts: Tensors,
    seconds: Tensors,
    beta: float,
    settings: AdamSettings,
) -> None:
    """Adam on the two logits of each weight; the parameters then hold the rounded weights."""
    for parameter, pair, gradient, first, second in zip(parameters, logits, gradients, firsts, seconds, strict=True):
        weight = tanh((pair[1] - pair[0]).view(-1) * (beta / 2))
        for row, g in enumerate(twin.pmf_logit_gradients(weight, _flat(gradient), beta)):
            adam([pair[row]], [g], [first[row]], [second[row]], settings)
        _write(parameter, pair[1] - pair[0], lambda x, _: twin.sign(x))
