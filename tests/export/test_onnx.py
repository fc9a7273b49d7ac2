"""Export to ONNX: the real onnxruntime against the reference, on every operation and on the paper's networks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from bayesbinn.errors import InvalidFile, InvalidInput, MissingDependency
from bayesbinn.export import export_onnx
from bayesbinn.modelfile.bits import pack_rows
from bayesbinn.modelfile.container import ModelFile, to_bytes
from bayesbinn.modelfile.graph import OPERATIONS, Graph, Node
from bayesbinn.runtime.reference import run

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install -c constraints.txt '.[onnx]'")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is not installed: pip install -c constraints.txt '.[onnx]'"
)
cases: Any = import_module("tests.helpers.export_cases")
FUZZ = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], derandomize=True
)


def session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def answers(path: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    running = session(path)
    names = [output.name for output in running.get_outputs()]
    return dict(zip(names, running.run(None, {"input": x}), strict=True))


def check(model: ModelFile, path: Path) -> None:
    x = cases.inputs_for(model)
    found, right = answers(export_onnx(model, path), x), cases.expected(model, run(model, x))
    if model.graph.networks == 1:
        right.pop("std", None)
    assert set(found) == set(right)
    for name, value in right.items():
        cases.assert_close(found[name], value)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx") / "model.onnx"


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_every_operation_matches_the_reference(op: str, path: Path) -> None:
    @settings(FUZZ, max_examples=25)
    @given(cases.models((op,)))
    def every(model: ModelFile) -> None:
        check(model, path)

    every()


@settings(FUZZ, max_examples=40)
@given(model=cases.models(steps=6, task="classification"))
def test_classifiers_of_any_form(model: ModelFile, path: Path) -> None:
    check(model, path)


@pytest.mark.parametrize("networks", [1, 2, 5])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_values_that_are_needed_again(networks: int, task: str, path: Path) -> None:
    check(cases.residual(networks, task), path)


@pytest.mark.parametrize("name", ["mnist_mlp", "vgg", "lrnet_mnist", "lrnet_cifar10", "two_moons", "ensemble"])
def test_papers_networks_give_the_same_classes(name: str, path: Path) -> None:
    model, raw = cases.paper_networks()[name]
    found, right = answers(export_onnx(model, path), cases.inputs_for(model, 1000)), cases.expected(model, raw)
    cases.assert_close(found["probabilities"], right["probabilities"])
    cases.assert_close(found["logits"], right["logits"])
    np.testing.assert_array_equal(found["probabilities"].argmax(-1), right["probabilities"].argmax(-1))


# ---- the file -----------------------------------------------------------------------------------------


def small(outputs: int = 3, **changes: Any) -> ModelFile:
    weight = pack_rows(np.random.default_rng(0).choice([-1, 1], (outputs, 900)))
    nodes = (Node("relu", (0,)), Node("linear", (1,), "last", {"shape": (outputs, 900)}, {"weight": "w"}))
    return ModelFile(replace(Graph((900,), nodes), **changes), {"w": weight})


def test_weights_stay_bits_in_the_file(path: Path) -> None:
    model = small(outputs=2000)
    built = onnx.load(export_onnx(model, path))
    stored = {tensor.name: tensor for tensor in built.graph.initializer}
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored["weight_0_w"]), model.tensors["w"])
    assert path.stat().st_size < 1.02 * len(to_bytes(model))
    assert {node.domain for node in built.graph.node} == {""}
    assert [(each.domain, each.version) for each in built.opset_import] == [("", 18)]


def test_bits_are_unpacked_once_when_a_session_is_created(path: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    export_onnx(small(), path)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    left = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert "MatMul" in left or "Gemm" in left
    assert not left & {"BitShift", "BitwiseAnd", "Cast", "Slice", "Transpose", "Reshape"}


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("batch", [0, 1, 7])
def test_any_batch_and_newer_operators(opset: int, batch: int, path: Path) -> None:
    model = small()
    x = cases.inputs_for(model, batch)
    found = answers(export_onnx(model, path, opset=opset), x)
    right = run(model, x)[0] if batch else np.zeros((0, 3))
    cases.assert_close(found["logits"], right)


def test_shared_layers_are_written_once(path: Path) -> None:
    rng = np.random.default_rng(0)
    first = Node("linear", (0,), "a", {"shape": (6, 4)}, {"weight": "a"})
    last = Node("linear", (1,), "b", {"shape": (3, 6)}, {"weight": "b"})
    tensors = {"a": pack_rows(rng.choice([-1, 1], (6, 4))), "b": pack_rows(rng.choice([-1, 1], (5, 3, 6)))}
    model = ModelFile(Graph((4,), (first, last), networks=5), tensors)
    check(model, path)
    assert [node.op_type for node in onnx.load(path).graph.node].count("MatMul") == 1 + 5


def test_extreme_logits_of_an_ensemble_stay_finite(path: Path) -> None:
    """Both networks give class 1 a probability too small for float32."""
    weight = np.ones((2, 2, 1), np.float32)
    weight[:, 1] = -1
    nodes = (Node("linear", (0,), "", {"shape": (2, 1)}, {"weight": "w"}),)
    model = ModelFile(Graph((1,), nodes, networks=2), {"w": weight})
    found = answers(export_onnx(model, path), np.array([[100.0]], np.float32))
    np.testing.assert_allclose(found["logits"], [[0, -200]])
    np.testing.assert_allclose(found["probabilities"], [[1, 0]])


HOSTILE = ['"; int x; "', "*/", "a\nb", "\\", "é 数 😀", "", "\0z", "{}", "\ud800"]


def test_hostile_names_are_only_names(path: Path) -> None:
    model = small(outputs=len(HOSTILE), classes=tuple(HOSTILE), features=tuple(HOSTILE * 100))
    nodes = tuple(
        replace(node, name=HOSTILE[i], tensors=dict.fromkeys(node.tensors, HOSTILE[2]))
        for i, node in enumerate(model.graph.nodes)
    )
    hostile = ModelFile(replace(model.graph, nodes=nodes), {HOSTILE[2]: model.tensors["w"]})
    check(hostile, path)
    notes = session(path).get_modelmeta().custom_metadata_map
    assert json.loads(notes["classes"]) == HOSTILE and json.loads(notes["features"]) == HOSTILE * 100
    assert notes["task"] == "classification" and json.loads(notes["networks"]) == 1


def test_rejections_are_one_line_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = onnx.defs.onnx_opset_version()
    for opset in (17, newest + 1):
        with pytest.raises(InvalidInput, match=f"opset={opset}: this version of onnx can write 18 to {newest}"):
            export_onnx(small(), tmp_path / "m.onnx", opset=opset)
    with pytest.raises(InvalidFile, match="could not be written"):
        export_onnx(small(), tmp_path / "missing" / "m.onnx")
    window = {"kernel": (2, 2), "stride": (1, 1), "padding": (1, 1), "ceil": False, "dilation": (5, 5)}
    missing = ModelFile(Graph((1, 4, 4), (Node("max_pool2d", (0,), "p", window),), task="regression"), {})
    with pytest.raises(InvalidInput, match="a window covers only padding"):
        export_onnx(missing, tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependency, match=r"needs onnx: pip install -c constraints.txt '.\[onnx\]'"):
        export_onnx(small(), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
