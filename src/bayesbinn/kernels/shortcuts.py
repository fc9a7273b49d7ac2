"""Faster ways to compute what torch computes, taken only where nobody could notice the difference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from bayesbinn.kernels import native


class Shortcut(TorchFunctionMode):
    """Replaces one function of torch in a block of code: the subclass says which, and when.

    Torch's own function is called while anything else watches or transforms torch's calls: a compiler, a tracer,
    `torch.func`, forward-mode differentiation, gradient checkpointing, or another mode.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        instead = None if torch.compiler.is_compiling() else self.replacement(func, args, kwargs)
        return (func if instead is None or is_watched() else instead)(*args, **kwargs)

    def replacement(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What to call instead of `func`; None: `func` itself."""
        raise NotImplementedError


def is_watched() -> bool:
    """Whether torch's calls are traced, transformed or replaced by somebody else.

    Only torch's internals can tell. If another version of torch has others, nothing is known, and no shortcut is taken.
    """
    try:
        return _is_watched()
    except (AttributeError, TypeError):
        return True


def _is_watched() -> bool:
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or any(not isinstance(mode, Shortcut) for mode in _get_current_function_mode_stack())
    )


def has_elements(tensor: Tensor) -> bool:
    """Whether it is an ordinary tensor whose elements the kernels can use: not sparse, nested, batched or the like."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor._is_zerotensor()
        and torch._C._has_storage(tensor)
        and native.usable(tensor)
    )
