"""Runs a model file with NumPy: slow and obvious; every fast kernel is tested against it.

One function per operation, found by its name in `OPERATIONS`. Values are float32 [batch, ...].
Weights are unpacked to -1 and +1; nothing is fused, and the networks of an ensemble run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import InvalidInput, TooMuchMemory
from bayesbinn.modelfile.bits import unpack_rows
from bayesbinn.modelfile.container import ModelFile, shapes
from bayesbinn.modelfile.graph import Node, Stored, own_per_network, pooled_size, takes_eight_bits
from bayesbinn.runtime.memory import last_uses, readable, reference_memory

Array = NDArray[np.float32]
Wide = NDArray[np.floating[Any]]
Activations = Literal["exact", "int8"]
_NOTHING = np.empty(0, np.float32)


def run(model: ModelFile, x: NDArray[Any], activations: Activations = "exact", max_memory: int | None = None) -> Array:
    """[batch, *input_shape] → [networks, batch, *output_shape]: raw outputs, without the logit scale.

    With activations="int8" the input of a binary layer is first rounded to 8 bits (see `quantized`), unless
    the layer is a grouped convolution (see `takes_eight_bits`). With `max_memory` (bytes), as many examples
    run at once as it allows; if not even one fits, it raises `TooMuchMemory`.
    """
    if activations not in ("exact", "int8"):
        raise InvalidInput(f"activations={activations!r}: it must be 'exact' or 'int8'")
    if x.ndim == 0 or x.shape[1:] != model.graph.input_shape:
        raise InvalidInput(f"inputs of shape {x.shape}: [batch, {', '.join(map(str, model.graph.input_shape))}] needed")
    most = len(x) if max_memory is None else at_once(model, len(x), activations, max_memory)
    strips = [x[i : i + most] for i in range(0, len(x), most)] if most < len(x) else [x]
    with np.errstate(all="ignore"):  # NaN and infinity are valid results here
        each = [
            np.concatenate([_run_one(model, s, n, activations) for s in strips]) for n in range(model.graph.networks)
        ]
    return np.stack(each)


def at_once(model: ModelFile, batch: int, activations: Activations, max_memory: int) -> int:
    """How many examples of a batch may run at once; raises `TooMuchMemory` if not even one fits."""
    known = shapes(model)
    fixed, each = reference_memory(model, known, activations == "int8")
    fixed += 2 * 4 * model.graph.networks * batch * prod(known[-1])  # the outputs, collected and stacked
    if fixed + each > max_memory:
        raise TooMuchMemory(
            f"{batch} examples need at least {readable(fixed + each)}, max_memory allows {readable(max_memory)}; "
            "if you trust the file, raise max_memory (--max-memory)"
        )
    return (max_memory - fixed) // each


def _run_one(model: ModelFile, x: Array, network: int, activations: Activations) -> Array:
    last = last_uses(model.graph.nodes)
    values = [x.astype(np.float32)]
    for index, node in enumerate(model.graph.nodes):
        tensors = {role: _tensor_of(model, node, role, network) for role in node.tensors}
        inputs = [values[index] for index in node.inputs]
        if activations == "int8" and takes_eight_bits(node, _weight_dtype(model, node)):
            result = _quantized_layer(node, tensors, inputs[0])
        else:
            result = OPERATIONS[node.op](node.settings, tensors, inputs)
        assert result.dtype == np.float32
        values.append(result)
        for value in node.inputs:
            if last[value] == index:
                values[value] = _NOTHING  # its memory is free again
    return values[-1]


def _weight_dtype(model: ModelFile, node: Node) -> str:
    return model.tensors[node.tensors["weight"]].dtype.name if "weight" in node.tensors else ""


def _tensor_of(model: ModelFile, node: Node, role: str, network: int) -> Array:
    array = model.tensors[node.tensors[role]]
    if own_per_network(Stored(array.dtype.name, array.shape), node.op, role):
        array = array[network]
    if array.dtype == np.uint8:
        shape = node.settings["shape"]
        return unpack_rows(array, prod(shape[1:])).reshape(shape)
    return array.astype(np.float32)


# ---- layers with weights ---------------------------------------------------------------------------


def linear(settings: Mapping[str, Any], tensors: Mapping[str, Array], inputs: list[Array]) -> Array:
    """y = x·Wᵀ along the last axis, then scale and shift."""
    return _scaled(inputs[0] @ tensors["weight"].T, tensors, axis=-1)


def conv2d(settings: Mapping[str, Any], tensors: Mapping[str, Array], inputs: list[Array]) -> Array:
    """A convolution (without flipping the kernel, as everywhere in deep learning), then scale and shift."""
    return _scaled(_convolved(settings, tensors["weight"], inputs[0]), tensors, axis=1)


def affine(_: Mapping[str, Any], tensors: Mapping[str, Array], inputs: list[Array]) -> Array:
    """y = x·scale + shift, for each entry of an example's first axis."""
    return _scaled(inputs[0], tensors, axis=1)


def _scaled(y: Array, tensors: Mapping[str, Array], axis: int) -> Array:
    shape = [1] * y.ndim
    shape[axis] = -1
    if "scale" in tensors:
        y = y * tensors["scale"].reshape(shape)
    if "shift" in tensors:
        y = y + tensors["shift"].reshape(shape)
    return y


def _convolved(settings: Mapping[str, Any], weight: Wide, x: Wide) -> Any:
    """The sum of one matrix product per position in the kernel, for each group of channels."""
    (top, bottom, left, right), stride, dilation = settings["padding"], settings["stride"], settings["dilation"]
    x = np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)])
    kernel = weight.shape[2:]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)]
    groups = []
    for w, part in zip(_split(weight, settings["groups"], 0), _split(x, settings["groups"], 1), strict=True):
        total = np.zeros((len(x), len(w), *counts), dtype=x.dtype)
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                seen = _every(part, (i * dilation[0], j * dilation[1]), stride, counts)
                total += np.einsum("oc,nchw->nohw", w[:, :, i, j], seen, optimize=True)
        groups.append(total)
    return np.concatenate(groups, axis=1)


def _split(array: Wide, groups: int, axis: int) -> list[Wide]:
    return np.split(array, groups, axis=axis)


def _every(x: Any, start: Sequence[int], stride: Sequence[int], counts: Sequence[int]) -> Any:
    """The input of one position of the kernel: `counts` pixels of x [batch, channels, height, width]."""
    rows, columns = (slice(b, b + s * (n - 1) + 1, s) for b, s, n in zip(start, stride, counts, strict=True))
    return x[:, :, rows, columns]


# ---- 8-bit activations -----------------------------------------------------------------------------


def quantized(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Integers q from -127 to 127 and float32 scales with x ≈ q·scale, one scale for all of `axes`.

    m = max|x|, q = round(x·(127/m)) with ties to even, scale = m/127. If 127/m is not finite
    (m is 0, or so small that 127/m overflows float32), then q = 0 and the scale is 0. If m is
    NaN or infinite, then the scale is NaN, and so is everything computed from it.

    >>> q, scale = quantized(np.array([[0.5, -1.0, 0.0]], dtype=np.float32), (1,))
    >>> q, scale * 127
    (array([[  64., -127.,    0.]], dtype=float32), array([[1.]], dtype=float32))
    """
    m = np.abs(x).max(axis=axes, keepdims=True)
    factor = np.float32(127) / m
    q = np.clip(np.rint(x * factor), -127, 127)
    scale = m / np.float32(127)
    lost, tiny = ~np.isfinite(m), np.isinf(factor)
    q = np.where(lost | tiny, np.float32(0), q)
    return q, np.where(lost, np.float32(np.nan), np.where(tiny, np.float32(0), scale))


def _quantized_layer(node: Node, tensors: Mapping[str, Array], x: Array) -> Array:
    """The sums of integers are exact in float64; everything else is float32."""
    weight = tensors["weight"].astype(np.float64)
    if node.op == "linear":
        q, scale = quantized(x, (-1,))
        sums, axis = q.astype(np.float64) @ weight.T, -1
    else:
        q, scale = quantized(x, (1, 2, 3))
        sums, axis = _convolved(node.settings, weight, q.astype(np.float64)), 1
    return _scaled(scale * sums.astype(np.float32), tensors, axis)


# ---- pooling ---------------------------------------------------------------------------------------


def max_pool2d(settings: Mapping[str, Any], _: Mapping[str, Array], inputs: list[Array]) -> Array:
    """The largest value of each window. NaN wins over any number; padding never wins."""
    dilation = settings["dilation"]
    padded, counts = _padded(settings, dilation, inputs[0], np.float32(-np.inf))
    best = np.full((*padded.shape[:2], *counts), -np.inf, dtype=np.float32)
    for i in range(settings["kernel"][0]):
        for j in range(settings["kernel"][1]):
            seen = _every(padded, (i * dilation[0], j * dilation[1]), settings["stride"], counts)
            best = np.maximum(best, seen)
    return best


def avg_pool2d(settings: Mapping[str, Any], _: Mapping[str, Array], inputs: list[Array]) -> Array:
    """The mean of each window over its pixels, and over its padding if `count_padding`.

    Anything beyond the padding (`ceil`) never counts; a window without any pixel gives 0.
    """
    x, (down, across) = inputs[0], settings["padding"]
    ones = np.ones((1, 1, *x.shape[2:]), dtype=np.float32)
    if settings["count_padding"]:
        ones = np.pad(ones, [(0, 0), (0, 0), (down, down), (across, across)], constant_values=1)
        sizes = _window_sums({**settings, "padding": (0, 0)}, ones, _padded(settings, (1, 1), x, np.float32(0))[1])
    else:
        sizes = _window_sums(settings, ones)
    return np.asarray(_window_sums(settings, x) / np.maximum(sizes, 1), dtype=np.float32)


def _window_sums(settings: Mapping[str, Any], x: Array, counts: Sequence[int] | None = None) -> Array:
    padded, own = _padded(settings, (1, 1), x, np.float32(0), counts)
    total = np.zeros((*x.shape[:2], *own), dtype=np.float32)
    for i in range(settings["kernel"][0]):
        for j in range(settings["kernel"][1]):
            total += _every(padded, (i, j), settings["stride"], own)
    return total


def _padded(
    settings: Mapping[str, Any],
    dilation: Sequence[int],
    x: Array,
    value: np.float32,
    counts: Sequence[int] | None = None,
) -> tuple[Array, Sequence[int]]:
    """x with its padding, with more below and to the right if the last windows need it; and the window counts."""
    kernel, stride, padding = settings["kernel"], settings["stride"], settings["padding"]
    if counts is None:
        counts = [
            pooled_size(n, k, s, p, d, settings["ceil"])
            for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
        ]
    borders = [(0, 0), (0, 0)]
    for n, k, s, p, d, count in zip(x.shape[2:], kernel, stride, padding, dilation, counts, strict=True):
        needed = (count - 1) * s + d * (k - 1) + 1
        borders.append((p, max(p, needed - n - p)))
    return np.pad(x, borders, constant_values=value), counts


def adaptive_max_pool2d(settings: Mapping[str, Any], _: Mapping[str, Array], inputs: list[Array]) -> Array:
    """The largest value of each of size[0] × size[1] parts that cover the image."""
    return _adaptive(settings["size"], inputs[0], np.max)


def adaptive_avg_pool2d(settings: Mapping[str, Any], _: Mapping[str, Array], inputs: list[Array]) -> Array:
    """The mean of each of size[0] × size[1] parts that cover the image."""
    return _adaptive(settings["size"], inputs[0], np.mean)


def _adaptive(size: tuple[int, int], x: Array, reduce: Callable[..., Any]) -> Array:
    """Part i of n along an axis of length L: from ⌊i·L/n⌋ up to ⌈(i + 1)·L/n⌉; parts may overlap."""
    out = np.empty((*x.shape[:2], *size), dtype=np.float32)
    rows, columns = (
        [slice(i * length // n, -(-(i + 1) * length // n)) for i in range(n)]
        for length, n in zip(x.shape[2:], size, strict=True)
    )
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            out[:, :, i, j] = reduce(x[:, :, r, c], axis=(2, 3))
    return out


# ---- everything else -------------------------------------------------------------------------------


def relu(_: Mapping[str, Any], __: Mapping[str, Array], inputs: list[Array]) -> Array:
    """max(x, 0); NaN stays NaN, as in everything below."""
    return np.maximum(inputs[0], np.float32(0))


def tanh(_: Mapping[str, Any], __: Mapping[str, Array], inputs: list[Array]) -> Array:
    """(eˣ − e⁻ˣ)/(eˣ + e⁻ˣ)"""
    return np.tanh(inputs[0])


def sigmoid(_: Mapping[str, Any], __: Mapping[str, Array], inputs: list[Array]) -> Array:
    """1/(1 + e⁻ˣ)"""
    return np.float32(1) / (np.float32(1) + np.exp(-inputs[0]))


def hardtanh(settings: Mapping[str, Any], _: Mapping[str, Array], inputs: list[Array]) -> Array:
    """min(max(x, min), max)"""
    return np.clip(inputs[0], np.float32(settings["min"]), np.float32(settings["max"]))


def softmax(settings: Mapping[str, Any], _: Mapping[str, Array], inputs: list[Array]) -> Array:
    """eˣ divided by its sum along an axis of the example."""
    axis = settings["axis"] + 1
    e = np.exp(inputs[0] - inputs[0].max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True), dtype=np.float32)


def reshape(settings: Mapping[str, Any], _: Mapping[str, Array], inputs: list[Array]) -> Array:
    """The same numbers in the same order (the last axis fastest) in another shape."""
    return inputs[0].reshape(len(inputs[0]), *settings["shape"])


def add(_: Mapping[str, Any], __: Mapping[str, Array], inputs: list[Array]) -> Array:
    """x + y"""
    return inputs[0] + inputs[1]


def concat(settings: Mapping[str, Any], _: Mapping[str, Array], inputs: list[Array]) -> Array:
    """The inputs joined along an axis of the example."""
    return np.concatenate(inputs, axis=settings["axis"] + 1)


OPERATIONS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Array], list[Array]], Array]] = {
    function.__name__: function
    for function in (
        linear,
        conv2d,
        affine,
        relu,
        tanh,
        sigmoid,
        hardtanh,
        softmax,
        max_pool2d,
        avg_pool2d,
        adaptive_max_pool2d,
        adaptive_avg_pool2d,
        reshape,
        add,
        concat,
    )
}
