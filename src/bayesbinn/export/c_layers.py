"""The layers of a network as calls of C functions, with the constants they need."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from bayesbinn.errors import InvalidInput
from bayesbinn.export.c_memory import Memory, plan_memory
from bayesbinn.export.c_text import array, comment, number, struct
from bayesbinn.export.networks import Networks, as_float32
from bayesbinn.modelfile.graph import OPERATIONS, Node, channels_of, place


class Layers:
    """One method per operation, found by its name, gives its lines of C; names start with model_ for now.

    An operation without a method works element by element: its template is all that it needs.
    """

    def __init__(self, networks: Networks) -> None:
        self.networks = networks
        self.memory: Memory = plan_memory(networks)
        self.parts: dict[str, None] = {}
        """Templates that are needed, in the order in which they are written: a struct before what takes it."""
        self.arrays: dict[str, str] = {}
        self.shapes: list[str] = []
        self.constant_bytes = 0
        self._array_names: dict[str, str] = {}
        nodes = networks.graph.nodes
        self.lines: dict[bool, list[str]] = {False: [], True: []}
        """Calls that all networks share, and those of one network."""
        for index in networks.steps:
            self.lines[networks.own[index + 1]] += [
                f"/* {comment(place(index, nodes[index]))}: {list(networks.shapes[index + 1])} */",
                *getattr(self, f"_{nodes[index].op}", self._elementwise)(index, nodes[index]),
            ]

    def _need(self, *parts: str) -> None:
        self.parts.update(dict.fromkeys(parts))

    # Places of values and tensors.

    def at(self, value: int) -> str:
        block = self.memory.values[value]
        return "input" if block is None else f"f + {block.offset}u"

    def _array(self, node: Node, role: str) -> str:
        """A C expression for the tensor of the current network; NULL if the node has none."""
        stored = self.networks.tensor(node, role)
        if stored is None:
            return "NULL"
        key = node.tensors[role]
        if key not in self._array_names:
            self._array_names[key] = name = f"model_{role}_{len(self._array_names)}"
            own = self.networks.is_own(node, role)
            copies = [self.networks.tensor(node, role, i) for i in range(self.networks.graph.networks if own else 1)]
            values: Any = np.stack([copy for copy in copies if copy is not None])
            values = values if values.dtype == np.uint8 else values.astype(np.float32)
            self.constant_bytes += values.nbytes
            self.arrays[key] = f"/* {comment(key)} */\n{array(name, values)}"
        several = self.networks.is_own(node, role) and self.networks.graph.networks > 1
        return self._array_names[key] + (f" + network * {stored.size}u" if several else "")

    def _sizes(self, node: Node, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.networks.shapes[node.inputs[0]], self.networks.shapes[index + 1]

    # Operations.

    def _linear(self, index: int, node: Node) -> list[str]:
        _, after = self._sizes(node, index)
        outputs, inputs = node.settings["shape"]
        part = "linear_bits" if self.networks.is_binary(node) else "linear_real"
        self._need(part)
        y, x, rows = self.at(index + 1), self.at(node.inputs[0]), prod(after[:-1])
        call = f"model_{part}({y}, {x}, {self._array(node, 'weight')}, {rows}u, {outputs}u, {inputs}u);"
        return [call, *self._scale(index, node, y)]

    def _conv2d(self, index: int, node: Node) -> list[str]:
        before, after = self._sizes(node, index)
        s, part = node.settings, "conv2d_bits" if self.networks.is_binary(node) else "conv2d_real"
        self._need("conv2d_shape", part)
        names = "height width out_channels out_height out_width group_inputs group_outputs kernel_height kernel_width"
        names += " stride_y stride_x dilation_y dilation_x top left"
        sizes = (*before[1:], *after, s["shape"][1], after[0] // s["groups"], *s["shape"][2:], *s["stride"])
        sizes += (*s["dilation"], s["padding"][0], s["padding"][2])
        shape = self._shape("model_conv2d_shape", index, names, sizes)
        y, x = self.at(index + 1), self.at(node.inputs[0])
        return [f"model_{part}({y}, {x}, {self._array(node, 'weight')}, {shape});", *self._scale(index, node, y)]

    def _affine(self, index: int, node: Node) -> list[str]:
        return self._scale(index, node, self.at(node.inputs[0]))

    def _scale(self, index: int, node: Node, x: str) -> list[str]:
        if not {"scale", "shift"} & set(node.tensors):
            return []
        self._need("scale")
        shape = self.networks.shapes[index + 1]
        channels = channels_of(node.op, shape)
        inner = 1 if node.op == "linear" else prod(shape[1:])
        scale, shift = self._array(node, "scale"), self._array(node, "shift")
        sizes = f"{prod(shape)}u, {channels}u, {inner}u"
        return [f"model_scale({self.at(index + 1)}, {x}, {scale}, {shift}, {sizes});"]

    def _shape(self, kind: str, index: int, names: str, sizes: tuple[int, ...]) -> str:
        """A constant struct of these sizes; a pointer to it."""
        name = f"model_shape_{index}"
        self.shapes.append(struct(kind, name, zip(names.split(), sizes, strict=True)))
        return f"&{name}"

    def _pool(self, index: int, node: Node, dilation: tuple[int, int], count_padding: bool) -> list[str]:
        before, after = self._sizes(node, index)
        s = node.settings
        self._need("pool2d_shape", node.op)
        names = "channels height width out_height out_width kernel_height kernel_width stride_y stride_x"
        names += " dilation_y dilation_x top left count_padding"
        sizes = (*before, *after[1:], *s["kernel"], *s["stride"], *dilation, *s["padding"], int(count_padding))
        shape = self._shape("model_pool2d_shape", index, names, sizes)
        return [f"model_{node.op}({self.at(index + 1)}, {self.at(node.inputs[0])}, {shape});"]

    def _max_pool2d(self, index: int, node: Node) -> list[str]:
        return self._pool(index, node, node.settings["dilation"], False)

    def _avg_pool2d(self, index: int, node: Node) -> list[str]:
        return self._pool(index, node, (1, 1), node.settings["count_padding"])

    def _adaptive_max_pool2d(self, index: int, node: Node) -> list[str]:
        before, after = self._sizes(node, index)
        for length, parts in zip(before[1:], after[1:], strict=True):
            if (length + 1) * (parts + 1) >= 1 << 32:
                reason = f"{length} pixels in {parts} parts overflow the 32 bits of small machines"
                raise InvalidInput(f"{place(index, node)}: {reason}; pool in two steps")
        self._need(node.op)
        sizes = ", ".join(f"{n}u" for n in (*before, *after[1:]))
        return [f"model_{node.op}({self.at(index + 1)}, {self.at(node.inputs[0])}, {sizes});"]

    _adaptive_avg_pool2d = _adaptive_max_pool2d

    def _elementwise(self, index: int, node: Node) -> list[str]:
        """The template of the operation's name: y, its inputs, the number of elements, and the node's settings."""
        self._need(node.op)
        values = ", ".join(self.at(value) for value in (index + 1, *node.inputs))
        numbers = [number(as_float32(node.settings[key])) for key in OPERATIONS[node.op].settings]
        arguments = ", ".join([values, f"{prod(self.networks.shapes[index + 1])}u", *numbers])
        return [f"model_{node.op}({arguments});"]

    def _softmax(self, index: int, node: Node) -> list[str]:
        self._need("softmax")
        shape, axis = self.networks.shapes[index + 1], node.settings["axis"]
        sizes = f"{prod(shape[:axis])}u, {shape[axis]}u, {prod(shape[axis + 1 :])}u"
        return [f"model_softmax({self.at(index + 1)}, {self.at(node.inputs[0])}, {sizes});"]

    def _reshape(self, index: int, node: Node) -> list[str]:
        return []  # the same numbers at the same location

    def _concat(self, index: int, node: Node) -> list[str]:
        self._need("concat")
        shape, axis = self.networks.shapes[index + 1], node.settings["axis"]
        lines, start, step = [], 0, prod(shape[axis:])
        for value in node.inputs:
            block = prod(self.networks.shapes[value][axis:])
            y = f"{self.at(index + 1)} + {start}u"
            lines.append(f"model_concat({y}, {self.at(value)}, {prod(shape[:axis])}u, {block}u, {step}u);")
            start += block
        return lines
