"""The native runtime against the NumPy reference, and what a user of `load` sees."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from bayesbinn.errors import InvalidFile, InvalidInput, InvalidUse
from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile, write
from bayesbinn.runtime import Model, load, reference
from tests.helpers.places import ROOT
from tests.helpers.random_graphs import GraphBuilder, models

native = pytest.importorskip("bayesbinn.runtime._native", reason="the package was built without native kernels")


def linear_model(outputs: int, count: int, networks: int = 1, own: bool = False, seed: int = 0) -> GraphBuilder:
    g = GraphBuilder((count,), networks, seed)
    g.add("linear", shape=(outputs, count), tensors={"weight": g.weight((outputs, count), own=own)})
    return g


def outputs_of(model: ModelFile, x: np.ndarray, activations: str, threads: int = 1) -> np.ndarray:
    return Model(model, activations, threads, backend="native").outputs(x)


def unchecked_outputs(model: ModelFile, x: np.ndarray, activations: str) -> np.ndarray:
    """The kernels' outputs for any numbers, including those that `Model` rejects."""
    return Model(model, activations, 1, backend="native")._run(x.reshape(len(x), -1))


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float, rounding: float = 0.0) -> None:
    assert actual.shape == expected.shape
    assert np.array_equal(np.isfinite(actual), np.isfinite(expected))
    finite = np.isfinite(expected)
    largest = np.abs(expected[finite]).max(initial=1e-6)
    np.testing.assert_allclose(actual[finite], expected[finite], rtol=0, atol=tolerance * largest + rounding)


def rounding_of(model: ModelFile, x: np.ndarray) -> float:
    """How far the outputs move if inputs change in their last bits: large where large sums cancel before a tanh."""
    rng = np.random.default_rng(0)
    expected = reference.run(model, x, "exact")
    moved = [reference.run(model, _nudged(x, rng), "exact") for _ in range(3)]
    return float(max(np.nanmax(np.abs(np.where(np.isfinite(y), y - expected, 0))) for y in moved))


def _nudged(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (x * (1 + 2.0**-22 * rng.choice([-1, 1], x.shape))).astype(np.float32)


# ---- against the reference ---------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(models())
def test_native_and_reference_agree_on_random_graphs(drawn: tuple[ModelFile, np.ndarray]) -> None:
    model, x = drawn
    # Sums in another order differ in the last bits, and a squashing function hides how large the sums were.
    assert_close(outputs_of(model, x, "exact", 2), reference.run(model, x, "exact"), 1e-4, 4 * rounding_of(model, x))
    # A difference in the last bit can become 1/127 after rounding to 8 bits: both must be the same only if
    # all operations before the last layer with weights are exact.
    weighted = [i for i, node in enumerate(model.graph.nodes) if "weight" in node.tensors]
    before = {node.op for node in model.graph.nodes[: weighted[-1] if weighted else 0]}
    tolerance = (
        1e-4 if before <= {"relu", "hardtanh", "reshape", "concat", "max_pool2d", "adaptive_max_pool2d"} else 0.1
    )
    assert_close(outputs_of(model, x, "int8", 2), reference.run(model, x, "int8"), tolerance)


def test_an_affine_after_a_linear_layer_of_rows_scales_the_rows() -> None:
    g = GraphBuilder((2, 5), 1, 0)
    g.add("linear", shape=(7, 5), tensors={"weight": g.weight((7, 5))})
    g.add("affine", tensors=g.scales(2))
    x = g.inputs(3)
    assert_close(outputs_of(g.model(), x, "exact"), reference.run(g.model(), x, "exact"), 1e-5)


@pytest.mark.parametrize("outputs", [1, 3, 31, 32, 33, 63, 64, 65, 127, 200])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 32, 33, 63, 100, 1025])
def test_ragged_linear_layers_match_bit_for_bit_in_8_bits(outputs: int, count: int) -> None:
    g = linear_model(outputs, count)
    x = g.inputs(3)
    model = g.model()
    np.testing.assert_array_equal(outputs_of(model, x, "int8"), reference.run(model, x, "int8"))
    assert_close(outputs_of(model, x, "exact"), reference.run(model, x, "exact"), 1e-5)


@pytest.mark.parametrize("count", [8447, 8448, 8449, 25088])
def test_16_bit_totals_never_overflow(count: int) -> None:
    """All activations at ±127 and all weights agreeing with them: the largest possible sums."""
    signs = np.where(np.arange(count) % 3 == 0, -1.0, 1.0).astype(np.float32)
    g = GraphBuilder((count,), 1, 0)
    g.add(
        "linear",
        shape=(70, count),
        tensors={"weight": pack_rows(np.tile(signs, (70, 1)) * np.array([1, -1] * 35)[:, None])},
    )
    x = np.stack([signs, -signs, np.ones_like(signs), 127 * signs])
    y = outputs_of(g.model(), x, "int8")[0]
    ones = float(signs.sum())
    expected = np.array([count, -count, ones, 127.0 * count])[:, None] * np.array([1, -1] * 35)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_array_equal(y, reference.run(g.model(), x, "int8")[0])


@pytest.mark.parametrize("channels", [3, 4, 32, 36, 64])
@pytest.mark.parametrize("dilation", [1, 2])
def test_zero_padding_is_right_at_the_border(channels: int, dilation: int) -> None:
    """Weights of +1 over an image of ones count the pixels under the window; padding does not count."""
    g = GraphBuilder((channels, 5, 6), 1, 0)
    weight = pack_rows(np.ones((65, channels * 9)))
    border = (dilation,) * 4
    g.add(
        "conv2d",
        shape=(65, channels, 3, 3),
        stride=(1, 1),
        padding=border,
        dilation=(dilation,) * 2,
        groups=1,
        tensors={"weight": weight},
    )
    counted = [[0 <= i + dilation * k < n for k in (-1, 0, 1)] for n in (5, 6) for i in range(n)]
    rows, columns = (np.array([sum(c) for c in part]) for part in (counted[:5], counted[5:]))
    expected = channels * np.outer(rows, columns)
    for activations in ("exact", "int8"):
        y = outputs_of(g.model(), np.ones((2, channels, 5, 6), np.float32), activations)
        np.testing.assert_allclose(y, np.broadcast_to(expected, y.shape), rtol=1e-6)


@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_zeros_nan_infinity_and_tiny_numbers(activations: str) -> None:
    g = linear_model(65, 40)
    x = g.inputs(6)
    x[1] = 0
    x[2, 7] = np.nan
    x[3, 5] = np.inf
    x[4] = 1e-42
    y, expected = unchecked_outputs(g.model(), x, activations)[0], reference.run(g.model(), x, activations)[0]
    assert np.array_equal(np.isnan(y[2]), np.ones(65, bool))
    assert not np.isfinite(y[3]).any()
    assert np.isfinite(y[[0, 1, 4, 5]]).all()
    assert not y[1].any()
    finite = np.isfinite(expected)
    np.testing.assert_allclose(y[finite], expected[finite], rtol=1e-4, atol=1e-5)


def test_a_nan_pixel_spoils_only_its_image() -> None:
    g = GraphBuilder((32, 6, 6), 1, 0)
    g.add_convolution(40)
    x = g.inputs(3)
    x[1, 4, 2, 2] = np.nan
    y = unchecked_outputs(g.model(), x, "int8")[0]
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()


@settings(max_examples=30, deadline=None)
@given(models())
def test_neither_threads_nor_batch_change_a_result(drawn: tuple[ModelFile, np.ndarray]) -> None:
    model, x = drawn
    for activations in ("exact", "int8"):
        whole = outputs_of(model, x, activations, 1)
        np.testing.assert_array_equal(outputs_of(model, x, activations, 3), whole)
        single = [outputs_of(model, x[i : i + 1], activations, 2) for i in range(len(x))]
        np.testing.assert_array_equal(np.concatenate(single, axis=1), whole)


def test_batches_larger_than_what_runs_at_once() -> None:
    g = linear_model(10, 20)
    x = g.inputs(1000)
    np.testing.assert_array_equal(outputs_of(g.model(), x, "int8", 2), reference.run(g.model(), x, "int8"))
    assert outputs_of(g.model(), x[:0], "int8").shape == (1, 0, 10)


def test_every_instruction_set_gives_the_same_bits(tmp_path: Path) -> None:
    g = GraphBuilder((32, 7, 7), 1, 3)
    g.add_convolution(70, **g.scales(70))
    g.add("relu")
    g.add("reshape", shape=(prod(g.shape()),))
    g.add("linear", shape=(10, g.shape()[0]), tensors={"weight": g.weight((10, g.shape()[0]))})
    write(tmp_path / "m.safetensors", g.model())
    np.save(tmp_path / "x.npy", g.inputs(3))
    program = (
        "import sys, numpy as np, bayesbinn.runtime as r\n"
        "x = np.load('x.npy')\n"
        "y = [r.load('m.safetensors', a, 2, backend='native').outputs(x) for a in ('exact', 'int8')]\n"
        "np.save(sys.argv[1], np.stack(y))"
    )
    results = []
    for isa in ("portable", native.isa()):
        if isa == "portable" and native.isa() == "neon":
            pytest.skip("this build has one instruction set")
        subprocess.run(
            [sys.executable, "-c", program, f"{isa}.npy"],
            cwd=tmp_path,
            check=True,
            env={**os.environ, "BAYESBINN_ISA": isa},
        )
        results.append(np.load(tmp_path / f"{isa}.npy"))
    np.testing.assert_array_equal(results[0], results[1])


# ---- the model as the user sees it --------------------------------------------------------------------


def two_layers(networks: int = 1, **extra: object) -> GraphBuilder:
    g = GraphBuilder((12,), networks, 5)
    g.add("linear", shape=(30, 12), tensors={"weight": g.weight((30, 12), own=networks > 1), **g.scales(30)})
    g.add("relu")
    g.add("linear", shape=(4, 30), tensors={"weight": g.weight((4, 30), own=networks > 1)})
    return g


@pytest.mark.parametrize("networks", [1, 5])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_logits_probabilities_and_uncertainty_fit_together(networks: int, backend: str) -> None:
    g = two_layers(networks)
    x = g.inputs(20)
    model = Model(g.model(logit_scale=0.3), backend=backend)
    logits, p = model.predict(x), model.predict_proba(x)
    e = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(e / e.sum(1, keepdims=True), p, atol=1e-6)
    prediction = model.prediction(x)
    each = np.exp(0.3 * model.outputs(x).astype(np.float64))
    each /= each.sum(-1, keepdims=True)
    np.testing.assert_allclose(prediction.probabilities, each.mean(0), atol=1e-6)
    np.testing.assert_allclose(prediction.aleatoric, -(each * np.log(each)).sum(-1).mean(0), atol=1e-5)
    np.testing.assert_allclose(prediction.entropy, prediction.aleatoric + prediction.mutual_information, atol=1e-5)
    assert (prediction.mutual_information.max() > 0.01) == (networks > 1)
    np.testing.assert_array_equal(prediction.classes, p.argmax(1))


def test_one_logit_means_two_classes_and_regression_has_a_deviation() -> None:
    g = GraphBuilder((3,), 4, 1)
    g.add("linear", shape=(1, 3), tensors={"weight": g.weight((1, 3), own=True)})
    x = g.inputs(6)
    classifier = Model(g.model())
    z = classifier.outputs(x)[..., 0].astype(np.float64)
    np.testing.assert_allclose(classifier.predict_proba(x)[:, 1], (1 / (1 + np.exp(-z))).mean(0), atol=1e-6)
    regressor = Model(g.model(task="regression"))
    np.testing.assert_allclose(regressor.regression(x).mean, regressor.predict(x), atol=1e-6)
    np.testing.assert_allclose(regressor.regression(x).std[:, 0], z.std(0, ddof=1), rtol=1e-5)
    with pytest.raises(InvalidUse, match="regression"):
        regressor.predict_proba(x)
    with pytest.raises(InvalidUse, match="classifier"):
        classifier.regression(x)


def test_wrong_inputs_get_one_clear_line(tmp_path: Path) -> None:
    model = Model(two_layers().model())
    for bad, text in [
        (np.zeros(12), r"\[batch, 12\] is needed, with the batch first"),
        (np.zeros((2, 11)), r"inputs of shape \(2, 11\)"),
        ([["a"] * 12], "numbers"),
        ([[1, 2], [3]], "numbers"),
        (np.float32(1), "shape"),
    ]:
        with pytest.raises(InvalidInput, match=text):
            model.predict(bad)
    for arguments, text in [
        ({"activations": "int4"}, "'exact' or 'int8'"),
        ({"threads": 0}, "from 1"),
        ({"backend": "gpu"}, "'native'"),
    ]:
        with pytest.raises(InvalidInput, match=text):
            Model(two_layers().model(), **arguments)
    with pytest.raises(InvalidFile, match="no such file"):
        load(tmp_path / "none.safetensors")


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_inputs_that_are_not_numbers_are_rejected_by_row(backend: str) -> None:
    model = Model(two_layers().model(), backend=backend)
    calls = (model.outputs, model.predict, model.predict_proba, model.prediction)
    for bad in (np.nan, np.inf, -np.inf, 1e39):
        x = np.zeros((5, 12))
        x[3, 7] = bad
        for call in calls:
            for inputs in (x, x.tolist()) if bad == 1e39 else (x, x.astype(np.float32)):
                with pytest.raises(InvalidInput, match=r"^row 3 has NaN, infinity or a number too large for float32"):
                    call(inputs)
    with pytest.raises(InvalidInput, match="real numbers"):
        model.predict(np.zeros((2, 12), complex))


def test_masked_entries_are_refused_by_row() -> None:
    model = Model(two_layers().model())
    x = np.ma.masked_array(np.ones((4, 12)), np.zeros((4, 12), bool))
    np.testing.assert_array_equal(model.predict(x), model.predict(np.ones((4, 12))))
    x[2, 5] = np.ma.masked
    for inputs in (x, list(x), x.astype(np.float32)):
        with pytest.raises(InvalidInput, match=r"^row 2 has masked entries; fill them first"):
            model.predict(inputs)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_outputs_beyond_float32_are_rejected(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesbinn.runtime.model._STRIP_BYTES", 2 * 12 * 4 * 4)  # two rows at a time
    g = two_layers()
    x = g.inputs(6)
    x[4] = 3e38 * np.sign(x[4])
    classifier, regressor = Model(g.model(), backend=backend), Model(g.model(task="regression"), backend=backend)
    assert not np.isfinite(classifier.outputs(x)[0, 4]).all(), "this test needs sums that overflow"
    for call in (classifier.predict, classifier.prediction, regressor.predict, regressor.regression):
        with pytest.raises(InvalidInput, match=r"^row 4: the model's output is NaN or infinite"):
            call(x)
    scaled = Model(g.model(logit_scale=1e38), backend=backend)
    with pytest.raises(InvalidInput, match=r"^row 0: the model's output is NaN or infinite"):
        scaled.predict_proba(10 * g.inputs(2))


def test_images_may_come_flat_or_as_bytes() -> None:
    g = GraphBuilder((1, 4, 4), 1, 0)
    g.add("reshape", shape=(16,))
    g.add("linear", shape=(3, 16), tensors={"weight": g.weight((3, 16))})
    model = Model(g.model())
    pixels = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4)
    np.testing.assert_array_equal(model.predict(pixels), model.predict(pixels.reshape(2, 16).astype(np.float64)))


def test_several_python_threads_take_turns() -> None:
    g = two_layers()
    model, x = Model(g.model(), "int8", 2), g.inputs(200)
    expected, results = model.predict(x), {}

    def work(i: int) -> None:
        results[i] = [model.predict(x) for _ in range(20)]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4
    for each in results.values():
        for y in each:
            np.testing.assert_array_equal(y, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_model_works_after_a_fork() -> None:
    program = (
        "import os, numpy as np\n"
        "from tests.runtime.test_runtime import two_layers, Model\n"
        "g = two_layers(); m = Model(g.model(), 'int8', 2); x = g.inputs(50); y = m.predict(x)\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if np.array_equal(m.predict(x), y) else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "print('same')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "same", done.stderr


def test_the_runtime_never_imports_torch(tmp_path: Path) -> None:
    g = two_layers()
    write(tmp_path / "m.safetensors", g.model())
    program = (
        "import sys; import numpy as np, bayesbinn.runtime as r\n"
        "r.load('m.safetensors', 'int8').predict_proba(np.zeros((2, 12)))\n"
        "print([name for name in ('torch', 'typer', 'rich', 'pydantic', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
