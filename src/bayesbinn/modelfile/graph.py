"""The layer graph of a model file: the operations, what they need, and the shapes of their results.

Values are numbered: 0 is the input, node i computes value i + 1, and the last node's value is the
output. A node may only use earlier values, so a graph cannot have a cycle. Shapes are those
of one example; every operation works on a batch of them. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any, Literal

from bayesbinn.errors import InvalidFile, nearest
from bayesbinn.modelfile.bits import row_bytes

Shape = tuple[int, ...]
Task = Literal["classification", "regression"]

MAX_ELEMENTS = 1 << 28
"""Of one value of one example. A file that claims more is rejected before anything is allocated."""
MAX_NODES = 1 << 16
MAX_NETWORKS = 1 << 12
_SMALLEST_FLOAT32, _LARGEST_FLOAT32 = 2.0**-149, (2 - 2.0**-23) * 2.0**127
_LARGEST = 1 << 20  # of a kernel, a stride, a padding or a dilation
_MAX_POOLED = 1 << 16  # windows of a pooling layer along an axis; readers list them when they load a file


@dataclass(frozen=True)
class Node:
    """One operation.

    `settings` are its numbers (stride, axis, ...), `tensors` the names of its tensors in the file by
    their role ("weight", "scale", "shift"); `name` is its place in the model, for messages.
    """

    op: str
    inputs: tuple[int, ...]
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A whole network, or `networks` of them that differ in some of their tensors."""

    input_shape: Shape
    nodes: tuple[Node, ...]
    networks: int = 1
    task: Task = "classification"
    logit_scale: float = 1.0
    """A factor applied to the output before the softmax, from calibration."""
    classes: tuple[str, ...] = ()
    """Names of the classes, or empty."""
    features: tuple[str, ...] = ()
    """Names of the input's columns, or empty."""


@dataclass(frozen=True)
class Stored:
    """What a file says about a tensor: its type (NumPy's name) and shape."""

    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Operation:
    """What an operation takes (inputs, settings, tensors), and the shape of its result."""

    inputs: int | None
    """None: one or more."""
    settings: Mapping[str, Callable[[Any], bool]]
    tensors: tuple[str, ...]
    """All are optional except "weight", and the scale and shift of `affine`."""
    shape: Callable[[Mapping[str, Any], list[Shape]], Shape]
    channels: int | None = None
    """The axis of an example's result to which a scale and a shift apply; None: it takes neither."""
    elementwise: bool = False
    """Whether each number of the result depends only on the same position in its inputs."""
    onnx: str = ""
    """The standard ONNX operator that does the same; empty: the export has its own code."""


# ---- settings: what a number must look like ---------------------------------------------------------


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _whole_numbers(count: int, least: int) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return isinstance(value, tuple) and len(value) == count and all(_whole(v, least, _LARGEST) for v in value)

    return check


def _shape_of_rank(rank: int | None) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return (
            isinstance(value, tuple)
            and (len(value) == rank if rank is not None else 1 <= len(value) <= 8)
            and all(_whole(v, 1, MAX_ELEMENTS) for v in value)
            and prod(value) <= MAX_ELEMENTS
        )

    return check


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _axis(value: Any) -> bool:
    return _whole(value, 0, 7)


def _groups(value: Any) -> bool:
    return _whole(value, 1, MAX_ELEMENTS)


def _number(value: Any) -> bool:
    return isinstance(value, float) and isfinite(value)


_pair, _gaps, _borders = _whole_numbers(2, 1), _whole_numbers(2, 0), _whole_numbers(4, 0)


# ---- shapes ---------------------------------------------------------------------------------------


class _Misfit(Exception):
    """The input's shape does not fit; the text says what is needed."""


def _image(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise _Misfit("an image [channels, height, width] is needed")
    return shape[0], shape[1], shape[2]


def _same(_: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    return inputs[0]


def _linear(s: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    out, features = s["shape"]
    if inputs[0][-1] != features:
        raise _Misfit(f"{features} features are needed")
    return (*inputs[0][:-1], out)


def _conv2d(s: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    channels, height, width = _image(inputs[0])
    out, per_group, *kernel = s["shape"]
    if channels != per_group * s["groups"] or out % s["groups"]:
        raise _Misfit(f"{per_group * s['groups']} channels are needed, and outputs in {s['groups']} equal groups")
    top, bottom, left, right = s["padding"]
    sizes = (height + top + bottom, width + left + right)
    return (out, *_windows(sizes, kernel, s["stride"], s["dilation"]))


def _windows(sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Shape:
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    if min(counts) < 1:
        raise _Misfit(f"a window of {tuple(kernel)} does not fit")
    return tuple(counts)


def pooled_size(n: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    """How many windows a pooling layer has along an axis of n, as torch counts them.

    >>> pooled_size(5, 2, 2, 0, 1, False), pooled_size(5, 2, 2, 0, 1, True)
    (2, 3)
    """
    span = n + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil else 0)) // stride + 1
    # With ceil, a last window that would start in the padding on the right is omitted.
    return count - 1 if ceil and (count - 1) * stride >= n + padding else count


def _pool(s: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    channels, *sizes = _image(inputs[0])
    if any(2 * p > k for p, k in zip(s["padding"], s["kernel"], strict=True)):
        raise _Misfit("the padding may be at most half of the kernel")
    dilation = s.get("dilation", (1, 1))
    counts = [
        pooled_size(n, k, st, p, d, s["ceil"])
        for n, k, st, p, d in zip(sizes, s["kernel"], s["stride"], s["padding"], dilation, strict=True)
    ]
    if min(counts) < 1:
        raise _Misfit(f"a window of {tuple(s['kernel'])} does not fit")
    return _pooled(channels, counts)


def _adaptive(s: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    return _pooled(_image(inputs[0])[0], s["size"])


def _pooled(channels: int, counts: Sequence[int]) -> Shape:
    if max(counts) > _MAX_POOLED:
        raise _Misfit(f"{_MAX_POOLED} windows along an axis are allowed, not {max(counts)}")
    return (channels, *counts)


def _reshape(s: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    shape: Shape = s["shape"]
    if prod(shape) != prod(inputs[0]):
        raise _Misfit(f"{prod(shape)} elements are needed")
    return shape


def _add(_: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    if inputs[0] != inputs[1]:
        raise _Misfit("two values of the same shape are needed")
    return inputs[0]


def _concat(s: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    axis, first = s["axis"], inputs[0]
    for shape in inputs:
        if axis >= len(first) or len(shape) != len(first) or _without(shape, axis) != _without(first, axis):
            raise _Misfit(f"values of the same shape except for axis {axis} are needed")
    return (*first[:axis], sum(shape[axis] for shape in inputs), *first[axis + 1 :])


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _softmax(s: Mapping[str, Any], inputs: list[Shape]) -> Shape:
    if s["axis"] >= len(inputs[0]):
        raise _Misfit(f"an axis {s['axis']} is needed")
    return inputs[0]


_WEIGHTED = ("weight", "scale", "shift")
_WINDOW = {"kernel": _pair, "stride": _pair, "padding": _gaps, "ceil": _flag}

OPERATIONS: Mapping[str, Operation] = {
    "linear": Operation(1, {"shape": _shape_of_rank(2)}, _WEIGHTED, _linear, channels=-1),
    "conv2d": Operation(
        1,
        {"shape": _shape_of_rank(4), "stride": _pair, "padding": _borders, "dilation": _pair, "groups": _groups},
        _WEIGHTED,
        _conv2d,
        channels=0,
    ),
    "affine": Operation(1, {}, ("scale", "shift"), _same, channels=0),
    "relu": Operation(1, {}, (), _same, elementwise=True, onnx="Relu"),
    "tanh": Operation(1, {}, (), _same, elementwise=True, onnx="Tanh"),
    "sigmoid": Operation(1, {}, (), _same, elementwise=True, onnx="Sigmoid"),
    "hardtanh": Operation(1, {"min": _number, "max": _number}, (), _same, elementwise=True),
    "softmax": Operation(1, {"axis": _axis}, (), _softmax),
    "max_pool2d": Operation(1, {**_WINDOW, "dilation": _pair}, (), _pool, channels=0),
    "avg_pool2d": Operation(1, {**_WINDOW, "count_padding": _flag}, (), _pool, channels=0),
    "adaptive_max_pool2d": Operation(1, {"size": _pair}, (), _adaptive, channels=0),
    "adaptive_avg_pool2d": Operation(1, {"size": _pair}, (), _adaptive, channels=0),
    "reshape": Operation(1, {"shape": _shape_of_rank(None)}, (), _reshape),
    "add": Operation(2, {}, (), _add, elementwise=True, onnx="Add"),
    "concat": Operation(None, {"axis": _axis}, (), _concat),
}


# ---- checking -------------------------------------------------------------------------------------


def check_graph(graph: Graph, stored: Mapping[str, Stored]) -> list[Shape]:
    """Check every node against the rules above and the stored tensors; return the shape of every value."""
    if not 1 <= graph.networks <= MAX_NETWORKS:
        raise InvalidFile(f"{graph.networks} networks: 1 to {MAX_NETWORKS} are allowed")
    if not _shape_of_rank(None)(graph.input_shape):
        raise InvalidFile(f"input shape {graph.input_shape}: 1 to 8 sizes of at least 1 are needed")
    if not 1 <= len(graph.nodes) <= MAX_NODES:
        raise InvalidFile(f"{len(graph.nodes)} nodes: 1 to {MAX_NODES} are allowed")
    if not _SMALLEST_FLOAT32 <= graph.logit_scale <= _LARGEST_FLOAT32:
        raise InvalidFile(f"logit scale {graph.logit_scale}: it must be a finite number above 0 in float32")
    if graph.task not in ("classification", "regression"):
        raise InvalidFile(f"task {graph.task!r}: it must be 'classification' or 'regression'")
    shapes = [graph.input_shape]
    for index, node in enumerate(graph.nodes):
        shapes.append(_check_node(graph, index, node, shapes, stored))
    outputs = shapes[-1][-1]
    expected = 2 if outputs == 1 else outputs  # a single logit is that of class 1 of two
    if graph.classes and len(graph.classes) != expected:
        raise InvalidFile(f"{len(graph.classes)} class names for {expected} classes")
    if graph.features and graph.input_shape != (len(graph.features),):
        raise InvalidFile(f"{len(graph.features)} column names for inputs of shape {graph.input_shape}")
    return shapes


def place(index: int, node: Node) -> str:
    """How messages name a node."""
    return f"node {index} ({node.op}{' ' + repr(node.name) if node.name else ''})"


def _check_node(graph: Graph, index: int, node: Node, shapes: list[Shape], stored: Mapping[str, Stored]) -> Shape:
    operation = OPERATIONS.get(node.op)
    if operation is None:
        raise InvalidFile(f"{place(index, node)}: unknown operation.{nearest(node.op, OPERATIONS)}")
    if not node.inputs or (operation.inputs is not None and len(node.inputs) != operation.inputs):
        wanted = operation.inputs or "at least 1"
        raise InvalidFile(f"{place(index, node)}: {len(node.inputs)} inputs, it takes {wanted}")
    if not all(_whole(value, 0, index) for value in node.inputs):
        raise InvalidFile(f"{place(index, node)}: inputs {list(node.inputs)} must be values 0 to {index}")
    if set(node.settings) != set(operation.settings):
        raise InvalidFile(
            f"{place(index, node)}: settings {sorted(node.settings)}, it takes {sorted(operation.settings)}"
        )
    for key, check in operation.settings.items():
        if not check(node.settings[key]):
            raise InvalidFile(f"{place(index, node)}: {key}={node.settings[key]!r} is not allowed")
    if node.op == "hardtanh" and node.settings["min"] > node.settings["max"]:
        raise InvalidFile(f"{place(index, node)}: min is above max")
    inputs = [shapes[value] for value in node.inputs]
    try:
        shape = operation.shape(node.settings, inputs)
    except _Misfit as misfit:
        raise InvalidFile(f"{place(index, node)}: its input has shape {inputs[0]}, but {misfit}") from None
    if prod(shape) > MAX_ELEMENTS:
        raise InvalidFile(f"{place(index, node)}: {prod(shape)} elements, {MAX_ELEMENTS} are allowed")
    _check_tensors(graph, index, node, operation, shape, stored)
    return shape


def _check_tensors(
    graph: Graph, index: int, node: Node, operation: Operation, shape: Shape, stored: Mapping[str, Stored]
) -> None:
    required = operation.tensors if node.op == "affine" else operation.tensors[:1]
    for role in required:
        if role not in node.tensors:
            raise InvalidFile(f"{place(index, node)}: it has no {role}")
    for role, name in node.tensors.items():
        if role not in operation.tensors:
            raise InvalidFile(f"{place(index, node)}: it takes no {role!r}")
        if name not in stored:
            raise InvalidFile(f"{place(index, node)}: the file has no tensor {name!r}")
        tensor = stored[name]
        if role == "weight":
            true: Shape = node.settings["shape"]
            expected = (true[0], row_bytes(prod(true[1:]))) if tensor.dtype == "uint8" else true
            types: tuple[str, ...] = ("uint8", "float32", "float16")
        else:
            expected, types = (channels_of(node.op, shape),), ("float32",)
        if tensor.dtype not in types or tensor.shape not in (expected, (graph.networks, *expected)):
            raise InvalidFile(
                f"{place(index, node)}: {role} is {tensor.dtype} {list(tensor.shape)}, "
                f"but {' or '.join(types)} {list(expected)} is needed (or one for each of {graph.networks} networks)"
            )


def channels_of(op: str, shape: Shape) -> int:
    """How many scales and shifts an operation with this output shape has."""
    axis = OPERATIONS[op].channels
    assert axis is not None, f"{op} takes no scale and no shift"
    return shape[axis]


def own_per_network(stored: Stored, op: str, role: str) -> bool:
    """Whether a tensor has a leading axis of networks: one copy per network instead of a shared one."""
    if role != "weight":
        return len(stored.shape) == 2
    true_rank = 2 if op == "linear" else 4
    return len(stored.shape) == (3 if stored.dtype == "uint8" else true_rank + 1)


MAX_QUANTIZED = 1 << 23
"""The number of weights per output up to which twice a sum of 8-bit activations fits into 32 bits."""


def takes_eight_bits(node: Node, weight_dtype: str) -> bool:
    """Whether the int8 mode rounds this layer's input: binary weights, no groups (which have too few weights
    per output to gain from it), and not too many weights for exact sums."""
    if node.op not in ("linear", "conv2d") or weight_dtype != "uint8":
        return False
    return bool(node.settings.get("groups", 1) == 1 and prod(node.settings["shape"][1:]) <= MAX_QUANTIZED)
