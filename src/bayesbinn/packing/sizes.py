"""The size and cost of a model, layer by layer: parameters, bytes, multiply-adds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from bayesbinn.binary import Rule, canonical_name, split_parameters
from bayesbinn.errors import InvalidInput
from bayesbinn.prediction.functional import evaluating, unwrapped


@dataclass(frozen=True)
class LayerSummary:
    """One layer, or the total of all."""

    name: str
    kind: str
    binary: int
    """Parameters that are -1 or +1."""
    real: int
    """All other parameters."""
    float32_bytes: int
    """Parameters and floating-point buffers (BatchNorm's running statistics) at four bytes each."""
    packed_bytes: int
    """Bytes in the model file: see `packed_bytes_of`, plus eight bytes per channel of a folded BatchNorm."""
    macs: int | None
    """Multiply-adds of linear and convolution layers per example; None without an example input."""


@dataclass(frozen=True)
class Summary:
    """What `summary` returns; printing it shows a table."""

    layers: tuple[LayerSummary, ...]

    @property
    def total(self) -> LayerSummary:
        """The sum over all layers."""
        macs = [layer.macs for layer in self.layers if layer.macs is not None]
        return LayerSummary(
            "total",
            "",
            binary=sum(layer.binary for layer in self.layers),
            real=sum(layer.real for layer in self.layers),
            float32_bytes=sum(layer.float32_bytes for layer in self.layers),
            packed_bytes=sum(layer.packed_bytes for layer in self.layers),
            macs=sum(macs) if macs else None,
        )

    @property
    def compression(self) -> float:
        """float32 bytes over packed bytes."""
        return self.total.float32_bytes / self.total.packed_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        layers = [asdict(layer) for layer in self.layers]
        return {"layers": layers, "total": asdict(self.total), "compression": self.compression}

    def __str__(self) -> str:
        titles = ["layer", "type", "binary", "real", "float32 bytes", "packed bytes", "multiply-adds"]
        rows = [[_cell(getattr(layer, f.name)) for f in fields(layer)] for layer in (*self.layers, self.total)]
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in (titles, *rows)]
        rule = "-" * max(map(len, lines))
        return "\n".join(
            [lines[0], rule, *lines[1:-1], rule, lines[-1], f"{self.compression:.1f} times smaller than float32"]
        )


def summary(model: nn.Module, example_input: Tensor | None = None, *, binary: Rule | None = None) -> Summary:
    """Count binary and real parameters, bytes as float32 and in the model file, and multiply-adds.

    Bytes are those of the tensors, without the file header. A parameter or module that is used
    twice is counted once; its multiply-adds count every time. The model does not change.

    Args:
        model: any module.
        example_input: a batch, run once in eval mode to count multiply-adds per example.
        binary: which parameters are binary, as in `split_parameters`.

    >>> model = nn.Sequential(nn.Linear(784, 100, bias=False), nn.BatchNorm1d(100, affine=False))
    >>> print(summary(model))
    layer  type         binary  real  float32 bytes  packed bytes  multiply-adds
    ----------------------------------------------------------------------------
    0      Linear       78,400     0        313,600         9,800              -
    1      BatchNorm1d       0     0            800           800              -
    ----------------------------------------------------------------------------
    total               78,400     0        314,400        10,600              -
    29.7 times smaller than float32
    """
    model = unwrapped(model)
    is_binary = {parameter: True for _, parameter in split_parameters(model, binary)[0]}
    macs = None if example_input is None else _multiply_adds(model, example_input)
    seen: set[Tensor] = set()
    layers = []
    for name, module in model.named_modules():
        own = [tensor for tensor in _own_tensors(module) if tensor not in seen]
        counted = None if macs is None else macs.get(module, 0)
        if not own and not counted:
            continue
        seen.update(own)
        flags = [(tensor, tensor in is_binary) for tensor in own]
        layers.append(
            LayerSummary(
                canonical_name(name + ".").removesuffix("."),
                type(module).__name__,
                binary=sum(tensor.numel() for tensor, flag in flags if flag),
                real=sum(t.numel() for t, flag in flags if not flag and isinstance(t, nn.Parameter)),
                float32_bytes=sum(4 * tensor.numel() for tensor in own),
                packed_bytes=_packed_bytes(module, flags),
                macs=counted,
            )
        )
    return Summary(tuple(layers))


def packed_bytes_of(shape: tuple[int, ...]) -> int:
    """Bytes of a binary weight in the model file: a row of ⌈K/8⌉ bytes for each entry of the first axis.

    K is the number of weights per entry.

    >>> packed_bytes_of((128, 3, 3, 3))  # 27 weights need 4 bytes
    512
    """
    return shape[0] * -(-prod(shape[1:]) // 8)


def _packed_bytes(module: nn.Module, flags: list[tuple[Tensor, bool]]) -> int:
    if isinstance(module, _BatchNorm) and module.running_mean is not None:
        # Statistics, gain and bias become one scale and one shift per channel.
        return 8 * module.num_features if flags else 0
    return sum(packed_bytes_of(tuple(tensor.shape)) if flag else 4 * tensor.numel() for tensor, flag in flags)


def _own_tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and floating-point buffers of a module itself, without its counter of batches."""
    buffers = (buffer for _, buffer in module.named_buffers(recurse=False))
    return [*module.parameters(recurse=False), *(buffer for buffer in buffers if buffer.is_floating_point())]


# ---- multiply-adds -----------------------------------------------------------------------------------


def layer_multiply_adds(layer: nn.Module, x: Tensor, output: Tensor) -> int:
    """Multiply-adds of one call, for the whole batch: one per weight and position where it is applied.

    >>> import torch
    >>> layer, x = nn.Conv2d(4, 6, 3, stride=2, groups=2), torch.zeros(1, 4, 9, 9)
    >>> layer_multiply_adds(layer, x, layer(x))  # 6·4·4 outputs of 2·3·3 terms
    1728
    """
    if isinstance(layer, nn.Linear):
        return output.numel() * layer.in_features
    assert isinstance(layer, _ConvNd)
    per_position = prod(layer.weight.shape[1:])
    # A transposed convolution applies its weights at every input, an ordinary one at every output.
    return (x if isinstance(layer, _ConvTransposeNd) else output).numel() * per_position


def _multiply_adds(model: nn.Module, example_input: Tensor) -> dict[nn.Module, int]:
    if example_input.ndim == 0 or len(example_input) == 0:
        raise InvalidInput(f"example_input has shape {tuple(example_input.shape)}; pass a batch of one or more inputs")
    totals: dict[nn.Module, int] = {}
    with evaluating(model), _counting(model, totals):
        model(example_input)
    return {module: total // len(example_input) for module, total in totals.items()}


@contextmanager
def _counting(model: nn.Module, totals: dict[nn.Module, int]) -> Iterator[None]:
    def count(module: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
        x = args[0] if args else named["input"]
        totals[module] = totals.get(module, 0) + layer_multiply_adds(module, x, output)

    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, _ConvNd))]
    hooks = [layer.register_forward_hook(count, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# ---- the table ---------------------------------------------------------------------------------------


def _cell(value: str | int | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:,}"


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    """Align text left, numbers right."""
    return [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
