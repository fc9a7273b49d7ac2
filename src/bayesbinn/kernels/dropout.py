"""Dropout with the masks of torch, bit for bit, drawn several times faster: torch draws them one element at a time."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbinn.kernels import native

LEAST_ELEMENTS = 1 << 12
"""Below this, copying the generator's state takes longer than drawing."""


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.dropout`: the same result, and torch's generator continues from the same state."""
    suits = training and not inplace and 0 < p < 1 and input.numel() >= LEAST_ELEMENTS
    if not suits or not native.usable(input) or native.are_transformed() or not draws_like_torch():
        return F.dropout(input, p, training, inplace)
    mask = torch.empty_like(input, requires_grad=False)
    bernoulli_(mask, 1 - p, torch.default_generator)
    return input * mask.div_(1 - p)


def bernoulli_(values: Tensor, probability: float, generator: torch.Generator) -> None:
    """`values.bernoulli_(probability, generator=generator)` for values that the kernels can use."""
    state = generator.get_state()
    native.bernoulli(state, probability, values)
    generator.set_state(state)


@cache
def draws_like_torch() -> bool:
    """Whether the compiled generator agrees with this version of torch."""
    if not native.available:
        return False
    ours, theirs = (torch.Generator().manual_seed(1) for _ in range(2))
    for size in (700, 1000, 3):
        mine, expected = torch.empty(size), torch.empty(size).bernoulli_(0.8, generator=theirs)
        try:
            bernoulli_(mine, 0.8, ours)
        except (ValueError, RuntimeError):
            return False
        if not torch.equal(mine, expected) or not torch.equal(ours.get_state(), theirs.get_state()):
            return False
    return True
