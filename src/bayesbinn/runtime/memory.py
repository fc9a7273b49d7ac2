"""How much memory a model may take, and how much the NumPy reference will take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import Node, Shape, pooled_size, takes_eight_bits

DEFAULT_MEMORY = 1 << 30
"""Bytes. Far more than ordinary binary networks need, far less than a file of a few hundred bytes can ask for."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FLOAT = 4


def bytes_of(text: str) -> int:
    """Parse a size such as "512M"; K, M, G and T are powers of 1024.

    >>> bytes_of("512M"), bytes_of("1.5 GB"), bytes_of("4096")
    (536870912, 1610612736, 4096)
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.ASCII | re.IGNORECASE)
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if size < 1:
        raise InvalidInput(f"--max-memory {text}: a size such as 512M or 4G is needed")
    return size


def readable(size: int) -> str:
    """A size as text.

    >>> readable(1 << 30), readable(3_300_000_000), readable((1 << 30) - 1), readable(900)
    ('1 GB', '3.07 GB', '1024 MB', '900 bytes')
    """
    for unit in ("T", "G", "M", "K"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:{'.3g' if size < 100 * _UNITS[unit] else '.0f'}} {unit}B"
    return f"{size} bytes"


# ---- the reference -----------------------------------------------------------------------------------


def last_uses(nodes: Sequence[Node]) -> list[int]:
    """For each value, the index of the last node that needs it; the output is needed after all of them."""
    last = [0] * (len(nodes) + 1)
    for index, node in enumerate(nodes):
        for value in node.inputs:
            last[value] = index
    last[-1] = len(nodes)
    return last


def reference_memory(model: ModelFile, shapes: Sequence[Shape], int8: bool) -> tuple[int, int]:
    """Upper bounds on the bytes that the reference takes: for unpacked weights, and for each example run at once."""
    last = last_uses(model.graph.nodes)
    ending: dict[int, int] = {}
    for value, index in enumerate(last):
        ending[index] = ending.get(index, 0) + _FLOAT * prod(shapes[value])
    weights, most, alive = 0, 0, _FLOAT * prod(shapes[0])
    for index, node in enumerate(model.graph.nodes):
        dtype = model.tensors[node.tensors["weight"]].dtype.name if "weight" in node.tensors else ""
        eight_bits = int8 and takes_eight_bits(node, dtype)
        if dtype:
            # Bits become bytes and then floats, by three temporary arrays.
            each = (13 if dtype == "uint8" else 8) + (8 if eight_bits else 0)
            weights = max(weights, each * prod(node.settings["shape"]))
        most = max(most, alive + _node_memory(node, shapes[node.inputs[0]], shapes[index + 1], eight_bits))
        alive += _FLOAT * prod(shapes[index + 1]) - ending.get(index, 0)
    return weights, most


def _node_memory(node: Node, shape: Shape, out: Shape, eight_bits: bool) -> int:
    """Bytes of one example's result and of all intermediate arrays."""
    s, item = node.settings, 8 if eight_bits else _FLOAT
    size = 4 * item * prod(out)
    if eight_bits:
        size += (5 * _FLOAT + 8) * prod(shape)
    if node.op == "conv2d":
        top, bottom, left, right = s["padding"]
        seen = shape[0] // s["groups"] * prod(out[1:])  # the input of one kernel position is copied for the product
        size += item * (shape[0] * (shape[1] + top + bottom) * (shape[2] + left + right) + seen)
    elif "kernel" in s:
        size += 3 * _FLOAT * shape[0] * prod(_padded_length(node, axis, n) for axis, n in enumerate(shape[1:]))
    return size


def _padded_length(node: Node, axis: int, length: int) -> int:
    s = node.settings
    kernel, stride, padding = s["kernel"][axis], s["stride"][axis], s["padding"][axis]
    dilation = s.get("dilation", (1, 1))[axis]
    count = pooled_size(length, kernel, stride, padding, dilation, s["ceil"])
    return int(max(length + 2 * padding, (count - 1) * stride + dilation * (kernel - 1) + 1))
