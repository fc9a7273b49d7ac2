"""How torch modules, functions and tensor methods map to operations of the layer graph.

Every entry has the signature of the torch function that it translates, after the `Call`; modules
are translated as the function that they call. Anything not in the tables below is not supported.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Lookup = Callable[[Any], Tensor]
"""Maps something that does not depend on the input, such as a parameter's path, to its current value."""
Step = Callable[[Lookup], tuple[Tensor | None, Tensor | None]]
"""Returns a scale and a shift per channel."""


@dataclass(frozen=True)
class Value:
    """A value of the graph, and its shape in torch: [batch, ...]."""

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Constant:
    """A tensor that does not depend on the input."""

    source: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Made:
    """An operation of the graph, with the sources of its tensors."""

    op: str
    inputs: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    weight: Constant | None = None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Call:
    """One call in the model: the shape of its result, and how to reject it by name and place."""

    shape: tuple[int, ...]
    refuse: Callable[[str], NoReturn]
    own: Callable[[str], Constant | None]
    """A module's own tensor by name; None if it does not exist."""

    def value(self, candidate: Any) -> Value:
        """An argument that must depend on the input."""
        if not isinstance(candidate, Value):
            self.refuse(f"with {_words(candidate)} where the values of a layer are needed")
        return candidate

    def constant(self, candidate: Any, what: str) -> Constant:
        """An argument that must not depend on the input."""
        if not isinstance(candidate, Constant):
            self.refuse(f"with {_words(candidate)} as its {what}, which must be a parameter of the model")
        return candidate

    def rank(self, x: Value, *allowed: int) -> None:
        """Reject inputs with another number of axes."""
        if len(x.shape) not in allowed:
            self.refuse(f"on a value of shape {list(x.shape)}")


def _words(candidate: Any) -> str:
    kinds = {Value: "a computed value", Constant: "a constant tensor"}
    return kinds.get(type(candidate), repr(candidate))


# ---- layers with weights ---------------------------------------------------------------------------


def linear(call: Call, input: Any, weight: Any, bias: Any = None) -> Made:
    w = call.constant(weight, "weight")
    if len(w.shape) != 2:
        call.refuse(f"with a weight of shape {list(w.shape)}")
    return Made("linear", (call.value(input).index,), {"shape": w.shape}, w, _bias(call, bias))


def conv2d(
    call: Call,
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Made:
    w, x = call.constant(weight, "weight"), call.value(input)
    call.rank(x, 4)
    spread = _pair(dilation)
    if padding == "valid":
        borders: tuple[int, ...] = (0, 0, 0, 0)
    elif padding == "same":
        totals = [d * (k - 1) for d, k in zip(spread, w.shape[2:], strict=True)]
        borders = tuple(side for total in totals for side in (total // 2, total - total // 2))
    else:
        down, across = _pair(padding)
        borders = (down, down, across, across)
    settings = {"shape": w.shape, "stride": _pair(stride), "padding": borders, "dilation": spread, "groups": groups}
    return Made("conv2d", (x.index,), settings, w, _bias(call, bias))


def _bias(call: Call, bias: Any) -> tuple[Step, ...]:
    if bias is None:
        return ()
    source = call.constant(bias, "bias").source
    return (lambda lookup: (None, lookup(source).double()),)


def batch_norm(
    call: Call,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Made:
    """x·g + (bias − mean·g) with g = weight/√(var + ε)."""
    if training or running_mean is None or running_var is None:
        call.refuse("with batch statistics: a prediction would depend on the other examples in the batch")
    x = call.value(input)
    sources = [call.constant(running_mean, "mean").source, call.constant(running_var, "variance").source]
    gain = None if weight is None else call.constant(weight, "weight").source
    offset = None if bias is None else call.constant(bias, "bias").source

    def step(lookup: Lookup) -> tuple[Tensor, Tensor]:
        mean, var = (lookup(source).double() for source in sources)
        g = (var + eps).rsqrt()
        if gain is not None:
            g = g * lookup(gain).double()
        shift = -mean * g
        return g, shift if offset is None else shift + lookup(offset).double()

    return Made("affine", (x.index,), steps=(step,))


# ---- activations -----------------------------------------------------------------------------------


def relu(call: Call, input: Any, inplace: bool = False) -> Made:
    return Made("relu", (call.value(input).index,))


def tanh(call: Call, input: Any) -> Made:
    return Made("tanh", (call.value(input).index,))


def sigmoid(call: Call, input: Any) -> Made:
    return Made("sigmoid", (call.value(input).index,))


def hardtanh(call: Call, input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Made:
    return Made("hardtanh", (call.value(input).index,), {"min": float(min_val), "max": float(max_val)})


def relu6(call: Call, input: Any, inplace: bool = False) -> Made:
    return hardtanh(call, input, 0.0, 6.0)


def clamp(call: Call, input: Any, min: Any = None, max: Any = None) -> Made:
    if max is None and min == 0:
        return relu(call, input)
    if not all(isinstance(bound, (int, float)) for bound in (min, max)):
        call.refuse("without two numbers as bounds")
    return hardtanh(call, input, min, max)


def softmax(call: Call, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Made:
    return Made("softmax", (call.value(input).index,), {"axis": _axis(call, dim, call.value(input))})


# ---- pooling ---------------------------------------------------------------------------------------


def max_pool2d(
    call: Call,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Made:
    if return_indices:
        call.refuse("with return_indices=True")
    settings = {**_window(kernel_size, stride, padding, ceil_mode), "dilation": _pair(dilation)}
    return _pooling(call, "max_pool2d", input, settings)


def avg_pool2d(
    call: Call,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Made:
    if divisor_override is not None:
        call.refuse("with a divisor_override")
    settings = {**_window(kernel_size, stride, padding, ceil_mode), "count_padding": bool(count_include_pad)}
    return _pooling(call, "avg_pool2d", input, settings)


def adaptive_max_pool2d(call: Call, input: Any, output_size: Any, return_indices: bool = False) -> Made:
    if return_indices:
        call.refuse("with return_indices=True")
    return _pooling(call, "adaptive_max_pool2d", input, {"size": call.shape[2:]})


def adaptive_avg_pool2d(call: Call, input: Any, output_size: Any) -> Made:
    return _pooling(call, "adaptive_avg_pool2d", input, {"size": call.shape[2:]})


def _pooling(call: Call, op: str, input: Any, settings: dict[str, Any]) -> Made:
    call.rank(call.value(input), 4)
    return Made(op, (input.index,), settings)


def _window(kernel: Any, stride: Any, padding: Any, ceil: bool) -> dict[str, Any]:
    steps = _pair(stride) if stride not in (None, (), []) else _pair(kernel)
    return {"kernel": _pair(kernel), "stride": steps, "padding": _pair(padding), "ceil": bool(ceil)}


# ---- shapes and several inputs -----------------------------------------------------------------------


def reshape(call: Call, input: Any, *sizes: Any, **named: Any) -> Made | Value:
    """Any call is described by the shape of its result; but examples must not mix."""
    x = call.value(input)
    if not call.shape or call.shape[0] != x.shape[0]:
        call.refuse(f"from {list(x.shape)} to {list(call.shape)}: the first axis is the batch and must not change")
    before, after = (shape[1:] or (1,) for shape in (x.shape, call.shape))  # a single number is [1] in the graph
    return x if before == after else Made("reshape", (x.index,), {"shape": after})


def identity(call: Call, input: Any, *_: Any, **__: Any) -> Value:
    return call.value(input)


def dropout(call: Call, input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Value:
    if training and p > 0:
        call.refuse("that is active in eval mode: pass training=self.training")
    return call.value(input)


def add(call: Call, input: Any, other: Any, *, alpha: Any = 1) -> Made:
    x, y = call.value(input), call.value(other)
    if alpha != 1 or x.shape != y.shape:
        call.refuse(f"of {list(x.shape)} and {alpha} times {list(y.shape)}: two values of the same shape are needed")
    return Made("add", (x.index, y.index))


def cat(call: Call, tensors: Any, dim: Any = 0) -> Made:
    values = [call.value(each) for each in tensors]
    return Made("concat", tuple(value.index for value in values), {"axis": _axis(call, dim, values[0])})


def _axis(call: Call, dim: Any, x: Value) -> int:
    """An axis of an example, from an axis of the batch."""
    if not isinstance(dim, int) or dim % len(x.shape) == 0:
        call.refuse(f"along dim={dim}: an axis after the batch axis is needed")
    return int(dim % len(x.shape)) - 1


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    both = tuple(value)
    return (both[0], both[0]) if len(both) == 1 else (both[0], both[1])


# ---- the tables --------------------------------------------------------------------------------------

Translation = Callable[..., Made | Value]


def _conv_module(call: Call, m: nn.Conv2d, x: Any) -> Made:
    if m.padding_mode != "zeros":
        call.refuse(f"with padding_mode={m.padding_mode!r}; only 'zeros' is supported")
    return conv2d(call, x, call.own("weight"), call.own("bias"), m.stride, m.padding, m.dilation, m.groups)


def _norm_module(call: Call, m: nn.BatchNorm2d, x: Any) -> Made:
    mean, var = call.own("running_mean"), call.own("running_var")
    return batch_norm(call, x, mean, var, call.own("weight"), call.own("bias"), eps=m.eps)


def _max_pool_module(call: Call, m: nn.MaxPool2d, x: Any) -> Made:
    return max_pool2d(call, x, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)


def _avg_pool_module(call: Call, m: nn.AvgPool2d, x: Any) -> Made:
    return avg_pool2d(call, x, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override)


MODULES: Mapping[type[nn.Module], Translation] = {
    nn.Linear: lambda call, m, x: linear(call, x, call.own("weight"), call.own("bias")),
    nn.Conv2d: _conv_module,
    nn.BatchNorm1d: _norm_module,
    nn.BatchNorm2d: _norm_module,
    nn.SyncBatchNorm: _norm_module,
    nn.ReLU: lambda call, m, x: relu(call, x),
    nn.ReLU6: lambda call, m, x: relu6(call, x),
    nn.Tanh: lambda call, m, x: tanh(call, x),
    nn.Sigmoid: lambda call, m, x: sigmoid(call, x),
    nn.Hardtanh: lambda call, m, x: hardtanh(call, x, m.min_val, m.max_val),
    nn.Softmax: lambda call, m, x: softmax(call, x, m.dim),
    nn.MaxPool2d: _max_pool_module,
    nn.AvgPool2d: _avg_pool_module,
    nn.AdaptiveMaxPool2d: lambda call, m, x: adaptive_max_pool2d(call, x, m.output_size, m.return_indices),
    nn.AdaptiveAvgPool2d: lambda call, m, x: adaptive_avg_pool2d(call, x, m.output_size),
    **{kind: lambda call, m, x: reshape(call, x) for kind in (nn.Flatten, nn.Unflatten)},
    **{
        kind: lambda call, m, x: identity(call, x)
        for kind in (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
    },
}

FUNCTIONS: Mapping[Any, Translation] = {
    F.linear: linear,
    F.conv2d: conv2d,
    F.batch_norm: batch_norm,
    **dict.fromkeys((F.relu, F.relu_, torch.relu, torch.relu_), relu),
    F.relu6: relu6,
    **dict.fromkeys((F.tanh, torch.tanh), tanh),
    **dict.fromkeys((F.sigmoid, torch.sigmoid), sigmoid),
    F.hardtanh: hardtanh,
    **dict.fromkeys((torch.clamp, torch.clip), clamp),
    **dict.fromkeys((F.softmax, torch.softmax), softmax),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), max_pool2d),
    F.avg_pool2d: avg_pool2d,
    F.adaptive_max_pool2d: adaptive_max_pool2d,
    F.adaptive_avg_pool2d: adaptive_avg_pool2d,
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze), reshape),
    **dict.fromkeys((F.dropout, F.dropout2d, torch.dropout), dropout),
    **dict.fromkeys((operator.add, operator.iadd, torch.add), add),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), cat),
}

METHODS: Mapping[str, Translation] = {
    **dict.fromkeys(("relu", "relu_"), relu),
    "tanh": tanh,
    "sigmoid": sigmoid,
    **dict.fromkeys(("clamp", "clip"), clamp),
    "softmax": softmax,
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"), reshape),
    **dict.fromkeys(("contiguous", "clone", "detach"), identity),
    **dict.fromkeys(("add", "add_"), add),
}
