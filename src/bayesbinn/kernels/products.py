"""Linear layers whose weights are all −1 and +1: the compiled kernels look sums up instead of multiplying.

The result is that of `torch.nn.functional.linear` up to rounding, forward and backward. Only the product of the two
real matrices, the gradient of the weights, is left to torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbinn.kernels import native

LEAST_WEIGHTS = 1 << 18
"""Smaller layers do not repay the packing."""
LEAST_EXAMPLES = 16


def worthwhile(weight: Tensor) -> bool:
    """Whether `linear` may be faster than torch for this weight, should it hold signs."""
    return native.multiplies_signs and weight.dim() == 2 and weight.numel() >= LEAST_WEIGHTS and native.usable(weight)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`: by lookup if the weight holds only signs, otherwise by torch."""
    suits = worthwhile(weight) and _suits(input, weight)
    signs = native.packed_signs(weight.detach()) if suits else None
    if signs is None:
        return F.linear(input, weight, bias)
    y: Tensor = _SignLinear.apply(input, weight, signs)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias


def _suits(x: Tensor, weight: Tensor) -> bool:
    if x.dim() < 2 or x.shape[-1] != weight.shape[1] or x.numel() < LEAST_EXAMPLES * x.shape[-1]:
        return False
    # Autocast would multiply in another dtype.
    return native.usable(x) and not torch.is_autocast_enabled("cpu") and not native.are_transformed()


class _SignLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, signs: native.Signs) -> Tensor:
        # Saved although the signs suffice: autograd then notices if the weight changes before the backward pass.
        ctx.save_for_backward(x, weight)
        ctx.signs = signs
        return signs.times_transposed(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        gradient = gradients[0].contiguous()
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, _ = ctx.needs_input_grad
        of_x = of_weight = None
        if wants_x:
            # With create_graph=True, the derivative of this product is wanted as well.
            is_final = native.usable(gradient) and not torch.is_grad_enabled()
            of_x = ctx.signs.times(gradient) if is_final else gradient @ weight
        if wants_weight:
            rows, columns = weight.shape
            of_weight = gradient.reshape(-1, rows).t() @ x.reshape(-1, columns)
        return of_x, of_weight, None
