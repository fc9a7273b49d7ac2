"""Dropout layers draw their masks faster while a network trains."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from bayesbinn.kernels.dropout import LEAST_ELEMENTS, draws_like_torch, dropout
from bayesbinn.kernels.shortcuts import Shortcut


def faster_dropout(model: nn.Module, batch_size: int) -> AbstractContextManager[Any]:
    """Draw the masks of the model's dropout layers with `bayesbinn.kernels.dropout`: the same masks, faster.

    Watching torch's calls costs more than it saves if all masks are small.
    """
    layers = list(model.modules())
    if not any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in layers):
        return nullcontext()
    widths = [max(weight.shape) for weight in model.parameters() if weight.dim() == 2]
    may_be_large = any(isinstance(layer, _ConvNd) for layer in layers) or any(
        batch_size * width >= LEAST_ELEMENTS for width in widths
    )
    return FasterDropout() if may_be_large and draws_like_torch() else nullcontext()


class FasterDropout(Shortcut):
    """Replaces `torch.nn.functional.dropout`."""

    def replacement(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return dropout if func is F.dropout else None
