"""Models for the tests of both exports: single operations of any size, and networks of any form."""

from __future__ import annotations

from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from bayesbinn import models as bb_models
from bayesbinn.errors import InvalidInput
from bayesbinn.export.networks import networks_of
from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import OPERATIONS, Graph, Node, channels_of
from bayesbinn.packing.packer import pack
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.runtime.reference import run

sizes = st.integers(1, 9)


def tensors_of(rng: Any, node: Node, shape: tuple[int, ...], networks: int, kinds: list[str]) -> dict[str, Any]:
    """A tensor for every role of the node; `kinds`: "own" if each network has its own, or a weight's type."""
    found = {}
    for role, name in node.tensors.items():
        copies = (networks,) if "own" in kinds else ()
        if role != "weight":
            found[name] = rng.standard_normal((*copies, channels_of(node.op, shape))).astype(np.float32)
        elif "bits" in kinds:
            out, *rest = node.settings["shape"]
            found[name] = pack_rows(rng.choice([-1, 1], (*copies, out, int(np.prod(rest)))))
        else:
            dtype = np.float16 if "half" in kinds else np.float32
            found[name] = rng.standard_normal((*copies, *node.settings["shape"])).astype(dtype)
    return found


@st.composite
def node_of(draw: Any, op: str, values: list[tuple[int, ...]], inputs: tuple[int, ...], label: str) -> Node:
    """A node of this operation on these values, which may turn out not to fit."""
    shape, settings, roles = values[inputs[0]], {}, ()
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    if op == "linear":
        settings, roles = {"shape": (draw(sizes), shape[-1])}, ("weight",)
    elif op == "conv2d":
        groups = draw(st.sampled_from([g for g in (1, 2, 3) if shape[0] % g == 0]))
        out = groups * draw(st.integers(1, 3))
        settings = {
            "shape": (out, shape[0] // groups, *draw(pair)),
            "stride": draw(pair),
            "padding": draw(st.tuples(*[st.integers(0, 3)] * 4)),
            "dilation": draw(pair),
            "groups": groups,
        }
        roles = ("weight",)
    elif op.startswith("adaptive"):
        settings = {"size": draw(st.tuples(sizes, sizes))}
    elif op in ("max_pool2d", "avg_pool2d"):
        kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
        settings = {"kernel": kernel, "stride": draw(pair), "padding": padding, "ceil": draw(st.booleans())}
        settings |= {"dilation": draw(pair)} if op == "max_pool2d" else {"count_padding": draw(st.booleans())}
    elif op == "hardtanh":
        low = draw(st.floats(-2, 1))
        settings = {"min": low, "max": low + draw(st.floats(0, 2))}
    elif op in ("softmax", "concat"):
        settings = {"axis": draw(st.integers(0, len(shape) - 1))}
    elif op == "reshape":
        count = int(np.prod(shape))
        settings = {"shape": draw(st.sampled_from([(count,), (1, count), (count, 1, 1), shape[::-1]]))}
    optional = [r for r in ("scale", "shift") if roles and draw(st.booleans())]
    roles = ("scale", "shift") if op == "affine" else (*roles, *optional)
    return Node(op, inputs, label, settings, {role: f"{label}.{role}" for role in roles})


@st.composite
def models(draw: Any, ops: tuple[str, ...] = tuple(OPERATIONS), steps: int = 1, task: str = "regression") -> ModelFile:
    """`steps` nodes of these operations, each on any of the values before it; for a classifier a last linear layer."""
    image = any("2d" in op for op in ops)
    rank = 3 if image else draw(st.integers(1, 3))
    networks, rng = draw(st.integers(1, 3)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values: list[tuple[int, ...]] = [tuple(draw(st.lists(sizes, min_size=rank, max_size=rank)))]
    nodes: list[Node] = []
    tensors: dict[str, Any] = {}

    def append(node: Node) -> None:
        kinds = [draw(st.sampled_from(["bits", "bits", "half", "full"])), draw(st.sampled_from(["own", "shared"]))]
        shape = OPERATIONS[node.op].shape(node.settings, [values[v] for v in node.inputs])
        nodes.append(node)
        values.append(shape)
        tensors.update(tensors_of(rng, node, shape, networks, kinds))

    for step in range(steps):
        op = draw(st.sampled_from(ops))
        fitting = [i for i, shape in enumerate(values) if len(shape) == 3 or "2d" not in op]
        first = draw(st.sampled_from(fitting[-3:]))
        inputs = (first,)
        if op in ("add", "concat"):
            alike = [i for i, shape in enumerate(values) if shape == values[first]]
            inputs = (first, *draw(st.lists(st.sampled_from(alike), min_size=1, max_size=1 if op == "add" else 3)))
        node = draw(node_of(op, values, inputs, f"n{step}"))
        try:
            append(node)
        except Exception as error:
            assume(type(error).__name__ != "_Misfit")
            raise
    if task == "classification":
        count = int(np.prod(values[-1]))
        append(Node("reshape", (len(nodes),), "flat", {"shape": (count,)}))
        outputs = draw(st.integers(1, 5))
        append(Node("linear", (len(nodes),), "last", {"shape": (outputs, count)}, {"weight": "w", "shift": "t"}))
    scale = draw(st.floats(0.25, 4)) if task == "classification" else 1.0
    model = ModelFile(Graph(values[0], tuple(nodes), networks, task, scale), tensors)
    try:
        networks_of(model)
    except InvalidInput as error:
        assume("a window covers only padding" not in str(error))
        raise
    return model


def residual(networks: int, task: str = "classification") -> ModelFile:
    """Values that are needed again much later, some by every network: what a memory plan gets wrong first."""
    rng = np.random.default_rng(networks)

    def conv(source: int, label: str, channels: int) -> Node:
        settings = {"shape": (3, channels, 3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
        return Node(
            "conv2d", (source,), label, {**settings, "groups": 1}, {"weight": f"{label}.w", "shift": f"{label}.s"}
        )

    nodes = (
        conv(0, "shared", 2),
        Node("relu", (1,)),
        conv(2, "own", 3),
        Node("add", (3, 2)),
        Node("tanh", (4,)),
        Node("reshape", (2,), "", {"shape": (3, 30, 1)}),
        Node("reshape", (5,), "", {"shape": (3, 30, 1)}),
        Node("add", (6, 7)),
        Node("reshape", (8,), "", {"shape": (3, 6, 5)}),
        Node("concat", (9, 1, 0), "", {"axis": 0}),
        Node("sigmoid", (10,)),
        Node("reshape", (11,), "", {"shape": (240,)}),
        Node("linear", (12,), "last", {"shape": (4, 240)}, {"weight": "last.w"}),
    )
    tensors: dict[str, Any] = {}
    for node in nodes:
        shape = (3, 6, 5) if node.op == "conv2d" else (4,)
        kinds = ["bits", "shared" if node.name == "shared" or networks == 1 else "own"]
        tensors |= tensors_of(rng, node, shape, networks, kinds)
    return ModelFile(Graph((2, 6, 5), nodes, networks, task, 0.1 if task == "classification" else 1.0), tensors)


def drawn(strategy: Any, count: int) -> list[ModelFile]:
    """`count` models of a strategy at once, for tests that compile them all together."""
    found: list[ModelFile] = []

    quiet = settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))

    @settings(quiet, max_examples=count, phases=[Phase.generate])
    @given(strategy)
    def collect(model: ModelFile) -> None:
        found.append(model)

    collect()
    return found


def inputs_for(model: ModelFile, count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, *model.graph.input_shape)).astype(np.float32)


def expected(model: ModelFile, raw: np.ndarray) -> dict[str, np.ndarray]:
    """What the exports must return, from the reference's raw outputs [networks, batch, ...], in float64."""
    z = raw.astype(np.float64)
    if model.graph.task == "regression":
        std = z.std(axis=0, ddof=1) if len(z) > 1 else np.zeros_like(z[0])
        return {"mean": z.mean(axis=0), "std": std}
    z = z * model.graph.logit_scale
    z = np.concatenate([np.zeros_like(z), z], axis=-1) if z.shape[-1] == 1 else z
    top = z.max(axis=-1, keepdims=True)
    logarithms = z - top - np.log(np.exp(z - top).sum(axis=-1, keepdims=True))
    if len(z) == 1:
        return {"logits": z[0], "probabilities": np.exp(logarithms[0])}
    return {
        "logits": np.logaddexp.reduce(logarithms) - np.log(len(z)),
        "probabilities": np.exp(logarithms).mean(axis=0),
    }


def assert_close(found: np.ndarray, right: np.ndarray) -> None:
    assert found.shape == right.shape
    np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(right).max(initial=0))))


@cache
def paper_networks() -> dict[str, tuple[ModelFile, np.ndarray]]:
    """The paper's networks, narrow, with weights of ±1 and the BatchNorm statistics of their inputs; an ensemble.

    Each comes with the reference's outputs for 1,000 inputs, which take seconds, so both test files share them.
    """
    built = {
        "mnist_mlp": (bb_models.mnist_mlp(width=0.05), (1, 28, 28), 0),
        "vgg": (bb_models.vgg(width=0.1), (3, 32, 32), 0),
        "lrnet_mnist": (bb_models.lrnet_mnist(width=0.1), (1, 28, 28), 0),
        "lrnet_cifar10": (bb_models.lrnet_cifar10(width=0.05), (3, 32, 32), 0),
        "two_moons": (bb_models.synthetic_mlp(2), (2,), 0),
        "ensemble": (bb_models.continual_mlp(width=0.3), (1, 28, 28), 3),
    }
    found = {}
    for name, (model, shape, samples) in built.items():
        generator = torch.Generator().manual_seed(1)
        weights = {}
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                weights[key] = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(torch.where(weights[key] > 0, 1.0, -1.0))
            for layer in model.modules():
                if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
                    layer.momentum = None  # the plain mean over batches
            for _ in range(4):
                model(torch.randn(64, *shape, generator=generator))
        posterior = BernoulliPosterior(weights) if samples else None
        example = torch.randn(2, *shape, generator=generator)
        with TemporaryDirectory() as folder:
            packed = pack(model, f"{folder}/model.safetensors", posterior, samples, example_input=example)
        found[name] = packed, run(packed, inputs_for(packed, 1000))
    return found
