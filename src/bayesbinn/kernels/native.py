"""The compiled kernels, for tensors that they can work on in place: float32, contiguous, on the CPU.

`dispatch` makes its functions with `compiled` and asks `usable` before it calls them. `available` says
whether there are compiled kernels at all, and `reason` why not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

Tensors = Sequence[Tensor]
MaybeTensors = Sequence[Tensor | None]

# A subclass may keep its elements elsewhere than `data_ptr` says.
_PLAIN = (Tensor, torch.nn.Parameter)

_REBUILD = "the kernels were built from other sources than these: install the package again"

_native: Any = None
reason = ""
if os.environ.get("BAYESBINN_KERNELS") == "torch":
    reason = "switched off by BAYESBINN_KERNELS=torch"
else:
    try:
        _native = import_module("bayesbinn.kernels._native")
    except ModuleNotFoundError:
        reason = "they were not built when the package was installed, for want of a C++ compiler or by choice"
    except ImportError as error:
        reason = str(error)
available = _native is not None
if available and not hasattr(_native, "COLUMNS"):
    raise ImportError(_REBUILD)


def _borrow_threads() -> str:
    """Let the kernels run on the threads of torch's own OpenMP runtime; its file, or "" without one."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    library = Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"
    runtime: str = _native.borrow_threads_from(str(library))
    return runtime


_runtime = _borrow_threads() if available else ""


def isa() -> str:
    """The instruction set of the kernels in use."""
    return str(_native.isa()) if available else "none"


def threading() -> str:
    """Whose threads the kernels run on."""
    if not available:
        return "none"
    return f"torch's OpenMP threads ({Path(_runtime).name})" if _runtime else "threads started for each call"


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels can work on all these tensors in place."""
    if not available:
        return False
    for tensor in tensors:
        if not (tensor.is_cpu and tensor.dtype is torch.float32 and tensor.is_contiguous() and type(tensor) in _PLAIN):
            return False
        if tensor.is_neg():  # the elements in memory have the opposite sign
            return False
    return True


def compiled(name: str, buffers: Sequence[str], settings: Sequence[str]) -> Callable[..., None]:
    """The native kernel `name` as a function of lists of `buffers`, followed by `settings`; both go by their names."""
    columns: list[tuple[str, int]] = _native.COLUMNS.get(name, [])
    if {column for column, _ in columns} != set(buffers):
        raise ImportError(f"{name!r} was compiled with the buffers {[column for column, _ in columns]}; {_REBUILD}")
    layout = [(buffers.index(column), values) for column, values in columns]
    lists = len(buffers)
    function = getattr(_native, name)

    def run(*arguments: Any) -> None:
        written = arguments[0]
        sizes = [tensor.numel() for tensor in written]
        function(
            torch.get_num_threads(),
            sizes,
            [_addresses(arguments[index], sizes, values) if values else arguments[index] for index, values in layout],
            **dict(zip(settings, arguments[lists:], strict=True)),
        )
        increment_version(written)

    return run


def _addresses(tensors: MaybeTensors, sizes: list[int], values: int) -> list[int]:
    """Where the tensors lie, after their numbers of elements were checked: `values` for each of the parameter's."""
    if len(tensors) != len(sizes):
        raise ValueError(f"{len(tensors)} tensors where there are {len(sizes)} parameters")
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor is not None and tensor.numel() != size * values:
            raise ValueError(f"a tensor of {tensor.numel()} elements where {size * values} are needed")
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def first_beyond(tensors: Tensors, limit: float) -> int | None:
    """The index of the first tensor with a value beyond ±`limit` or a NaN."""
    sizes = [tensor.numel() for tensor in tensors]
    index: int = _native.first_beyond(torch.get_num_threads(), sizes, _addresses(tensors, sizes, 1), limit)
    return None if index < 0 else index
