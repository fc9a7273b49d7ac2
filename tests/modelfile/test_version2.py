"""Version 2 of the model file: encodings, labels of any type and sections; version 1 is written and read as before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput
from bayesbinn.modelfile import container as model_file
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.sections import Section
from tests.helpers.places import ROOT
from tests.helpers.random_graphs import GraphBuilder
from tests.modelfile.test_container import parts, sealed
from tests.tools.fuzz_model_files import table_model

FIXTURE = ROOT / "tests" / "fixtures" / "model-v1.safetensors"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def plain(**changes: Any) -> ModelFile:
    """A table's model without what version 2 adds, but for the changes."""
    return replace(table_model(), **{"encoding": None, "labels": None, "sections": {}, **changes})


def test_everything_comes_back(path: Path) -> None:
    model = table_model()
    model_file.write(path, model)
    found = model_file.read(path)
    assert found.encoding == model.encoding and found.labels == (0, 1, 2) and found.sections == model.sections
    assert found.graph == model.graph and set(found.tensors) == set(model.tensors)
    assert found.version == 2 and model_file.to_bytes(found) == path.read_bytes(), "one model gives one file"


def test_a_file_without_anything_new_is_still_version_1(path: Path) -> None:
    """An older reader can read it; the committed file of version 1 is written again byte for byte."""
    model_file.write(path, plain())
    header, _ = parts(plain())
    assert header["__metadata__"]["version"] == "1" and model_file.read(path).version == 1
    assert bytes(model_file.to_bytes(model_file.read(FIXTURE))) == FIXTURE.read_bytes()


@pytest.mark.parametrize("labels", [(0, 1, 2), (-1.5, 0.0, 2.0), ("a", "b", "ü"), ("True", "1", "1.0")])
def test_labels_keep_their_type(labels: tuple[Any, ...], path: Path) -> None:
    model_file.write(path, plain(labels=labels))
    found = model_file.read(path)
    assert found.labels == labels and [type(x) for x in found.labels] == [type(x) for x in labels]


def test_true_and_false_are_labels_too(path: Path) -> None:
    model = plain(labels=(False, True))
    shape = (1, model.graph.input_shape[0])
    node = replace(model.graph.nodes[0], settings={"shape": shape})
    model.graph = replace(model.graph, nodes=(node,), classes=("no", "yes"))
    model.tensors = {name: array[:1] for name, array in model.tensors.items()}
    model_file.write(path, model)
    assert model_file.read(path).labels == (False, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": (0, 1)}, "2 labels for 3 class names"),
        ({"labels": (0, 1, 1)}, "labels must differ"),
        ({"labels": (0, 1, "2")}, "labels must be all text, all numbers or all true/false"),
        ({"labels": (0, 1, None)}, "labels must be all text"),
        ({"labels": (0.0, 1.0, float("nan"))}, "labels must be finite numbers"),
        ({"labels": (0, 1, 10**18)}, "labels must be finite numbers"),
        ({"sections": {"other": Section("x")}}, "there is no section 'other'"),
    ],
)
def test_a_writer_refuses_what_a_reader_would(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BayesbinnError) as caught:
        model_file.to_bytes(plain(**changes))
    assert message in str(caught.value)


def test_an_encoding_must_fit_the_inputs() -> None:
    model = table_model()
    other = replace(model.encoding, columns=model.encoding.columns[:2])
    with pytest.raises(InvalidFile, match=r"an encoding of 6 codes for inputs of shape"):
        model_file.to_bytes(replace(model, encoding=other))


def test_a_section_and_a_node_cannot_share_a_tensor() -> None:
    model = table_model()
    node = model.graph.nodes[0]
    node = replace(node, tensors={**node.tensors, "scale": "conformal:scores"})
    tensors = dict(model.tensors)
    tensors["conformal:scores"] = tensors.pop(model.graph.nodes[0].tensors["scale"])
    with pytest.raises(InvalidFile, match="the section conformal: a node has a tensor of the same name"):
        model_file.to_bytes(replace(model, graph=replace(model.graph, nodes=(node,)), tensors=tensors))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "its rule must be text"),
        (("x", {"a": float("inf")}), "a must be a finite number"),
        (("x", {"a": (1.0, float("nan"))}), "a must be a finite number"),
        (("x", {"a": "1"}), "a must be a finite number"),
        (("x", {"a": True}), "a must be a finite number"),
        (("x", {}, {"t": np.zeros(2)}), "t must be an array of float32 or float16 or uint8"),
        (("x", {}, {"t": np.array([np.nan], np.float32)}), "t has NaN or infinite values"),
        (("x", {"t": 1.0}, {"t": np.zeros(2, np.float32)}), "each used once"),
        (("x", {str(i): 1.0 for i in range(65)}), "at most 64 entries"),
    ],
)
def test_odd_sections_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Section(*arguments)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("encoding", "{}", "the encoding has the keys"),
        ("encoding", '{"columns":[{"name":"a","kind":"boolean"}]}', "an encoding of 1 codes for inputs of shape"),
        ("labels", "[0,1,2]", "the list of labels is not a JSON object"),
        ("labels", '{"values":[0,1]}', "2 labels for 3 class names"),
        ("labels", '{"values":[0,1,[2]]}', "labels must be all text"),
        ("conformal", '{"numbers":{}}', "the section conformal needs a rule"),
        ("conformal", '{"rule":"x","more":1}', "the section conformal needs a rule"),
        ("conformal", '{"rule":"x","numbers":[1]}', "its numbers must be an object"),
        ("conformal", '{"rule":"x","numbers":{"a":[1,[2]]}}', "a must be a finite number"),
        ("conformal", '{"rule":"x","tensors":["scores","scores"]}', "its tensors must be a list of names"),
        ("conformal", '{"rule":"x","tensors":["other"]}', "the file has no tensor 'conformal:other'"),
        ("conformal", '{"rule":"x"}', "tensor 'conformal:scores' belongs to no node"),
        ("conformal", '{"rule":7,"tensors":["scores"]}', "its rule must be text"),
        ("conformal", "[" * 20_000, "the section conformal is not JSON"),
        ("calibration", '{"rule":"x","rule":"y"}', "the section calibration has the same key twice"),
        ("unfamiliarity", '{"rule":"x","numbers":{"a":NaN}}', "the section unfamiliarity has NaN as a number"),
    ],
)
def test_odd_metadata_is_refused_although_the_checksum_fits(key: str, text: str, message: str, path: Path) -> None:
    header, data = parts(table_model())
    header["__metadata__"][key] = text
    path.write_bytes(sealed(header, data))
    with pytest.raises(InvalidFile) as caught:
        model_file.read(path)
    assert message in str(caught.value) and "\n" not in str(caught.value) and str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("key", ["encoding", "labels", "conformal", "unfamiliarity", "calibration"])
def test_the_checksum_covers_the_new_metadata(key: str, path: Path) -> None:
    content = bytes(model_file.to_bytes(table_model()))
    text = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"][key]
    digit = next(i for i, character in enumerate(text) if character.isdigit())
    path.write_bytes(_swapped(content, text, digit))
    with pytest.raises(InvalidFile, match="its checksum does not match"):
        model_file.read(path)


def _swapped(content: bytes, text: str, digit: int) -> bytes:
    """The file with another digit in a metadata text."""
    other = text[:digit] + ("1" if text[digit] != "1" else "2") + text[digit + 1 :]
    old, new = (json.dumps(each, ensure_ascii=False).encode() for each in (text, other))
    assert content.count(old) == 1
    return content.replace(old, new)


def test_version_1_does_not_look_at_the_new_metadata(path: Path) -> None:
    """Further metadata of a version 1 file were always ignored."""
    header, data = parts(plain())
    header["__metadata__"]["encoding"] = "{}"
    path.write_bytes(sealed(header, data))
    assert model_file.read(path).encoding is None


@pytest.mark.parametrize("residual", [0.00031943760406481157, 1.2345678901234567e-7, 123456.78901234567, 0.0, 1e300])
def test_a_residual_of_any_size_is_read_back(residual: float, path: Path) -> None:
    g = GraphBuilder((3,), 1, 0)
    g.add("linear", shape=(1, 3), tensors={"weight": g.weight((1, 3)), **g.scales(1)})
    model_file.write(path, replace(g.model(task="regression"), residual=residual))
    assert model_file.read(path).residual == residual
