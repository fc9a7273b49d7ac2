"""The compiled kernels, for tensors that they can work on in place: float32, contiguous, on the CPU.

`dispatch` makes its functions with `compiled` and checks `usable` before it calls them. `available` says
whether there are compiled kernels, and `reason` says why not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

Tensors = Sequence[Tensor]
MaybeTensors = Sequence[Tensor | None]

# A subclass may keep its elements somewhere other than at `data_ptr`.
_PLAIN = (Tensor, torch.nn.Parameter)

_REBUILD = "the kernels were built from different sources; reinstall the package"

available = False
reason = ""
if os.environ.get("BAYESBINN_KERNELS") == "torch":
    reason = "switched off by BAYESBINN_KERNELS=torch"
else:
    try:
        import bayesbinn.kernels._native as _native

        available = True
    except ModuleNotFoundError:
        reason = "not built at installation: there was no C++ compiler, or the build was switched off"
    except ImportError as error:
        reason = str(error)
if available and not hasattr(_native, "bernoulli"):
    raise ImportError(_REBUILD)


def _borrow_threads() -> str:
    """Make the kernels use the threads of torch's OpenMP runtime; return its file, or "" if there is none."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    library = Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"
    return _native.borrow_threads_from(str(library))


_runtime = _borrow_threads() if available else ""

multiplies_signs = available and _native.multiplies_signs()
"""Whether there are products with matrices of signs: they need AVX2."""

multiplies_outer = available and _native.multiplies_outer()
"""Whether there are outer products: they need AVX-512."""


def isa() -> str:
    """The instruction set of the kernels in use."""
    return _native.isa() if available else "none"


def threading() -> str:
    """Which threads the kernels run on."""
    if not available:
        return "none"
    return f"torch's OpenMP threads ({Path(_runtime).name})" if _runtime else "threads started for each call"


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels can work on all these tensors in place."""
    if not available:
        return False
    float32 = torch.float32
    for tensor in tensors:
        if type(tensor) not in _PLAIN or tensor.dtype is not float32 or not (tensor.is_cpu and tensor.is_contiguous()):
            return False
        if tensor.is_neg():  # the elements in memory have the opposite sign
            return False
    return True


def compiled(name: str, buffers: Sequence[str], settings: Sequence[str]) -> Callable[..., None]:
    """The native kernel `name` as a function of lists of `buffers`, followed by `settings`, all matched by name."""
    columns = _native.COLUMNS.get(name, [])
    if {column for column, _ in columns} != set(buffers) or columns[0][0] != buffers[0]:
        raise ImportError(f"{name!r} was compiled with the buffers {[column for column, _ in columns]}; {_REBUILD}")
    others = [(buffers.index(column), values) for column, values in columns[1:]]
    lists = len(buffers)
    function = _native.KERNELS[name]

    def run(*arguments: Any) -> None:
        written = arguments[0]
        sizes = [tensor.numel() for tensor in written]
        gathered = [[tensor.data_ptr() for tensor in written]]
        for index, values in others:
            column = arguments[index]
            gathered.append(_addresses(column, sizes, values) if values else column)
        if settings:
            function(torch.get_num_threads(), sizes, gathered, **dict(zip(settings, arguments[lists:])))  # noqa: B905
        else:
            function(torch.get_num_threads(), sizes, gathered)
        increment_version(written)

    return run


def _addresses(tensors: MaybeTensors, sizes: list[int], values: int) -> list[int]:
    """The tensors' addresses, after a check that each has `values` elements per element of its parameter."""
    if len(tensors) != len(sizes):
        raise ValueError(f"got {len(tensors)} tensors for {len(sizes)} parameters")
    for tensor, size in zip(tensors, sizes):  # noqa: B905
        if tensor is not None and tensor.numel() != values * size:
            raise ValueError(f"got a tensor of {tensor.numel()} elements; {values * size} are needed")
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def first_beyond(tensors: Tensors, limit: float) -> int | None:
    """The index of the first tensor with a value beyond ±`limit` or a NaN."""
    sizes, addresses = [tensor.numel() for tensor in tensors], [tensor.data_ptr() for tensor in tensors]
    index = _native.first_beyond(torch.get_num_threads(), sizes, addresses, limit)
    return None if index < 0 else index


@dataclass(frozen=True)
class Signs:
    """A matrix of −1 and +1 with one bit per weight, packed for products from both sides."""

    rows: int
    columns: int
    by_rows: Tensor
    by_columns: Tensor

    def times_transposed(self, x: Tensor) -> Tensor:
        """x·Wᵀ for a usable x, [..., columns] -> [..., rows]."""
        return _multiplied(x, self.by_rows, self.columns, self.rows)

    def times(self, x: Tensor) -> Tensor:
        """x·W for a usable x, [..., rows] -> [..., columns]."""
        return _multiplied(x, self.by_columns, self.rows, self.columns)


def packed_signs(weights: Tensor) -> Signs | None:
    """A usable matrix of −1 and +1; None if it has other values."""
    rows, columns = weights.shape
    by_rows = torch.empty(_native.sign_words(columns, rows), dtype=torch.int32, device="cpu")
    by_columns = torch.empty(_native.sign_words(rows, columns), dtype=torch.int32, device="cpu")
    addresses = by_rows.data_ptr(), by_columns.data_ptr()
    if not _native.pack_signs(torch.get_num_threads(), weights.data_ptr(), rows, columns, *addresses):
        return None
    return Signs(rows, columns, by_rows, by_columns)


def _multiplied(x: Tensor, signs: Tensor, inputs: int, outputs: int) -> Tensor:
    if x.shape[-1] != inputs or not usable(x):
        raise ValueError(f"got {x.shape[-1]} inputs of {x.dtype}; {inputs} contiguous ones of float32 are needed")
    y = torch.empty(*x.shape[:-1], outputs, dtype=torch.float32, device="cpu")
    examples = x.numel() // max(inputs, 1)
    threads = torch.get_num_threads()
    _native.multiply_signs(threads, x.data_ptr(), signs.data_ptr(), y.data_ptr(), examples, inputs, outputs)
    return y


def outer(gradients: Tensor, inputs: Tensor) -> Tensor:
    """Σₑ gradientsₑ ⊗ inputsₑ over the examples e, the rows of two usable matrices."""
    if not (gradients.dim() == inputs.dim() == 2 and len(gradients) == len(inputs) and usable(gradients, inputs)):
        shapes = f"{tuple(gradients.shape)} and {tuple(inputs.shape)}"
        raise ValueError(f"got {shapes} of {gradients.dtype} and {inputs.dtype}; contiguous float32 rows are needed")
    examples, rows = gradients.shape
    product = torch.empty(rows, inputs.shape[1], dtype=torch.float32, device="cpu")
    addresses = gradients.data_ptr(), inputs.data_ptr(), product.data_ptr()
    _native.multiply_outer(torch.get_num_threads(), *addresses, examples, rows, inputs.shape[1])
    return product


def bernoulli(state: Tensor, probability: float, values: Tensor) -> None:
    """Fill usable values as `bernoulli_` does, given the state of torch's CPU generator, which is advanced."""
    if not usable(values) or state.dtype is not torch.uint8 or not (state.is_cpu and state.is_contiguous()):
        raise ValueError(f"got values of {values.dtype} and a state of {state.dtype}; float32 and uint8 are needed")
    _native.bernoulli(state.data_ptr(), state.numel(), probability, values.data_ptr(), values.numel())
