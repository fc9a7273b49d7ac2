"""Large linear layers in training: where all weights are −1 and +1, the compiled kernels look sums up.

The result is that of `torch.nn.functional.linear` up to rounding, forward and backward. The gradient of the weights is
a product of two real matrices, whatever the weights are, and so are the others if the weights are real. AVX-512 has a
kernel for both gradients, and on AMD's processors oneDNN is faster than MKL, torch's first choice; what remains is left
to torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbinn.environment import processor
from bayesbinn.kernels import native
from bayesbinn.kernels.shortcuts import has_elements, is_watched

LEAST_WEIGHTS = 1 << 18
LEAST_SIDE = 64
LEAST_EXAMPLES = 32
"""Smaller and narrower layers and batches do not repay the packing and the tables."""

# MKL uses AVX-512 on Intel's processors only.
_prefers_onednn = native.multiplies_outer and "AMD" in processor() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def worthwhile(weight: Tensor) -> bool:
    """Whether `linear` may be faster than torch for this weight."""
    if not native.multiplies_signs or weight.dim() != 2 or weight.numel() < LEAST_WEIGHTS:
        return False
    return min(weight.shape) >= LEAST_SIDE and has_elements(weight)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` in training, by lookup if the weight holds only signs."""
    # Without gradients, this may be the first pass of a checkpoint, which torch repeats without us.
    if not (torch.is_grad_enabled() and worthwhile(weight) and _suits(input, weight, bias)):
        return F.linear(input, weight, bias)
    signs = native.packed_signs(weight.detach())
    if signs is not None:
        y: Tensor = _SignLinear.apply(input, weight, signs)  # type: ignore[no-untyped-call]
    elif native.multiplies_outer and weight.requires_grad:
        y = _RealLinear.apply(input, weight)  # type: ignore[no-untyped-call]
    else:
        return F.linear(input, weight, bias)
    return y if bias is None else y + bias


def linear_without_gradients(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same where nobody wants gradients and no pass is repeated, as in an evaluation."""
    signs = None if torch.is_grad_enabled() else _signs(input, weight, bias)
    if signs is None:
        return F.linear(input, weight, bias)
    y = signs.times_transposed(input)
    return y if bias is None else y.add_(bias)


def _signs(x: Tensor, weight: Tensor, bias: Tensor | None) -> native.Signs | None:
    return native.packed_signs(weight.detach()) if worthwhile(weight) and _suits(x, weight, bias) else None


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if not has_elements(x) or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        return False
    if bias is not None and not (has_elements(bias) and bias.shape == weight.shape[:1]):
        return False
    # Autocast would multiply in another dtype.
    return not torch.is_autocast_enabled("cpu") and x.numel() >= LEAST_EXAMPLES * x.shape[-1]


class _SignLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, signs: native.Signs) -> Tensor:
        # As in torch, the weight is only needed for the gradient of x. The signs would suffice, but autograd then
        # notices if the weight changes before the backward pass.
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None)
        ctx.signs = signs
        return signs.times_transposed(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        return *_gradients(ctx, gradients[0], ctx.signs), None


class _RealLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None)
        return _times_transposed(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return _gradients(ctx, gradients[0], None)


def _gradients(ctx: Any, gradient: Tensor, signs: native.Signs | None) -> tuple[Tensor | None, Tensor | None]:
    """Of the inputs, gradient·W, and of the weight, gradientᵀ·x."""
    gradient = gradient.contiguous()
    x, weight = ctx.saved_tensors
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    # With create_graph=True, the derivatives of these products are wanted as well.
    is_final = has_elements(gradient) and not torch.is_grad_enabled() and not is_watched()
    times = _outer if is_final and native.multiplies_outer else _by_torch
    of_outputs, inputs = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
    of_x = of_weight = None
    if wants_x and signs is not None:
        of_x = signs.times(gradient) if is_final else gradient @ weight
    elif wants_x:
        of_x = times(of_outputs.t(), weight).view(x.shape)
    if wants_weight:
        of_weight = times(of_outputs, inputs)
    return of_x, of_weight


def _times_transposed(x: Tensor, weight: Tensor) -> Tensor:
    """x·Wᵀ for a real weight."""
    if _prefers_onednn and torch.backends.mkldnn.enabled and torch.backends.mkldnn.is_available():
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return y
    return F.linear(x, weight)


def _by_torch(a: Tensor, b: Tensor) -> Tensor:
    return a.t() @ b


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ·b. One of the two has as many rows or columns as there are examples, so copying a costs little."""
    a = a.contiguous()
    return native.outer(a, b) if native.usable(a, b) else a.t() @ b
