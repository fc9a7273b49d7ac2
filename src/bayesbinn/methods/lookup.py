"""Looks up the products of linear layers whose weights are all −1 and +1 while a method trains them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bayesbinn.kernels import products


def looking_up(weights: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """Use `kernels.products` for linear layers with these weights; the user's module stays untouched."""
    large = [weight for weight in weights if products.worthwhile(weight)]
    return SignProducts(large) if large else nullcontext()


class SignProducts(TorchFunctionMode):
    """Replaces `torch.nn.functional.linear` for the given weights."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self._weights = {id(weight) for weight in weights}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and not torch.compiler.is_compiling():
            weight = args[1] if len(args) > 1 else kwargs.get("weight")
            if id(weight) in self._weights:
                return products.linear(*args, **kwargs)
        return func(*args, **kwargs)
