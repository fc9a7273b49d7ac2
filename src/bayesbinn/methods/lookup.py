"""Gives linear layers the products of `kernels.products`, in training and in evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from bayesbinn.kernels import products
from bayesbinn.kernels.shortcuts import Shortcut

_ARGUMENTS = {"input", "weight", "bias"}


def looking_up(weights: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """Use `kernels.products` for linear layers with these weights; the user's module stays untouched."""
    return _replacing(products.linear, weights)


def looking_up_without_gradients(weights: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """The same in an evaluation under `torch.no_grad`."""
    return _replacing(products.linear_without_gradients, weights)


def _replacing(linear: Callable[..., Tensor], weights: Iterable[Tensor]) -> AbstractContextManager[Any]:
    large = [weight for weight in weights if products.worthwhile(weight)]
    return SignProducts(linear, large) if large else nullcontext()


class SignProducts(Shortcut):
    """Replaces `torch.nn.functional.linear` for the given weights."""

    def __init__(self, linear: Callable[..., Tensor], weights: list[Tensor]) -> None:
        super().__init__()
        self._linear, self._weights = linear, {id(weight) for weight in weights}

    def replacement(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is not F.linear or not _ARGUMENTS.issuperset(kwargs):
            return None
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        return self._linear if id(weight) in self._weights else None
