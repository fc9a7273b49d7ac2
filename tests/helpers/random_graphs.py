"""Random model files for tests: ragged sizes, every operation, branches, ensembles."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile, shapes
from bayesbinn.modelfile.graph import OPERATIONS, Graph, Node

SHAPE_KEEPERS = [op for op, each in OPERATIONS.items() if each.elementwise and each.inputs == 1] + ["softmax", "affine"]


class GraphBuilder:
    """Adds nodes one by one and makes up their tensors."""

    def __init__(self, input_shape: tuple[int, ...], networks: int, seed: int) -> None:
        self.input_shape, self.networks = input_shape, networks
        self.random = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.tensors: dict[str, Any] = {}

    def add_convolution(self, outputs: int, **scales: Any) -> int:
        """3×3 with binary weights and padding that keeps the size."""
        shape = (outputs, self.shape()[0], 3, 3)
        geometry = {"stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
        return self.add("conv2d", shape=shape, **geometry, tensors={"weight": self.weight(shape), **scales})

    def add(self, op: str, *inputs: int, tensors: dict[str, Any] | None = None, **settings: Any) -> int:
        """A node; its inputs are values, by default the last one. Returns the number of its value."""
        names = {}
        for role, array in (tensors or {}).items():
            names[role] = f"{len(self.nodes)}.{role}"
            self.tensors[names[role]] = array
        used = inputs or (len(self.nodes),)
        self.nodes.append(Node(op, used, f"layer{len(self.nodes)}", settings, names))
        return len(self.nodes)

    def weight(self, shape: tuple[int, ...], binary: bool = True, own: bool = False) -> Any:
        """Random weights: bits, or floats; `own`: one for each network."""
        front = (self.networks,) if own else ()
        values = self.random.standard_normal((*front, shape[0], prod(shape[1:])))
        return pack_rows(values) if binary else values.astype(np.float32).reshape(*front, *shape)

    def scales(self, channels: int, own: bool = False) -> dict[str, Any]:
        """Random scale and shift, some of them negative."""
        front = (self.networks,) if own else ()
        draw = self.random.standard_normal
        return {role: draw((*front, channels)).astype(np.float32) for role in ("scale", "shift")}

    def model(self, **extra: Any) -> ModelFile:
        return ModelFile(Graph(self.input_shape, tuple(self.nodes), self.networks, **extra), self.tensors)

    def shape(self) -> tuple[int, ...]:
        """Of the last value."""
        return shapes(self.model())[-1] if self.nodes else self.input_shape

    def inputs(self, batch: int, spread: float = 1.0) -> Any:
        return (spread * self.random.standard_normal((batch, *self.input_shape))).astype(np.float32)


def _layer_tensors(draw: Any, g: GraphBuilder, shape: tuple[int, ...], channels: int) -> dict[str, Any]:
    own = g.networks > 1 and draw(st.booleans())
    tensors = {"weight": g.weight(shape, binary=draw(st.integers(0, 4)) > 0, own=own)}
    if draw(st.booleans()):
        tensors |= g.scales(channels, own=g.networks > 1 and draw(st.booleans()))
    elif draw(st.booleans()):
        tensors["shift"] = g.scales(channels)["shift"]
    return tensors


def _conv2d(draw: Any, g: GraphBuilder) -> None:
    channels, height, width = g.shape()
    groups = draw(st.sampled_from([n for n in (1, 1, 1, 2, 3, channels) if channels % n == 0]))
    out = groups * draw(st.sampled_from([1, 2, 5, 33, 64, 70] if groups == 1 else [1, 2]))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    kernel = tuple(
        draw(st.integers(1, max(1, min(3, (n + d - 1) // d)))) for n, d in zip((height, width), dilation, strict=True)
    )
    shape = (out, channels // groups, *kernel)
    g.add(
        "conv2d",
        shape=shape,
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        padding=tuple(draw(st.integers(0, 2)) for _ in range(4)),
        dilation=dilation,
        groups=groups,
        tensors=_layer_tensors(draw, g, shape, out),
    )


def _pool(draw: Any, g: GraphBuilder) -> None:
    _, height, width = g.shape()
    if draw(st.booleans()):
        size = (draw(st.integers(1, height)), draw(st.integers(1, width)))
        g.add(draw(st.sampled_from(["adaptive_max_pool2d", "adaptive_avg_pool2d"])), size=size)
        return
    kernel = (draw(st.integers(1, min(3, height))), draw(st.integers(1, min(3, width))))
    common = dict(
        kernel=kernel,
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        padding=tuple(draw(st.integers(0, k // 2)) for k in kernel),
        ceil=draw(st.booleans()),
    )
    if draw(st.booleans()):
        g.add("avg_pool2d", **common, count_padding=draw(st.booleans()))
    else:
        g.add("max_pool2d", **common, dilation=(1, 1))


def _pointwise(draw: Any, g: GraphBuilder) -> None:
    op = draw(st.sampled_from(SHAPE_KEEPERS))
    if op == "hardtanh":
        g.add(op, min=-0.5, max=1.5)
    elif op == "softmax":
        g.add(op, axis=draw(st.integers(0, len(g.shape()) - 1)))
    elif op == "affine":
        g.add(op, tensors=g.scales(g.shape()[0], own=g.networks > 1 and draw(st.booleans())))
    else:
        g.add(op)


def _branch(draw: Any, g: GraphBuilder) -> None:
    """A residual connection or a concatenation around something that keeps the shape."""
    start = len(g.nodes)
    _pointwise(draw, g)
    if draw(st.booleans()):
        g.add("add", start, len(g.nodes))
    else:
        g.add("concat", start, len(g.nodes), start, axis=draw(st.integers(0, len(g.shape()) - 1)))


def _linear(draw: Any, g: GraphBuilder) -> None:
    out = draw(st.sampled_from([1, 3, 32, 63, 64, 65, 130]))
    shape = (out, g.shape()[-1])
    g.add("linear", shape=shape, tensors=_layer_tensors(draw, g, shape, out))


@st.composite
def models(draw: Any) -> tuple[ModelFile, Any]:
    """A model file and inputs for it."""
    image = draw(st.booleans())
    if image:
        channels = draw(st.sampled_from([1, 2, 3, 4, 6, 9, 32, 36]))
        input_shape: tuple[int, ...] = (channels, draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    else:
        input_shape = (draw(st.sampled_from([1, 3, 4, 31, 33, 64, 100])),)
        if draw(st.integers(0, 3)) == 0:
            input_shape = (draw(st.integers(1, 3)), *input_shape)
    g = GraphBuilder(input_shape, draw(st.sampled_from([1, 1, 3])), draw(st.integers(0, 2**32 - 1)))
    for _ in range(draw(st.integers(1, 5))):
        steps = [_pointwise, _branch, _linear] + [_conv2d, _conv2d, _pool] * (len(g.shape()) == 3)
        draw(st.sampled_from(steps))(draw, g)
        if prod(g.shape()) > 20_000:
            break
    if draw(st.booleans()):
        g.add("reshape", shape=(prod(g.shape()),))
        if g.shape()[0] <= 5_000:
            _linear(draw, g)
    return g.model(), g.inputs(draw(st.integers(1, 4)), spread=draw(st.sampled_from([1e-3, 1.0, 4.0])))
