"""The NumPy reference against torch, operation by operation, on ragged shapes and odd settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile import container as model_file
from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import OPERATIONS, Graph, Node
from bayesbinn.runtime import reference
from tests.helpers.places import FIXTURES

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def one_node(
    op: str, shape: tuple[int, ...], settings: Mapping[str, Any], tensors: dict[str, np.ndarray] | None = None
) -> ModelFile:
    tensors = tensors or {}
    graph = Graph(shape, (Node(op, (0,), "layer", settings, {role: role for role in tensors}),))
    model = ModelFile(graph, tensors)
    model_file.check_model(model)
    return model


def outputs(model: ModelFile, x: Tensor, activations: Any = "exact") -> Tensor:
    found = reference.run(model, x.numpy(), activations)
    assert found.dtype == np.float32 and found.shape[:2] == (model.graph.networks, len(x))
    assert found.shape[2:] == model_file.shapes(model)[-1]
    return torch.from_numpy(found[0])


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def signs(seed: int, *shape: int) -> Tensor:
    return torch.where(random(seed, *shape) >= 0, 1.0, -1.0)


def packed(weight: Tensor) -> np.ndarray:
    return pack_rows(weight.reshape(len(weight), -1).numpy())


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max() + 1))


def test_every_operation_of_the_graph_has_a_function() -> None:
    assert set(reference.OPERATIONS) == set(OPERATIONS)


# ---- layers with weights ---------------------------------------------------------------------------


@quick
@given(seed=seeds, rows=st.integers(1, 4), inside=st.lists(st.integers(1, 3), max_size=2), k=st.integers(1, 70))
def test_linear(seed: int, rows: int, inside: list[int], k: int) -> None:
    out = seed % 5 + 1
    x, w, scale, shift = random(seed, rows, *inside, k), signs(seed + 1, out, k), random(2, out), random(3, out)
    tensors = {"weight": packed(w), "scale": scale.numpy(), "shift": shift.numpy()}
    close(outputs(one_node("linear", (*inside, k), {"shape": (out, k)}, tensors), x), F.linear(x, w) * scale + shift)
    real = random(seed + 2, out, k)
    close(
        outputs(one_node("linear", (*inside, k), {"shape": (out, k)}, {"weight": real.numpy()}), x), F.linear(x, real)
    )


@quick
@given(data=st.data(), seed=seeds)
def test_conv2d(data: st.DataObject, seed: int) -> None:
    whole = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    pair = lambda low, high: (whole(low, high), whole(low, high))  # noqa: E731
    groups, per_group, out = whole(1, 3), whole(1, 3), whole(1, 3)
    kernel, stride, dilation, size = pair(1, 4), pair(1, 3), pair(1, 2), pair(1, 9)
    top, bottom, left, right = (whole(0, 3) for _ in range(4))
    x = random(seed, 2, groups * per_group, *size)
    padded = F.pad(x, (left, right, top, bottom))
    assume(all(n >= d * (k - 1) + 1 for n, d, k in zip(padded.shape[2:], dilation, kernel, strict=True)))
    w = signs(seed + 1, groups * out, per_group, *kernel)
    options = {
        "shape": tuple(w.shape),
        "stride": stride,
        "padding": (top, bottom, left, right),
        "dilation": dilation,
        "groups": groups,
    }
    shift = random(3, groups * out)
    model = one_node("conv2d", tuple(x.shape[1:]), options, {"weight": packed(w), "shift": shift.numpy()})
    expected = F.conv2d(padded, w, None, stride, 0, dilation, groups) + shift[:, None, None]
    close(outputs(model, x), expected)


def test_affine_works_on_the_first_axis() -> None:
    x, scale, shift = random(0, 2, 3, 4), random(1, 3), random(2, 3)
    model = one_node("affine", (3, 4), {}, {"scale": scale.numpy(), "shift": shift.numpy()})
    close(outputs(model, x), x * scale[:, None] + shift[:, None])


def test_half_precision_weights_are_widened() -> None:
    w = random(0, 3, 5).half()
    model = one_node("linear", (5,), {"shape": (3, 5)}, {"weight": w.numpy()})
    close(outputs(model, random(1, 2, 5)), F.linear(random(1, 2, 5), w.float()))


# ---- pooling ---------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(data=st.data(), seed=seeds, ceil=st.booleans(), count=st.booleans())
def test_pooling(data: st.DataObject, seed: int, ceil: bool, count: bool) -> None:
    whole = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    kernel = (whole(1, 4), whole(1, 4))
    stride, dilation = (whole(1, 4), whole(1, 4)), (whole(1, 2), whole(1, 2))
    padding = (whole(0, kernel[0] // 2), whole(0, kernel[1] // 2))
    x = random(seed, 2, 2, whole(1, 9), whole(1, 9))
    window = {"kernel": kernel, "stride": stride, "padding": padding, "ceil": ceil}
    shape = tuple(x.shape[1:])
    if all(n + 2 * p >= k for n, p, k in zip(shape[1:], padding, kernel, strict=True)):
        model = one_node("avg_pool2d", shape, {**window, "count_padding": count})
        close(outputs(model, x), F.avg_pool2d(x, kernel, stride, padding, ceil, count))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if all(n + 2 * p >= span for n, p, span in zip(shape[1:], padding, spans, strict=True)):
        model = one_node("max_pool2d", shape, {**window, "dilation": dilation})
        close(outputs(model, x), F.max_pool2d(x, kernel, stride, padding, dilation, ceil))


@quick
@given(seed=seeds, size=st.tuples(*[st.integers(1, 9)] * 2), out=st.tuples(*[st.integers(1, 6)] * 2))
def test_adaptive_pooling(seed: int, size: tuple[int, int], out: tuple[int, int]) -> None:
    x = random(seed, 2, 3, *size)
    close(outputs(one_node("adaptive_avg_pool2d", (3, *size), {"size": out}), x), F.adaptive_avg_pool2d(x, out))
    close(outputs(one_node("adaptive_max_pool2d", (3, *size), {"size": out}), x), F.adaptive_max_pool2d(x, out))


# ---- everything else -------------------------------------------------------------------------------

SPECIAL = torch.tensor([[0.0, -0.0, 1.5, -1.5, 200.0, -200.0, float("inf"), float("-inf"), float("nan")]])


@pytest.mark.parametrize(
    ("op", "options", "function"),
    [
        ("relu", {}, F.relu),
        ("tanh", {}, torch.tanh),
        ("sigmoid", {}, torch.sigmoid),
        ("hardtanh", {"min": -1.0, "max": 6.0}, lambda x: F.hardtanh(x, -1.0, 6.0)),
    ],
)
def test_activations_including_nan_and_infinity(op: str, options: dict[str, Any], function: Any) -> None:
    found = outputs(one_node(op, (9,), options), SPECIAL)
    torch.testing.assert_close(found, function(SPECIAL), equal_nan=True)


@quick
@given(seed=seeds, shape=st.lists(st.integers(1, 4), min_size=1, max_size=3), data=st.data())
def test_softmax(seed: int, shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = random(seed, 2, *shape) * 50
    close(outputs(one_node("softmax", tuple(shape), {"axis": axis}), x), torch.softmax(x, axis + 1))


def test_reshape_add_and_concat() -> None:
    x = random(0, 2, 3, 4)
    nodes = (
        Node("reshape", (0,), settings={"shape": (4, 3)}),
        Node("relu", (1,)),
        Node("add", (1, 2)),
        Node("concat", (3, 1, 2), settings={"axis": 1}),
    )
    y = x.reshape(2, 4, 3)
    close(outputs(ModelFile(Graph((3, 4), nodes), {}), x), torch.cat([y + y.relu(), y, y.relu()], dim=2))


def test_maximum_takes_a_nan_as_torch_does() -> None:
    x = random(0, 1, 1, 4, 4)
    x[0, 0, 1, 1] = float("nan")
    options = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil": False, "dilation": (1, 1)}
    torch.testing.assert_close(
        outputs(one_node("max_pool2d", (1, 4, 4), options), x), F.max_pool2d(x, 2), equal_nan=True
    )
    adaptive = outputs(one_node("adaptive_max_pool2d", (1, 4, 4), {"size": (2, 2)}), x)
    torch.testing.assert_close(adaptive, F.adaptive_max_pool2d(x, 2), equal_nan=True)


# ---- 8-bit activations -----------------------------------------------------------------------------


def test_quantized_by_hand() -> None:
    # 127/2 = 63.5: 1 → 63.5 → 64 (even), 0.984252 → 62.5 → 62 (even).
    x = torch.tensor([[2.0, 1.0, -1.0, 62.5 / 63.5, 0.0]])
    q, scale = reference.quantized(x.numpy(), (1,))
    assert q.tolist() == [[127.0, 64.0, -64.0, 62.0, 0.0]]
    assert scale == np.float32(2) / np.float32(127)
    w = torch.tensor([[1.0, 1.0, -1.0, -1.0, 1.0]])
    tensors = {"weight": packed(w), "scale": np.array([3.0], np.float32), "shift": np.array([1.0], np.float32)}
    found = outputs(one_node("linear", (5,), {"shape": (1, 5)}, tensors), x, "int8")
    assert found.item() == np.float32(2) / np.float32(127) * np.float32(127 + 64 + 64 - 62) * np.float32(3) + 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_numbers_gives_nan_and_leaves_the_others(bad: float) -> None:
    x = random(0, 3, 2, 5, 5)
    x[1, 0, 2, 2] = bad
    w = signs(1, 4, 2, 3, 3)
    options = {"shape": (4, 2, 3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "groups": 1}
    found = outputs(one_node("conv2d", (2, 5, 5), options, {"weight": packed(w)}), x, "int8")
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-40, 1e-37])
def test_rows_too_small_for_a_scale_are_zero(size: float) -> None:
    x = torch.full((1, 4), size)
    tensors = {"weight": packed(torch.ones(2, 4)), "shift": np.array([1.0, 2.0], np.float32)}
    assert outputs(one_node("linear", (4,), {"shape": (2, 4)}, tensors), x, "int8").tolist() == [[1.0, 2.0]]


@quick
@given(seed=seeds, k=st.integers(1, 70), scale=st.floats(1e-3, 1e3))
def test_eight_bits_are_close_and_real_weights_stay_exact(seed: int, k: int, scale: float) -> None:
    x, w = random(seed, 3, k) * scale, signs(seed + 1, 4, k)
    binary = one_node("linear", (k,), {"shape": (4, k)}, {"weight": packed(w)})
    bound = x.abs().max(dim=1).values / 127 * (k / 2 + 0.01)
    assert bool(((outputs(binary, x, "int8") - F.linear(x, w)).abs() <= bound[:, None] * 1.001).all())
    real = one_node("linear", (k,), {"shape": (4, k)}, {"weight": random(seed, 4, k).numpy()})
    assert torch.equal(outputs(real, x, "int8"), outputs(real, x))


def test_groups_stay_exact() -> None:
    options = {"shape": (4, 1, 3, 3), "stride": (1, 1), "padding": (1,) * 4, "dilation": (1, 1), "groups": 2}
    model = one_node("conv2d", (2, 5, 5), options, {"weight": packed(signs(1, 4, 1, 3, 3))})
    assert torch.equal(outputs(model, random(0, 3, 2, 5, 5), "int8"), outputs(model, random(0, 3, 2, 5, 5)))


# ---- ensembles, errors, the committed file -----------------------------------------------------------


def test_networks_have_their_own_tensors_or_share_them() -> None:
    w, shift = signs(0, 3, 2, 9), random(1, 2)
    tensors = {"weight": pack_rows(w.numpy()), "shift": shift.numpy()}
    node = Node("linear", (0,), "", {"shape": (2, 9)}, {role: role for role in tensors})
    x = random(2, 4, 9)
    found = reference.run(ModelFile(Graph((9,), (node,), networks=3), tensors), x.numpy())
    close(torch.from_numpy(found), torch.stack([F.linear(x, each) + shift for each in w]))


@pytest.mark.parametrize("shape", [(9,), (2, 8), (2, 9, 1)])
def test_inputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    model = one_node("relu", (9,), {})
    with pytest.raises(InvalidInput, match=r"inputs of shape .*: \[batch, 9\] needed"):
        reference.run(model, np.zeros(shape, np.float32))


def test_unknown_activations_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'exact' or 'int8'"):
        reference.run(one_node("relu", (9,), {}), np.zeros((1, 9), np.float32), "int4")  # type: ignore[arg-type]


# If the last bit differs between machines, an activation can cross a rounding boundary: a difference of 1/127.
@pytest.mark.parametrize(("activations", "tolerance"), [("exact", 1e-5), ("int8", 2e-2)])
def test_a_file_of_version_1_still_gives_the_same(activations: Any, tolerance: float) -> None:
    model = model_file.read(FIXTURES / "model-v1.safetensors")
    recorded = np.load(FIXTURES / "model-v1.npz")
    assert model.graph.networks == 3 and model.graph.classes == ("circle", "square", "star")
    found = reference.run(model, recorded["inputs"], activations)
    np.testing.assert_allclose(found, recorded[activations], rtol=tolerance, atol=tolerance)
