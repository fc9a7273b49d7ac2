"""Dropout with the masks of torch, bit for bit, drawn several times faster: torch draws them one element at a time."""

from __future__ import annotations

import threading
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbinn.kernels import native
from bayesbinn.kernels.shortcuts import has_elements

LEAST_ELEMENTS = 1 << 12
"""Below this, copying the generator's state takes longer than drawing."""


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.dropout`: the same result, and torch's generator continues from the same state."""
    suits = training and not inplace and 0 < p < 1 and has_elements(input) and input.numel() >= LEAST_ELEMENTS
    if not suits or not draws_like_torch():
        return F.dropout(input, p, training, inplace)
    keep = 1 - float(p)
    mask = torch.empty_like(input, requires_grad=False)
    bernoulli_(mask, keep, torch.default_generator)
    return input * mask.div_(keep)


_drawing = threading.Lock()


def bernoulli_(values: Tensor, probability: float, generator: torch.Generator) -> None:
    """`values.bernoulli_(probability, generator=generator)` for values that the kernels can use.

    Two threads that draw with this get different numbers. A thread that draws from the same generator with torch at the
    same moment may get the same ones.
    """
    with _drawing:
        state = generator.get_state()
        native.bernoulli(state, probability, values)
        generator.set_state(state)


@cache
def draws_like_torch() -> bool:
    """Whether the compiled generator agrees with this version of torch."""
    if not native.available:
        return False
    ours, theirs = (torch.Generator("cpu").manual_seed(1) for _ in range(2))
    for size in (700, 1000, 3):
        mine, expected = (torch.empty(size, dtype=torch.float32, device="cpu") for _ in range(2))
        expected.bernoulli_(0.8, generator=theirs)
        try:
            bernoulli_(mine, 0.8, ours)
        except (ValueError, RuntimeError):
            return False
        if not torch.equal(mine, expected) or not torch.equal(ours.get_state(), theirs.get_state()):
            return False
    return True
