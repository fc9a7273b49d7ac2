"""A trained network as a pure function of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bayesbinn.binary import canonical_name
from bayesbinn.errors import InvalidInput


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients; every training flag and the random state are restored afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices):
            yield
    finally:
        for module, training in flags:
            module.training = training


class PureNetwork:
    """A model as a function of its weights and buffers: calls write to copies, never to the model.

    Tensors are passed by canonical name; those not passed are the model's own.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrapped(model)
        named = [*self.model.named_parameters(remove_duplicate=False), *self.model.named_buffers()]
        self._actual = {canonical_name(name): (name, tensor) for name, tensor in named}

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """One network. The model may write to `tensors` (BatchNorm in training mode)."""
        output = functional_call(self.model, {**self._buffers(), **self._own(tensors)}, (x,))
        return _checked_output(output, x)

    def stacked(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Many networks at once: `tensors` and the result have one more axis, the first."""
        buffers, own = self._buffers(), self._own(tensors)
        call = vmap(lambda each: functional_call(self.model, {**buffers, **each}, (x,)), randomness="error")
        output: Tensor = call(own)
        return output

    def _own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        named = {}
        for canonical, value in tensors.items():
            name, own = self._actual[canonical]
            named[name] = value.to(own.device, own.dtype)
        return named

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _checked_output(output: Any, x: Tensor) -> Tensor:
    if not isinstance(output, Tensor):
        raise InvalidInput(f"the model returned a {type(output).__name__}; it must return one tensor")
    if output.ndim == 0 or len(output) != len(x):
        raise InvalidInput(
            f"the model returned shape {tuple(output.shape)} for {len(x)} inputs; the first axis must match the inputs"
        )
    return output
