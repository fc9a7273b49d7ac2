"""The compiled kernels, for tensors that they can work on in place: float32, contiguous, on the CPU.

The functions have the names and arguments of those in `dispatch`, which asks `usable` before it
calls them. `available` says whether there are compiled kernels at all, and `reason` why not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bayesbinn.kernels.reference import AdamSettings, RuleSettings

Tensors = Sequence[Tensor]
MaybeTensors = Sequence[Tensor | None]

# A subclass may keep its elements elsewhere than `data_ptr` says.
_PLAIN = (Tensor, torch.nn.Parameter)

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


def _sizes(tensors: Tensors, *others: MaybeTensors) -> list[int]:
    """The numbers of elements, which every list must share."""
    sizes = [tensor.numel() for tensor in tensors]
    for other in others:
        _require_sizes(other, sizes)
    return sizes


def _require_sizes(tensors: MaybeTensors, sizes: list[int]) -> None:
    if len(tensors) != len(sizes):
        raise ValueError(f"{len(tensors)} tensors where there are {len(sizes)} parameters")
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor is not None and tensor.numel() != size:
            raise ValueError(f"a tensor of {tensor.numel()} elements where {size} are needed")


def _addresses(tensors: MaybeTensors) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def first_beyond(tensors: Tensors, limit: float) -> int | None:
    index: int = _native.first_beyond(torch.get_num_threads(), _sizes(tensors), _addresses(tensors), limit)
    return None if index < 0 else index


def write_sign(parameters: Tensors, sources: Tensors) -> None:
    _native.write_sign(
        torch.get_num_threads(), _sizes(parameters, sources), _addresses(parameters), _addresses(sources)
    )
    increment_version(parameters)


def write_tanh(parameters: Tensors, sources: Tensors, scale: float) -> None:
    _native.write_tanh(
        torch.get_num_threads(), _sizes(parameters, sources), _addresses(parameters), _addresses(sources), scale
    )
    increment_version(parameters)


def _pair_sizes(parameters: Tensors, *pairs: Tensors) -> list[int]:
    """The sizes of parameters that have two values per weight in each of `pairs`."""
    sizes = _sizes(parameters)
    doubled = [2 * size for size in sizes]
    for pair in pairs:
        _require_sizes(pair, doubled)
    return sizes


def write_pmf_sign(parameters: Tensors, logits: Tensors) -> None:
    """p ← sign(ũ₊ − ũ₋)."""
    _native.write_pmf_sign(
        torch.get_num_threads(), _pair_sizes(parameters, logits), _addresses(parameters), _addresses(logits)
    )
    increment_version(parameters)


def write_pmf_weights(parameters: Tensors, logits: Tensors, beta: float) -> None:
    _native.write_pmf_weights(
        torch.get_num_threads(), _pair_sizes(parameters, logits), _addresses(parameters), _addresses(logits), beta
    )
    increment_version(parameters)


def write_relaxed_sample(
    parameters: Tensors, naturals: Tensors, keys: Sequence[int], draw: int, temperature: float
) -> None:
    _native.write_relaxed_sample(
        torch.get_num_threads(),
        _sizes(parameters, naturals),
        _addresses(parameters),
        _addresses(naturals),
        keys,
        draw,
        temperature,
    )
    increment_version(parameters)


def write_hard_sample(parameters: Tensors, naturals: Tensors, keys: Sequence[int], draw: int) -> None:
    _native.write_hard_sample(
        torch.get_num_threads(),
        _sizes(parameters, naturals),
        _addresses(parameters),
        _addresses(naturals),
        keys,
        draw,
    )
    increment_version(parameters)


def write_training_sample(
    parameters: Tensors,
    naturals: Tensors,
    slopes: MaybeTensors,
    keys: Sequence[int],
    draw: int,
    temperature: float,
    held: bool,
) -> None:
    _native.write_training_sample(
        torch.get_num_threads(),
        _sizes(parameters, naturals, slopes),
        _addresses(parameters),
        _addresses(naturals),
        _addresses(slopes),
        keys,
        draw,
        temperature,
        held,
    )
    increment_version(parameters)


def restore_mode(parameters: Tensors, naturals: Tensors, temperature: float) -> None:
    _native.restore_mode(
        torch.get_num_threads(),
        _sizes(parameters, naturals),
        _addresses(parameters),
        _addresses(naturals),
        temperature,
    )
    increment_version(parameters)


def accumulate_scaled(
    totals: Tensors,
    naturals: Tensors,
    gradients: Tensors,
    keys: Sequence[int],
    draw: int,
    temperature: float,
    eps: float,
) -> None:
    _native.accumulate_scaled(
        torch.get_num_threads(),
        _sizes(totals, naturals, gradients),
        _addresses(totals),
        _addresses(naturals),
        _addresses(gradients),
        keys,
        draw,
        temperature,
        eps,
    )


def bayesbinn_update(
    parameters: Tensors,
    naturals: Tensors,
    gradients: Tensors,
    momenta: MaybeTensors,
    priors: MaybeTensors,
    keys: Sequence[int],
    draw: int | None,
    rule: RuleSettings,
) -> None:
    _native.bayesbinn_update(
        torch.get_num_threads(),
        _sizes(parameters, naturals, gradients, momenta, priors),
        _addresses(parameters),
        _addresses(naturals),
        _addresses(gradients),
        _addresses(momenta),
        _addresses(priors),
        keys,
        draw,
        *rule,
    )
    increment_version(parameters)


def bayesbinn_update_from_slopes(
    parameters: Tensors,
    naturals: Tensors,
    gradients: Tensors,
    slopes: Tensors,
    momenta: MaybeTensors,
    priors: MaybeTensors,
    rule: RuleSettings,
) -> None:
    _native.bayesbinn_update_from_slopes(
        torch.get_num_threads(),
        _sizes(parameters, naturals, gradients, slopes, momenta, priors),
        _addresses(parameters),
        _addresses(naturals),
        _addresses(gradients),
        _addresses(slopes),
        _addresses(momenta),
        _addresses(priors),
        *rule,
    )
    increment_version(parameters)


def adam(values: Tensors, gradients: Tensors, firsts: Tensors, seconds: Tensors, settings: AdamSettings) -> None:
    _native.adam(
        torch.get_num_threads(),
        _sizes(values, gradients, firsts, seconds),
        _addresses(values),
        _addresses(gradients),
        _addresses(firsts),
        _addresses(seconds),
        *settings,
    )
    increment_version(values)


def ste_update(
    parameters: Tensors,
    latents: Tensors,
    gradients: Tensors,
    firsts: Tensors,
    seconds: Tensors,
    clip: float,
    settings: AdamSettings,
) -> None:
    _native.ste_update(
        torch.get_num_threads(),
        _sizes(parameters, latents, gradients, firsts, seconds),
        _addresses(parameters),
        _addresses(latents),
        _addresses(gradients),
        _addresses(firsts),
        _addresses(seconds),
        clip,
        *settings,
    )
    increment_version(parameters)


def bop_update(parameters: Tensors, averages: Tensors, gradients: Tensors, rate: float, threshold: float) -> None:
    _native.bop_update(
        torch.get_num_threads(),
        _sizes(parameters, averages, gradients),
        _addresses(parameters),
        _addresses(averages),
        _addresses(gradients),
        rate,
        threshold,
    )
    increment_version(parameters)


def pmf_update(
    parameters: Tensors,
    logits: Tensors,
    gradients: Tensors,
    firsts: Tensors,
    seconds: Tensors,
    beta: float,
    settings: AdamSettings,
) -> None:
    sizes = _pair_sizes(parameters, logits, firsts, seconds)
    _require_sizes(gradients, sizes)
    _native.pmf_update(
        torch.get_num_threads(),
        sizes,
        _addresses(parameters),
        _addresses(logits),
        _addresses(gradients),
        _addresses(firsts),
        _addresses(seconds),
        beta,
        *settings,
    )
    increment_version(parameters)


def pack_signs(tensor: Tensor) -> Tensor:
    """The signs of a matrix [out, K] as bits [out, ⌈K/8⌉]: 1 is +1, the lowest bit first, the padding 0."""
    rows, columns = tensor.shape
    bits = torch.empty(rows, -(-columns // 8), dtype=torch.uint8)
    _native.pack_signs(torch.get_num_threads(), tensor.data_ptr(), rows, columns, bits.data_ptr())
    return bits
