"""Chooses between a native kernel and its reference.

`kernel` turns a row of `table`, a function on the buffers of one parameter, into a function on lists of buffers. It
calls the native kernel if the tensors allow it (float32, contiguous, on the CPU) and otherwise runs the row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from bayesbinn.kernels import native as compiled

# The reference processes CPU tensors in chunks that stay in the cache; a GPU works best on the whole tensor.
CPU_CHUNK = 1 << 15


@dataclass(frozen=True)
class Kernel:
    """One row of the table."""

    name: str
    buffers: tuple[str, ...]
    """For each parameter: a tensor, or the key of its noise."""
    settings: tuple[str, ...]
    """Scalars, and named tuples of scalars, that all parameters share."""
    reference: Callable[..., None]
    """Works on the buffers of one parameter."""
    native: Callable[..., None] | None
    """Works on lists of buffers that `native.usable` accepts; None if it is not installed."""


KERNELS: dict[str, Kernel] = {}


def kernel(row: Callable[..., None]) -> Callable[..., None]:
    """Decorator for a row. Its positional-only arguments are the buffers: the first is written, the rest are state."""
    parameters = inspect.signature(row).parameters.values()
    buffers = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY)
    settings = tuple(p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY)
    name, lists, count = row.__name__, len(buffers), len(buffers) + len(settings)
    of_tensors = [index for index, buffer in enumerate(buffers) if buffer != "key"]
    in_place = compiled.compiled(name, buffers, settings) if compiled.available else None
    KERNELS[name] = Kernel(name, buffers, settings, row, in_place)

    @wraps(row)
    def run(*arguments: Any) -> None:
        if len(arguments) != count:
            raise TypeError(f"{name} takes {', '.join(buffers + settings)}; got {len(arguments)} arguments")
        tensors = [x for index in of_tensors for x in arguments[index] if x is not None]
        if in_place is not None and compiled.usable(*tensors):
            in_place(*arguments)
            return
        columns, scalars = arguments[:lists], arguments[lists:]
        for values in zip(*columns, strict=True):
            staged = [_stage(x) for x in values]
            if in_place is not None and compiled.usable(*(x for x in staged if isinstance(x, Tensor))):
                in_place(*([x] for x in staged), *scalars)
            else:
                with torch.no_grad():
                    row(*staged, *scalars)
            if staged[0] is not values[0]:
                values[0].detach().copy_(staged[0])

    return run


def _stage(x: Any) -> Any:
    """The tensor as float32 with its elements in logical order; returned unchanged if it already is."""
    if not isinstance(x, Tensor) or (x.dtype is torch.float32 and x.is_contiguous() and not x.is_neg()):
        return x
    return x.detach().to(torch.float32).contiguous().resolve_neg()


def pieces(tensor: Tensor) -> Iterator[slice]:
    """The slices in which a row processes a flat tensor."""
    size = tensor.numel()
    chunk = CPU_CHUNK if tensor.device.type == "cpu" else max(size, 1)
    for start in range(0, size, chunk):
        yield slice(start, min(start + chunk, size))


def fill(target: Tensor, source: Tensor, compute: Callable[[Tensor, int], Tensor]) -> None:
    """target ← compute(source), piece by piece; `compute` also gets the index of a piece's first element.

    In-place torch operations advance autograd's version counter.
    """
    target, source = target.detach().view(-1), source.view(-1)
    for piece in pieces(source):
        target[piece] = compute(source[piece], piece.start)


def first_beyond(tensors: Sequence[Tensor], limit: float) -> int | None:
    """The index of the first tensor with a value beyond ±`limit`, an infinity or a NaN."""
    limit = min(limit, torch.finfo(torch.float32).max)
    if compiled.usable(*tensors):
        return compiled.first_beyond(tensors, limit)
    for index, tensor in enumerate(tensors):
        if not bool((tensor.detach().to(torch.float32).abs() <= limit).all()):
            return index
    return None
