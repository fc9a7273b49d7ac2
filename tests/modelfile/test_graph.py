"""The layer graph: the same shapes as torch, and rules that a graph must follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from bayesbinn.errors import InvalidFile
from bayesbinn.modelfile import bits
from bayesbinn.modelfile.graph import OPERATIONS, Graph, Node, Stored, check_graph, own_per_network, pooled_size

CONV = {"shape": (4, 2, 3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
POOL = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil": False, "dilation": (1, 1)}
STORED = {
    "bits": Stored("uint8", (4, 3)),
    "many": Stored("uint8", (5, 4, 3)),
    "real": Stored("float16", (4, 2, 3, 3)),
    "four": Stored("float32", (4,)),
    "own": Stored("float32", (5, 4)),
    "matrix": Stored("float32", (4, 6)),
}


def check(nodes: list[Node], shape: tuple[int, ...] = (2, 6, 6), **options: Any) -> list[tuple[int, ...]]:
    return check_graph(Graph(shape, tuple(nodes), **options), STORED)


def conv(**changes: Any) -> Node:
    tensors = changes.pop("tensors", {"weight": "bits"})
    return Node("conv2d", (0,), "layer", {**CONV, **changes}, tensors)


# ---- bits ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 4), weights=st.integers(1, 70), seed=st.integers(0, 1000))
def test_bits_come_back_and_padding_is_zero(rows: int, weights: int, seed: int) -> None:
    signs = np.where(np.random.default_rng(seed).random((rows, weights)) < 0.5, -1.0, 1.0).astype(np.float32)
    packed = bits.pack_rows(signs)
    assert packed.shape == (rows, bits.row_bytes(weights)) and bits.padding_is_zero(packed, weights)
    assert np.array_equal(bits.unpack_rows(packed, weights), signs)
    for k in range(weights):
        assert (packed[0, k // 8] >> (k % 8)) & 1 == (signs[0, k] > 0)
    if weights % 8:
        packed[-1, -1] |= 0x80
        assert not bits.padding_is_zero(packed, weights)


# ---- shapes ------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 12),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    ceil=st.booleans(),
    data=st.data(),
)
def test_pooled_size_is_torchs(n: int, kernel: int, stride: int, dilation: int, ceil: bool, data: Any) -> None:
    padding = data.draw(st.integers(0, kernel // 2))
    if n + 2 * padding < dilation * (kernel - 1) + 1:
        return
    expected = F.max_pool1d(torch.zeros(1, 1, n), kernel, stride, padding, dilation, ceil).shape[-1]
    assert pooled_size(n, kernel, stride, padding, dilation, ceil) == expected


def test_shapes_of_a_whole_graph() -> None:
    nodes = [
        conv(tensors={"weight": "bits", "scale": "four", "shift": "own"}),
        Node("max_pool2d", (1,), settings=POOL),
        Node("adaptive_avg_pool2d", (1,), settings={"size": (3, 3)}),
        Node("add", (2, 3)),
        Node("concat", (2, 4), settings={"axis": 0}),
        Node("reshape", (5,), settings={"shape": (12, 6)}),
        Node("linear", (6,), settings={"shape": (4, 6)}, tensors={"weight": "matrix"}),
        Node("softmax", (7,), settings={"axis": 1}),
    ]
    shapes = check(nodes, networks=5)
    assert shapes == [
        (2, 6, 6),
        (4, 6, 6),
        (4, 3, 3),
        (4, 3, 3),
        (4, 3, 3),
        (8, 3, 3),
        (12, 6),
        (12, 4),
        (12, 4),
    ]


def test_a_tensor_per_network_has_one_axis_more() -> None:
    assert not own_per_network(STORED["bits"], "conv2d", "weight")
    assert own_per_network(STORED["many"], "conv2d", "weight")
    assert not own_per_network(STORED["real"], "conv2d", "weight")
    assert own_per_network(Stored("float32", (5, 4, 6)), "linear", "weight")
    assert own_per_network(STORED["own"], "affine", "scale") and not own_per_network(STORED["four"], "affine", "scale")


# ---- rules -------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[Node], str]] = {
    "nothing": ([], "0 nodes"),
    "unknown operation": ([Node("rellu", (0,))], r"node 0 \(rellu\): unknown operation. Did you mean 'relu'"),
    "own value": ([Node("relu", (1,))], "must be values 0 to 0"),
    "negative value": ([Node("relu", (-1,))], "must be values 0 to 0"),
    "flag as a value": ([Node("relu", (False,))], "must be values 0 to 0"),
    "two inputs": ([Node("relu", (0, 0))], "2 inputs, it takes 1"),
    "no inputs": ([Node("concat", (), settings={"axis": 0})], "0 inputs, it takes at least 1"),
    "unknown setting": ([Node("relu", (0,), settings={"slope": 1.0})], r"settings \['slope'\], it takes \[\]"),
    "missing setting": ([Node("softmax", (0,))], r"it takes \['axis'\]"),
    "list for a tuple": ([conv(stride=[1, 1])], "stride=.1, 1. is not allowed"),
    "no stride": ([conv(stride=(0, 1))], "is not allowed"),
    "negative padding": ([conv(padding=(0, 0, -1, 0))], "is not allowed"),
    "huge dilation": ([conv(dilation=(1, 1 << 30))], "is not allowed"),
    "flag as a number": ([conv(groups=True)], "is not allowed"),
    "groups that do not divide": ([conv(groups=3)], "equal groups"),
    "window too large": ([conv(dilation=(9, 9))], "a window of .3, 3. does not fit"),
    "no image": ([Node("reshape", (0,), settings={"shape": (72,)}), replace(conv(), inputs=(1,))], "an image"),
    "too much padding": ([Node("max_pool2d", (0,), settings={**POOL, "padding": (2, 0)})], "half of the kernel"),
    "pool too large": ([Node("max_pool2d", (0,), settings={**POOL, "kernel": (7, 7)})], "does not fit"),
    "other size": ([Node("reshape", (0,), settings={"shape": (5, 5)})], "25 elements are needed"),
    "axis": ([Node("softmax", (0,), settings={"axis": 3})], "an axis 3 is needed"),
    "bounds": ([Node("hardtanh", (0,), settings={"min": 1.0, "max": 0.0})], "min is above max"),
    "whole bound": ([Node("hardtanh", (0,), settings={"min": 0, "max": 1.0})], "is not allowed"),
    "two shapes": ([Node("max_pool2d", (0,), settings=POOL), Node("add", (0, 1))], "two values of the same shape"),
    "concat": (
        [Node("max_pool2d", (0,), settings=POOL), Node("concat", (0, 1), settings={"axis": 0})],
        "same shape except",
    ),
    "features": ([Node("linear", (0,), settings={"shape": (4, 7)}, tensors={"weight": "matrix"})], "7 features"),
    "no weight": ([conv(tensors={})], "it has no weight"),
    "no shift": ([Node("affine", (0,), tensors={"scale": "four"})], "it has no shift"),
    "tensor of no role": ([conv(tensors={"weight": "bits", "bias": "four"})], "it takes no 'bias'"),
    "missing tensor": ([conv(tensors={"weight": "nothing"})], "the file has no tensor 'nothing'"),
    "bits as a shift": ([conv(tensors={"weight": "bits", "shift": "bits"})], "shift is uint8"),
    "networks of another number": ([conv(tensors={"weight": "many"})], "or one for each of 1 networks"),
    "growth": (
        [Node("adaptive_avg_pool2d", (0,), settings={"size": (1 << 16, 1 << 16)})],
        "elements, 268435456 are allowed",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_graph_that_breaks_a_rule_is_refused(case: str) -> None:
    nodes, message = REFUSED[case]
    with pytest.raises(InvalidFile, match=message) as caught:
        check(nodes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"networks": 0}, "0 networks"),
        ({"networks": 1 << 20}, "networks: 1 to 4096"),
        ({"logit_scale": 0.0}, "logit scale 0.0"),
        ({"logit_scale": float("nan")}, "logit scale nan"),
        ({"logit_scale": 1e39}, "logit scale 1e[+]39: it must be a finite number above 0 in float32"),
        ({"logit_scale": 1e-60}, "logit scale 1e-60"),
        ({"task": "ranking"}, "task 'ranking'"),
        ({"classes": ("a", "b")}, "2 class names for 6 classes"),
        ({"features": ("a", "b")}, "2 column names for inputs of shape"),
        ({"input_shape": ()}, "input shape"),
        ({"input_shape": (1 << 20, 1 << 20)}, "input shape"),
    ],
)
def test_the_graph_itself_is_checked(changes: dict[str, Any], message: str) -> None:
    graph = Graph((2, 6, 6), (Node("relu", (0,)),))
    check_graph(graph, {})
    with pytest.raises(InvalidFile, match=message):
        check_graph(replace(graph, **changes), {})


def test_two_names_for_a_single_logit() -> None:
    graph = Graph((3, 1), (Node("reshape", (0,), settings={"shape": (3, 1)}),), classes=("no", "yes"))
    assert check_graph(graph, {})[-1] == (3, 1)


def test_every_operation_says_what_it_takes() -> None:
    for operation in OPERATIONS.values():
        assert set(operation.tensors) <= {"weight", "scale", "shift"}
        assert not set(operation.settings) & {"op", "name", "inputs", "weight", "scale", "shift"}
