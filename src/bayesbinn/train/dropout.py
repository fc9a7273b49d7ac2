"""Dropout layers draw their masks faster while a network trains."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bayesbinn.kernels.dropout import draws_like_torch, dropout


def faster_dropout(model: nn.Module) -> AbstractContextManager[Any]:
    """Draw the masks of the model's dropout layers with `bayesbinn.kernels.dropout`: the same masks, faster."""
    has_dropout = any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in model.modules())
    return FasterDropout() if has_dropout and draws_like_torch() else nullcontext()


class FasterDropout(TorchFunctionMode):
    """Replaces `torch.nn.functional.dropout`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        chosen = dropout if func is F.dropout and not torch.compiler.is_compiling() else func
        return chosen(*args, **(kwargs or {}))
