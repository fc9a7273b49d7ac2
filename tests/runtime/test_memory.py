"""Small files that ask for a lot: each runs in little memory or is rejected with one line, and none loads slowly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesbinn.errors import InvalidInput, TooMuchMemory
from bayesbinn.modelfile.container import ModelFile, to_bytes, write
from bayesbinn.modelfile.graph import Node
from bayesbinn.runtime import Model, load, reference
from tests.helpers.random_graphs import GraphBuilder

pytest.importorskip("bayesbinn.runtime._native", reason="the package was built without native kernels")

MB = 1 << 20


def convolution(
    g: GraphBuilder, out: int, channels: int, kernel: tuple[int, int], groups: int = 1, **other: Any
) -> None:
    shape = (out, channels // groups, *kernel)
    settings = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": groups, **other}
    g.add("conv2d", shape=shape, tensors={"weight": g.weight(shape)}, **settings)


# ---- files -------------------------------------------------------------------------------------------


def wide_windows() -> GraphBuilder:
    """60,000 windows of 2,001 pixels, all in one row of the image."""
    g = GraphBuilder((1, 1, 60_000), 1, 0)
    convolution(g, 1, 1, (1, 2001), padding=(0, 0, 1000, 1000))
    return g


def far_apart() -> GraphBuilder:
    """Two rows of taps, 8,192 rows apart: as a ring of tables, 4.2 GB."""
    g = GraphBuilder((16, 1, 1), 1, 0)
    convolution(g, 1, 16, (2, 2), padding=(1 << 13, 0, 3999, 0), dilation=(1 << 13, 1))
    return g


def large_values() -> GraphBuilder:
    """Three values of 1 GB."""
    g = GraphBuilder((1, 1, 1), 1, 0)
    convolution(g, 1, 1, (1, 1), padding=(0, (1 << 14) - 1, 0, (1 << 14) - 1))
    g.add("tanh")
    g.add("sigmoid")
    g.add("add", 1, 3)
    g.add("adaptive_avg_pool2d", size=(1, 1))
    return g


def shared_groups() -> GraphBuilder:
    """Bits in 40,000 groups of one output, which 60 nodes share: a copy for each would take 2.4 GB."""
    groups = 40_000
    g = GraphBuilder((8 * groups, 1, 1), 1, 0)
    convolution(g, groups, 8 * groups, (1, 1), groups)
    first = g.nodes[0]
    for _ in range(60):
        g.nodes.append(Node("conv2d", (0,), "", first.settings, first.tensors))
        g.nodes.append(Node("add", (len(g.nodes) - 1, len(g.nodes))))
    return g


def shared_scales() -> GraphBuilder:
    """Scales of 20,000 channels, which 1,000 nodes share: a copy for each would take 160 MB."""
    g = GraphBuilder((20_000,), 1, 0)
    g.add("affine", tensors={"scale": np.full(20_000, 1.001, np.float32), "shift": np.zeros(20_000, np.float32)})
    for index in range(1_000):
        g.nodes.append(Node("relu", (2 * index + 1,)))
        g.nodes.append(Node("affine", (2 * index + 2,), "", {}, g.nodes[0].tensors))
    return g


def many_pooling_windows() -> GraphBuilder:
    """200 layers of 65,536 windows."""
    g = GraphBuilder((1, 1, 1 << 16), 1, 0)
    for _ in range(200):
        g.add("adaptive_max_pool2d", size=(1, 1 << 16))
    return g


def wide_rows() -> GraphBuilder:
    """A linear layer on 2,000,000 rows of one number; prepared for lookup, a row takes 320 bytes."""
    g = GraphBuilder((2_000_000, 1), 1, 0)
    g.add("linear", shape=(1, 1), tensors={"weight": g.weight((1, 1))})
    return g


def far_padding() -> GraphBuilder:
    """One pixel, a million pixels of padding on each side, nine outputs: NumPy would pad to 16 TB."""
    g = GraphBuilder((1, 1, 1), 1, 0)
    convolution(g, 1, 1, (1, 1), padding=(1 << 20,) * 4, stride=(1 << 20, 1 << 20))
    return g


def sound() -> GraphBuilder:
    """A legitimate one-dimensional convolution: 64 channels of 160,000, a kernel of 9."""
    g = GraphBuilder((64, 1, 160_000), 1, 0)
    convolution(g, 64, 64, (1, 9), padding=(0, 0, 4, 4))
    return g


# ---- measuring ---------------------------------------------------------------------------------------

PROGRAM = """
import json, resource, sys, time
import numpy as np
import bayesbinn.runtime as runtime
from bayesbinn.runtime import _native, model, native

path, activations, backend = sys.argv[1:]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before, start, facts = peak(), time.process_time(), {}
try:
    loaded = runtime.load(path, activations, 2, backend=backend)
    facts |= {"load_seconds": time.process_time() - start, "load_mb": peak() - before}
    x = np.random.default_rng(0).standard_normal((1, *loaded.input_shape)).astype(np.float32)
    before = peak()
    y = loaded.outputs(x)
    facts |= {"finite": bool(np.isfinite(y).all()), "sum": float(np.abs(y).sum())}
except MemoryError as error:
    facts |= {"error": str(error)}
print(json.dumps(facts | {"seconds": time.process_time() - start, "mb": peak() - before}))
"""


def measured(graph: GraphBuilder, folder: Path, activations: str, backend: str = "native") -> dict[str, Any]:
    """Load and run a file in a separate process; return the megabytes and the CPU time in seconds that it took."""
    path = folder / "m.safetensors"
    write(path, graph.model())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), activations, backend],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


SMALL: list[tuple[Callable[[], GraphBuilder], int]] = [
    (wide_windows, 20),
    (far_apart, 40),
    (shared_groups, 80),
    (shared_scales, 40),
    (many_pooling_windows, 20),
    (wide_rows, 60),
    (far_padding, 20),
]


@pytest.mark.parametrize("activations", ["exact", "int8"])
@pytest.mark.parametrize(("graph", "megabytes"), SMALL, ids=[graph.__name__ for graph, _ in SMALL])
def test_a_file_takes_what_its_work_needs(
    graph: Callable[[], GraphBuilder], megabytes: int, activations: str, tmp_path: Path
) -> None:
    facts = measured(graph(), tmp_path, activations)
    assert facts["finite"]
    assert facts["load_mb"] < megabytes and facts["mb"] < megabytes
    assert facts["load_seconds"] < 2.0


@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_a_legitimate_sound_convolution_runs_in_a_few_times_its_values(activations: str, tmp_path: Path) -> None:
    facts = measured(sound(), tmp_path, activations)
    assert facts["finite"]
    values = (
        4 * 64 * 160_000 // MB
    )  # 39 MB: the input and the output in both layouts, and the outputs that are returned
    assert facts["mb"] < 6 * values


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_values_of_gigabytes_are_refused_before_they_are_made(activations: str, backend: str, tmp_path: Path) -> None:
    facts = measured(large_values(), tmp_path, activations, backend)
    assert "m.safetensors: " in facts["error"] and "max_memory" in facts["error"] and "\n" not in facts["error"]
    assert facts["mb"] < 20 and facts["seconds"] < 2.0


def test_the_reference_refuses_what_it_would_pad(tmp_path: Path) -> None:
    facts = measured(far_padding(), tmp_path, "exact", "reference")
    assert "16 TB" in facts["error"] and facts["mb"] < 20


# ---- strips ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("own", [False, True])
def test_many_rows_of_a_linear_layer_in_strips_are_what_the_reference_gives(own: bool, threads: int) -> None:
    g = GraphBuilder((70_000, 3), 2 if own else 1, 0)
    for binary in (True, False):
        weight = g.weight((3, 3), binary=binary, own=own)
        g.add("linear", shape=(3, 3), tensors={"weight": weight, **g.scales(3)})
    x = g.inputs(2)
    for activations in ("exact", "int8"):
        found = Model(g.model(), activations, threads, backend="native").outputs(x)
        np.testing.assert_allclose(found, reference.run(g.model(), x, activations), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("stride", "dilation"), [((1, 1), (1, 1)), ((1, 3), (1, 2))])
def test_images_too_wide_for_one_ring_of_tables_are_cut_into_parts(
    stride: tuple[int, int], dilation: tuple[int, int], threads: int
) -> None:
    g = GraphBuilder((32, 3, 30_001), 1, 0)
    convolution(g, 5, 32, (2, 3), stride=stride, dilation=dilation, padding=(1, 0, 2, 1))
    x = g.inputs(1)
    found = Model(g.model(), "int8", threads, backend="native").outputs(x)
    np.testing.assert_array_equal(found, reference.run(g.model(), x, "int8"))


# ---- the limit ---------------------------------------------------------------------------------------


def small() -> GraphBuilder:
    g = GraphBuilder((3, 40, 40), 1, 1)
    convolution(g, 33, 3, (3, 3))
    g.add("relu")
    g.add("reshape", shape=(prod(g.shape()),))
    g.add("linear", shape=(5, prod(g.shape())), tensors={"weight": g.weight((5, prod(g.shape())))})
    return g


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("activations", ["exact", "int8"])
def test_less_memory_gives_the_same_answers_or_a_refusal(activations: str, backend: str, tmp_path: Path) -> None:
    g = small()
    path, x = tmp_path / "m.safetensors", g.inputs(40)
    write(path, g.model())
    expected = load(path, activations, 2, backend=backend).outputs(x)
    answers = []
    for limit in (1 << 26, 1 << 24, 1 << 23, 1 << 22, 1 << 20, 1 << 14):
        try:
            model = load(path, activations, 2, backend=backend, max_memory=limit)
        except TooMuchMemory as error:
            answers.append(str(error))
            continue
        np.testing.assert_allclose(model.outputs(x), expected, rtol=1e-4, atol=1e-3)
        answers.append("")
    assert not answers[0] and answers[-1] and [bool(a) for a in answers] == sorted(bool(a) for a in answers)
    for message in filter(None, answers):
        assert message.startswith(f"{path}: ") and "max_memory" in message and "\n" not in message


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_outputs_also_count(backend: str) -> None:
    g = GraphBuilder((1,), 1, 0)
    g.add("linear", shape=(1000, 1), tensors={"weight": g.weight((1000, 1))})
    model = Model(g.model(), backend=backend, max_memory=4 * MB)
    assert model.outputs(g.inputs(100)).shape == (1, 100, 1000)
    with pytest.raises(TooMuchMemory, match=r"2000 examples need .* raise max_memory"):
        model.outputs(g.inputs(2000))


def test_a_file_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, small().model())
    with pytest.raises(TooMuchMemory, match=f"the file has {path.stat().st_size:,} bytes, max_memory allows 1,000"):
        load(path, max_memory=1000)
    for wrong in (0, -1, 1.5, "1G", True):
        with pytest.raises(InvalidInput, match="max_memory="):
            load(path, max_memory=wrong)  # type: ignore[arg-type]


def test_what_is_refused_is_a_memory_error_for_those_who_catch_one() -> None:
    with pytest.raises(MemoryError):
        Model(large_values().model())


def test_an_ensembles_uncertainty_is_computed_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    g = GraphBuilder((6,), 3, 2)
    g.add("linear", shape=(4, 6), tensors={"weight": g.weight((4, 6), own=True)})
    x = g.inputs(50)
    classes, numbers = g.model(), g.model(task="regression")
    whole = Model(classes)
    monkeypatch.setattr("bayesbinn.runtime.model._STRIP_BYTES", 7 * 12 * 4 * 3 * 4)
    strips = Model(classes)
    assert strips._strip == 7
    for name in ("probabilities", "entropy", "aleatoric", "mutual_information"):
        np.testing.assert_array_equal(getattr(strips.prediction(x), name), getattr(whole.prediction(x), name))
    np.testing.assert_array_equal(strips.predict(x), whole.predict(x))
    regression = Model(numbers).regression(x)
    outputs = reference.run(numbers, x)
    np.testing.assert_allclose(regression.mean, outputs.mean(0), atol=1e-5)
    np.testing.assert_allclose(regression.std, outputs.std(0, ddof=1), rtol=1e-4)


def test_nodes_that_share_weights_compute_what_copies_compute() -> None:
    """Even if the same bits are read in another order: by a linear layer, and by kernels of other shapes."""
    bits = np.random.default_rng(0).integers(0, 256, (6, 2), np.uint8)
    g = GraphBuilder((4, 6, 6), 1, 0)
    settings = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    kernels = ((2, 2), (4, 1), (1, 4), (2, 2))
    for kernel in kernels:
        g.nodes.append(Node("conv2d", (0,), "", {"shape": (6, 4, *kernel), **settings}, {"weight": "bits"}))
        g.nodes.append(Node("adaptive_avg_pool2d", (len(g.nodes),), "", {"size": (2, 8)}))
    pooled = tuple(range(2, 2 * len(kernels) + 1, 2))
    g.nodes.append(Node("concat", pooled, "", {"axis": 0}))
    g.nodes.append(Node("linear", (len(g.nodes),), "", {"shape": (6, 8)}, {"weight": "own"}))
    g.nodes.append(Node("reshape", (len(g.nodes),), "", {"shape": (18, 16)}))
    g.nodes.append(Node("linear", (len(g.nodes),), "", {"shape": (6, 16)}, {"weight": "bits"}))
    tensors = {"bits": bits, "own": bits[:, :1].copy()}
    model = ModelFile(g.model().graph, tensors)
    x = g.inputs(3)
    for activations in ("exact", "int8"):
        found = Model(model, activations, 2, backend="native").outputs(x)
        expected = reference.run(model, x, activations)
        np.testing.assert_allclose(found, expected, rtol=0, atol=(1e-4 if activations == "exact" else 0.05) * 100)
    assert len(to_bytes(model)) < 3000
