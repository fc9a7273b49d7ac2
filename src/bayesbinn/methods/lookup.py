"""Looks up the products of linear layers whose weights are all −1 and +1 while a method trains them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from bayesbinn.kernels import products
from bayesbinn.kernels.shortcuts import Shortcut

_ARGUMENTS = {"input", "weight", "bias"}


def looking_up(weights: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """Use `kernels.products` for linear layers with these weights; the user's module stays untouched."""
    large = [weight for weight in weights if products.worthwhile(weight)]
    return SignProducts(large) if large else nullcontext()


class SignProducts(Shortcut):
    """Replaces `torch.nn.functional.linear` for the given weights."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self._weights = {id(weight) for weight in weights}

    def replacement(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is not F.linear or not _ARGUMENTS.issuperset(kwargs):
            return None
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        return products.linear if id(weight) in self._weights else None
