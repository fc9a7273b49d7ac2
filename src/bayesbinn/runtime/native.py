"""Builds the native network of a model file: one call per operation, layouts and fusion decided here.

Images are stored with the channels last, because the rows of a window are then contiguous; everything
else is stored in the file's shapes ("plain"). A scale and shift, and then a ReLU or hard tanh,
are fused into the operation before them if nothing else needs its result.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bayesbinn.errors import TooMuchMemory
from bayesbinn.modelfile.container import ModelFile, shapes
from bayesbinn.modelfile.fusion import affine_hosts, uses_of
from bayesbinn.modelfile.graph import Node, Shape, Stored, channels_of, own_per_network, pooled_size, takes_eight_bits
from bayesbinn.runtime.memory import readable

Layout = Literal["plain", "image"]
Scales = tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]
Finish = tuple[NDArray[np.float32] | None, NDArray[np.float32] | None, float, float]
"""Scale and shift [networks or 1, channels], and the limits of the result."""
Axis = tuple[int, int, int, int, int, int, bool]
"""Windows, pixels, kernel (0: adaptive), stride, padding, dilation, and whether an average counts the padding."""


def build(model: ModelFile, quantized: bool, threads: int, max_memory: int) -> Any:
    """A sealed native network: ``run(x [batch, inputs], y [networks, batch, outputs])``.

    If it does not fit into `max_memory` bytes together with the file, it raises `TooMuchMemory` before allocating.
    """
    from bayesbinn.runtime import _native

    try:
        return _Builder(model, quantized, threads, max(0, max_memory - model.size)).build()
    except _native.OverLimit as error:
        raise TooMuchMemory(
            f"the model needs more memory than max_memory={readable(max_memory)} allows: {error}; "
            "if you trust the file, raise max_memory (--max-memory)"
        ) from None
    except MemoryError:
        raise TooMuchMemory("there is not enough memory to prepare the model") from None


class _Builder:
    def __init__(self, model: ModelFile, quantized: bool, threads: int, max_memory: int) -> None:
        from bayesbinn.runtime import _native

        self.model = model
        self.nodes = model.graph.nodes
        self.quantized = quantized
        self.shapes = shapes(model)
        self.network = _native.Network(model.graph.networks, prod(self.shapes[0]), threads, max_memory)
        self.uses = uses_of(self.nodes)
        self.hosts = affine_hosts(self.nodes, [len(shape) for shape in self.shapes[1:]])
        # The native value by number and layout; a fused node's value is that of the whole group.
        self.places: dict[tuple[int, Layout], int] = {(0, "plain"): 0}
        self.done: set[int] = set()
        # The native network shares data that comes from the same array, so arrays must stay alive until it is sealed.
        self.floats: dict[str, NDArray[np.float32]] = {}
        self.scales: dict[tuple[str | None, str | None], Scales] = {}

    def build(self) -> Any:
        for index, node in enumerate(self.nodes):
            if index not in self.done:
                getattr(self, f"_{node.op}", self._elementwise)(index, node)
        output = self._get(len(self.nodes), "plain")
        if output == 0:  # only reshapes: the input must be copied
            output = self.network.affine(0, 1, prod(self.shapes[0]), 1, None, None, -inf, inf)
        self.network.seal(output, prod(self.shapes[-1]))
        return self.network

    # ---- values and layouts ----------------------------------------------------------------------

    def _get(self, value: int, layout: Layout) -> int:
        """The native number of a value in a layout; converted once, when first needed."""
        if (value, layout) not in self.places:
            other: Layout = "image" if layout == "plain" else "plain"
            shape, place = self.shapes[value], self.places[value, other]
            channels, pixels = shape[0], prod(shape[1:])
            if channels > 1 and pixels > 1:
                rows, columns = (pixels, channels) if other == "image" else (channels, pixels)
                place = self.network.transpose(place, rows, columns)
            self.places[value, layout] = place
        return self.places[value, layout]

    def _present(self, value: int) -> tuple[int, Layout]:
        """A value in whatever layout it has."""
        layout: Layout = "plain" if (value, "plain") in self.places else "image"
        return self.places[value, layout], layout

    def _put(self, index: int, layout: Layout, place: int) -> None:
        self.places[index + 1, layout] = place

    # ---- fusion ------------------------------------------------------------------------------------

    def _follower(self, index: int, *ops: str) -> int | None:
        """The node after this one, if it is one of `ops` and the only user of the value."""
        after = index + 1
        if after < len(self.nodes) and self.uses[after] == 1:
            node = self.nodes[after]
            if node.op in ops and node.inputs == (after,):
                return after
        return None

    def _finish(self, index: int, node: Node) -> tuple[int, Finish]:
        """What to apply to this node's result before storing it, and the last node that this includes."""
        last = index
        scaled = node
        # A second scale and shift stays a separate layer: merging two would round differently from the reference.
        if not node.tensors.keys() & {"scale", "shift"} and self.hosts.get(index + 1) == index:
            last, scaled = index + 1, self.nodes[index + 1]
        low, high = -inf, inf
        following = self._follower(last, "relu", "hardtanh")
        if following is not None:
            last = following
            low, high = _limits(self.nodes[following])
        self.done.update(range(index, last + 1))
        scale, shift = self._scales(scaled, self.shapes[index + 1])
        return last, (scale, shift, low, high)

    def _scales(self, node: Node, shape: Shape) -> Scales:
        names = node.tensors.get("scale"), node.tensors.get("shift")
        if names == (None, None):
            return None, None
        if names not in self.scales:
            self.scales[names] = self._paired(node, channels_of(node.op, shape))
        return self.scales[names]

    def _paired(self, node: Node, channels: int) -> Scales:
        """Scale and shift for the same number of networks; a missing one gets its neutral value."""
        found = {role: self._tensor(node, role) for role in ("scale", "shift") if role in node.tensors}
        count = max(len(array) for array in found.values())
        neutral = {"scale": np.ones((1, channels), np.float32), "shift": np.zeros((1, channels), np.float32)}
        scale, shift = (
            np.ascontiguousarray(np.broadcast_to(found.get(role, neutral[role]), (count, channels)))
            for role in ("scale", "shift")
        )
        return scale, shift

    def _tensor(self, node: Node, role: str) -> NDArray[Any]:
        """A tensor with an axis of networks in front, of length 1 if all share it; float32 or bits."""
        name = node.tensors[role]
        array = self.model.tensors[name]
        own = own_per_network(Stored(array.dtype.name, array.shape), node.op, role)
        if array.dtype != np.uint8:
            array = self.floats.setdefault(name, np.ascontiguousarray(array, np.float32))
        return array if own else array[None]

    # ---- operations --------------------------------------------------------------------------------

    def _weights(self, node: Node) -> tuple[NDArray[Any], bool]:
        array = self._tensor(node, "weight")
        eight_bits = self.quantized and takes_eight_bits(node, array.dtype.name)
        return np.ascontiguousarray(array.reshape(len(array), node.settings["shape"][0], -1)), eight_bits

    def _linear(self, index: int, node: Node) -> None:
        weights, eight_bits = self._weights(node)
        shape = self.shapes[node.inputs[0]]
        last, finish = self._finish(index, node)
        place = self._get(node.inputs[0], "plain")
        rows, count = prod(shape[:-1]), shape[-1]
        self._put(last, "plain", self.network.linear(place, rows, count, weights, eight_bits, *finish))

    def _conv2d(self, index: int, node: Node) -> None:
        weights, eight_bits = self._weights(node)
        geometry = _geometry(node, self.shapes[node.inputs[0]], self.shapes[index + 1])
        last, finish = self._finish(index, node)
        place = self._get(node.inputs[0], "image")
        self._put(last, "image", self.network.convolution(place, geometry, weights, eight_bits, *finish))

    def _pool(self, index: int, node: Node) -> None:
        channels, *sizes = self.shapes[node.inputs[0]]
        rows, columns = (_pool_axis(node, axis, size) for axis, size in enumerate(sizes))
        last, finish = self._finish(index, node)
        place = self._get(node.inputs[0], "image")
        average = "avg" in node.op
        self._put(last, "image", self.network.pool(place, channels, rows, columns, average, *finish))

    _max_pool2d = _avg_pool2d = _adaptive_max_pool2d = _adaptive_avg_pool2d = _pool

    def _affine(self, index: int, node: Node) -> None:
        last, finish = self._finish(index, node)
        place, layout = self._present(node.inputs[0])
        outer, channels, inner = self._channels(node.inputs[0], layout)
        self._put(last, layout, self.network.affine(place, outer, channels, inner, *finish))

    def _limit(self, index: int, node: Node) -> None:
        place, layout = self._present(node.inputs[0])
        count = prod(self.shapes[index + 1])
        self._put(index, layout, self.network.affine(place, 1, count, 1, None, None, *_limits(node)))

    _relu = _hardtanh = _limit

    def _channels(self, value: int, layout: Layout) -> tuple[int, int, int]:
        """[outer, channels, inner] of a value."""
        channels, inner = self.shapes[value][0], prod(self.shapes[value][1:])
        return (inner, channels, 1) if layout == "image" else (1, channels, inner)

    def _elementwise(self, index: int, node: Node) -> None:
        """Any element-wise function that the native network knows by the operation's name."""
        place, layout = self._present(node.inputs[0])
        function = getattr(self.network, node.op)
        self._put(index, layout, function(place, prod(self.shapes[index + 1])))

    def _softmax(self, index: int, node: Node) -> None:
        shape, axis = self.shapes[index + 1], node.settings["axis"]
        place = self._get(node.inputs[0], "plain")
        sizes = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
        self._put(index, "plain", self.network.softmax(place, *sizes))

    def _reshape(self, index: int, node: Node) -> None:
        self._put(index, "plain", self._get(node.inputs[0], "plain"))

    def _add(self, index: int, node: Node) -> None:
        first, layout = self._present(node.inputs[0])
        second = self._get(node.inputs[1], layout)
        last, (_, _, low, high) = self._finish(index, node)
        self._put(last, layout, self.network.add(first, second, prod(self.shapes[index + 1]), low, high))

    def _concat(self, index: int, node: Node) -> None:
        axis = node.settings["axis"]
        parts = [self.shapes[value] for value in node.inputs]
        images = axis == 0 and len(parts[0]) == 3 and any((value, "image") in self.places for value in node.inputs)
        layout: Layout = "image" if images else "plain"
        places = [self._get(value, layout) for value in node.inputs]
        if images:
            outer, lengths = prod(parts[0][1:]), [shape[0] for shape in parts]
        else:
            outer, lengths = prod(parts[0][:axis]), [prod(shape[axis:]) for shape in parts]
        self._put(index, layout, self.network.concatenate(places, outer, lengths))


def _limits(node: Node) -> tuple[float, float]:
    return (0.0, inf) if node.op == "relu" else (node.settings["min"], node.settings["max"])


def _geometry(node: Node, image: Shape, output: Shape) -> Any:
    """How a convolution reads an image [channels, height, width]."""
    from bayesbinn.runtime import _native

    s = node.settings
    top, _, left, _ = s["padding"]
    return _native.Geometry(
        channels=image[0],
        height=image[1],
        width=image[2],
        outputs=output[0],
        out_height=output[1],
        out_width=output[2],
        kernel_height=s["shape"][2],
        kernel_width=s["shape"][3],
        stride_height=s["stride"][0],
        stride_width=s["stride"][1],
        top=top,
        left=left,
        dilation_height=s["dilation"][0],
        dilation_width=s["dilation"][1],
        groups=s["groups"],
    )


def _pool_axis(node: Node, axis: int, length: int) -> Axis:
    s = node.settings
    if "size" in s:
        return s["size"][axis], length, 0, 1, 0, 1, False
    kernel, stride, padding = s["kernel"][axis], s["stride"][axis], s["padding"][axis]
    step = s.get("dilation", (1, 1))[axis]
    count = pooled_size(length, kernel, stride, padding, step, s["ceil"])
    return count, length, kernel, stride, padding, step, s.get("count_padding", False)
