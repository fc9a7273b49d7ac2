"""Affine fusion: one rule for packing and for the native runtime, and the same numbers with and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile, write
from bayesbinn.modelfile.fusion import affine_hosts, composed
from bayesbinn.modelfile.graph import Graph, Node
from bayesbinn.packing.packer import pack
from bayesbinn.runtime import load

WINDOW = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil": False, "dilation": (1, 1)}


def node(op: str, *inputs: int) -> Node:
    return Node(op, inputs)


@pytest.mark.parametrize(
    ("chain", "axes", "hosts"),
    [
        ([node("linear", 0), node("affine", 1)], 1, {1: 0}),
        ([node("linear", 0), node("affine", 1)], 2, {}),  # the last axis of one, the first of the other
        ([node("conv2d", 0), node("affine", 1), node("affine", 2)], 3, {1: 0, 2: 1}),
        ([node("max_pool2d", 0), node("affine", 1)], 3, {1: 0}),
        ([node("relu", 0), node("affine", 1)], 3, {}),  # a scale before a relu is not one after it
        ([node("affine", 0)], 1, {}),  # nothing comes before it
        ([node("conv2d", 0), node("affine", 1), node("add", 2, 1)], 3, {}),  # the value is needed as it was
        ([node("conv2d", 0), node("relu", 0), node("affine", 1), node("add", 2, 3)], 3, {2: 0}),
    ],
)
def test_an_affine_is_fused_if_the_channels_are_the_same(chain: list[Node], axes: int, hosts: dict[int, int]) -> None:
    assert affine_hosts(chain, [axes] * len(chain)) == hosts


def test_two_affines_are_one() -> None:
    pairs: list[tuple[Any, Any]] = [(s, t) for s in (None, 2.0) for t in (None, -3.0)]
    for first in pairs:
        for second in pairs:
            x = 5.0
            for scale, shift in (first, second):
                x = x * (1 if scale is None else scale) + (0 if shift is None else shift)
            scale, shift = composed(first, second)
            assert 5.0 * (1 if scale is None else scale) + (0 if shift is None else shift) == x


@pytest.mark.parametrize("op", ["linear", "conv2d", "max_pool2d"])
@pytest.mark.parametrize("branches", [False, True], ids=["chain", "branch"])
def test_the_native_runtime_fuses_without_changing_a_result(op: str, branches: bool, tmp_path: Path) -> None:
    """Compared with the reference, which fuses nothing; a branch needs the value before the affine."""
    rng = np.random.default_rng(0)
    channels = 4
    settings: dict[str, Any] = {
        "linear": {"shape": (channels, 6)},
        "conv2d": {
            "shape": (channels, 4, 3, 3),
            "stride": (1, 1),
            "padding": (1, 1, 1, 1),
            "dilation": (1, 1),
            "groups": 1,
        },
        "max_pool2d": WINDOW,
    }[op]
    shape = (6,) if op == "linear" else (channels, 6, 6)
    tensors: dict[str, Any] = {
        "s": rng.standard_normal(channels).astype(np.float32),
        "t": rng.standard_normal(channels).astype(np.float32),
    }
    if "shape" in settings:
        out, *rest = settings["shape"]
        tensors["w"] = pack_rows(rng.choice([-1, 1], (out, int(np.prod(rest)))))
    nodes = [
        Node(op, (0,), "host", settings, {"weight": "w"} if "w" in tensors else {}),
        Node("affine", (1,), "affine", {}, {"scale": "s", "shift": "t"}),
        Node("add", (2, 1)) if branches else Node("relu", (2,)),
    ]
    path = tmp_path / "model.safetensors"
    write(path, ModelFile(Graph(shape, tuple(nodes), task="regression"), tensors))
    x = rng.standard_normal((3, *shape)).astype(np.float32)
    native, reference = (load(path, backend=backend).outputs(x) for backend in ("native", "reference"))
    np.testing.assert_allclose(native, reference, rtol=1e-5, atol=1e-5)


def test_packing_keeps_an_affine_whose_input_is_needed_elsewhere(tmp_path: Path) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return x + self.norm(x)

    packed = pack(Residual(), tmp_path / "branch.safetensors", example_input=torch.randn(3, 4))
    assert [each.op for each in packed.graph.nodes] == ["linear", "affine", "add"]
    chain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    packed = pack(chain, tmp_path / "chain.safetensors")
    assert [each.op for each in packed.graph.nodes] == ["linear"]
