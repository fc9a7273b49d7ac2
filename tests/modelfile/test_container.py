"""The model file: what is written can be read, and a damaged or forged file gives one line, never another error."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bayesbinn.errors import InvalidFile
from bayesbinn.modelfile import container as model_file
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.graph import OPERATIONS, Graph, Node
from bayesbinn.runtime import reference
from tests.helpers.places import FIXTURES, ROOT


def small() -> ModelFile:
    """A linear layer of 2 × 10 bits, a shift, a bounded activation."""
    nodes = (
        Node("linear", (0,), "größe", {"shape": (2, 10)}, {"weight": "w", "shift": "b"}),
        Node("hardtanh", (1,), settings={"min": -1.0, "max": 6.0}),
    )
    tensors = {"w": np.array([[255, 1], [0, 3]], np.uint8), "b": np.array([0.5, -2.0], np.float32)}
    return ModelFile(Graph((10,), nodes, classes=("cat", 'a "dog"'), logit_scale=2.5), tensors)


def sealed(header: dict[str, Any] | str, data: bytes) -> bytes:
    """A file with a correct checksum, whatever else is in it."""
    text = header if isinstance(header, str) else json.dumps(header)
    raw = text.encode("utf-8", "surrogatepass").replace(b"CHECKSUM", b"0" * 64)
    content = len(raw).to_bytes(8, "little") + raw + data
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)


def parts(model: ModelFile) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a model file, without the checksum."""
    content = bytes(model_file.to_bytes(model))
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["checksum"] = "CHECKSUM"
    return header, content[8 + length :]


def refused(path: Path, content: bytes, message: str = "") -> str:
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=message or None) as caught:
        model_file.read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and len(text) < 1000
    return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


# ---- writing and reading -----------------------------------------------------------------------------


def test_what_is_written_is_read_again(path: Path) -> None:
    model = small()
    model_file.write(path, model)
    found = model_file.read(path)
    assert found.graph == model.graph
    assert found.tensors.keys() == model.tensors.keys()
    for name, array in model.tensors.items():
        assert found.tensors[name].dtype == array.dtype and np.array_equal(found.tensors[name], array)
    assert list(path.parent.iterdir()) == [path]


def test_it_is_a_safetensors_file_and_the_same_each_time(path: Path) -> None:
    model_file.write(path, small())
    assert set(load_file(path)) == {"w", "b"}
    assert path.read_bytes() == bytes(model_file.to_bytes(small()))
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_the_checksum_is_that_of_the_documentation(path: Path) -> None:
    content = bytes(model_file.to_bytes(small()))
    start = content.index(b'"checksum":"') + len(b'"checksum":"')
    zeroed = content[:start] + b"0" * 64 + content[start + 64 :]
    assert content[start : start + 64].decode() == hashlib.sha256(zeroed).hexdigest()


def test_an_ordinary_file_mode(path: Path) -> None:
    before = os.umask(0o022)
    try:
        model_file.write(path, small())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"could not be written \(No such file"):
        model_file.write(tmp_path / "no" / "model.safetensors", small())


def test_what_a_reader_would_refuse_is_not_written(path: Path) -> None:
    bad = replace(small().graph, classes=("one",))
    with pytest.raises(InvalidFile, match="1 class names for 2 classes"):
        model_file.write(path, ModelFile(bad, small().tensors))
    assert not path.exists()


def test_reading_needs_no_torch(path: Path) -> None:
    model_file.write(path, small())
    code = (
        "import sys; from bayesbinn import format; from bayesbinn.runtime import reference; "
        f"format.read({str(path)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- damage ------------------------------------------------------------------------------------------


def test_every_truncation_is_refused(path: Path) -> None:
    content = bytes(model_file.to_bytes(small()))
    for length in range(len(content)):
        refused(path, content[:length])
    refused(path, content + b"\0", "bytes of tensors, the header describes")


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_every_flipped_byte_is_refused(flip: int, path: Path) -> None:
    content = bytearray(model_file.to_bytes(small()))
    for position in range(len(content)):
        content[position] ^= flip
        refused(path, bytes(content))
        content[position] ^= flip


def test_the_committed_file_is_not_readable_once_a_weight_is_flipped(path: Path) -> None:
    content = bytearray((FIXTURES / "model-v1.safetensors").read_bytes())
    content[-1] ^= 1
    refused(path, bytes(content), "checksum does not match: the file is damaged; copy or pack it again")


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\0" * 8, b"\xff" * 8, b"\xff" * 100, b"PK\3\4" + b"\0" * 60])
def test_files_of_another_kind(content: bytes, path: Path) -> None:
    refused(path, content)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="there is no such file"):
        model_file.read(tmp_path / "nothing")
    with pytest.raises(InvalidFile, match="it is not a file"):
        model_file.read(tmp_path)


# ---- forged files with a correct checksum ----------------------------------------------------------------


def test_a_forged_checksum_is_right(path: Path) -> None:
    header, data = parts(small())
    path.write_bytes(sealed(header, data))
    assert model_file.read(path).graph == small().graph


def test_a_newer_version_has_its_own_message(path: Path) -> None:
    header, data = parts(small())
    header["__metadata__"]["version"] = "3"
    refused(path, sealed(header, data), "version is 3, this installation reads up to 2; update bayesbinn")


@pytest.mark.parametrize("version", ["0", "-1", "1.0", "", "one", "٣", None])
def test_invalid_versions(version: Any, path: Path) -> None:
    header, data = parts(small())
    header["__metadata__"]["version"] = version
    refused(path, sealed(header, data))


METADATA: dict[str, tuple[str, Any, str]] = {
    "another kind": ("format", "bayesbinn posterior", "it is not a bayesbinn model"),
    "no checksum": ("checksum", "", "64 hexadecimal digits"),
    "capital digits": ("checksum", "A" * 64, "64 hexadecimal digits"),
    "wrong checksum": ("checksum", "a" * 64, "does not match"),
    "no graph": ("graph", None, "no graph"),
    "graph is a list": ("graph", "[]", "the graph is not a JSON object"),
    "graph is cut off": ("graph", '{"input_shape":[1', "the graph is not JSON"),
    "nested": ("graph", "[" * 100_000, "nested too deeply"),
    "half a surrogate": ("graph", '{"input_shape":"\\ud800"}', "the graph is not JSON"),
}


@pytest.mark.parametrize("case", METADATA)
def test_forged_metadata(case: str, path: Path) -> None:
    key, value, message = METADATA[case]
    header, data = parts(small())
    header["__metadata__"][key] = value
    refused(path, sealed(header, data), message)


GRAPHS: dict[str, tuple[str, str, str]] = {
    "NaN": ('"logit_scale":2.5', '"logit_scale":NaN', "the graph has NaN as a number"),
    "infinite": ('"logit_scale":2.5', '"logit_scale":1e999', "logit scale inf"),
    "negative": ('"logit_scale":2.5', '"logit_scale":-1', "finite number above 0"),
    "infinite in float32": ('"logit_scale":2.5', '"logit_scale":1e39', "a finite number above 0 in float32"),
    "nothing in float32": ('"logit_scale":2.5', '"logit_scale":1e-50', "a finite number above 0 in float32"),
    "escapes in an operation": ('"op":"hardtanh"', '"op":"\\u001b[2J"', r"node 1 \(\\x1b\[2J\)"),
    "flag as a number": ('"logit_scale":2.5', '"logit_scale":true', "a number is needed"),
    "long number": ('"networks":1', '"networks":' + "1" * 5000, "a number of 5000 digits"),
    "many networks": ('"networks":1', '"networks":5000', "1 to 4096 are allowed"),
    "text as a number": ('"networks":1', '"networks":"1"', "a whole number is needed"),
    "key twice": ('"networks":1', '"networks":1,"networks":1', "same key twice"),
    "unknown key": ('"networks":1', '"networks":1,"author":"me"', "the graph has the keys"),
    "unknown task": ('"classification"', '"ranking"', "task 'ranking'"),
    "class of another type": ('["cat",', "[7,", "classes must be a list of strings"),
    "negative size": ('"input_shape":[10]', '"input_shape":[-10]', "sizes are needed"),
    "huge input": ('"input_shape":[10]', '"input_shape":[99999999999999]', "input shape"),
    "nodes that are none": ('"nodes":[{', '"nodes":[5,{', "node 0 is not an object"),
    "unknown operation": ('"op":"hardtanh"', '"op":"hardtan\\n\\n"', "unknown operation. Did you mean 'hardtanh'"),
    "operation of another type": ('"op":"hardtanh"', '"op":[]', "must be strings"),
    "later value": ('"inputs":[1]', '"inputs":[2]', "must be values 0 to 1"),
    "input of another type": ('"inputs":[1]', '"inputs":[true]', "numbers of values"),
    "no inputs": ('"inputs":[1],', "", "numbers of values"),
    "unknown setting": ('"max":6.0', '"max":6.0,"slope":1', "it takes .'max', 'min'."),
    "missing setting": (',"max":6.0', "", "settings"),
    "setting of another type": ('"max":6.0', '"max":"6"', "is not allowed"),
    "huge setting": ('"max":6.0', '"max":1e999', "is not allowed"),
    "tensor of another type": ('"weight":"w"', '"weight":7', "must be names"),
    "missing tensor": ('"weight":"w"', '"weight":"v"', "the file has no tensor 'v'"),
    "unused tensor": (',"shift":"b"', "", "tensor 'b' belongs to no node"),
    "another shape": ('"shape":[2,10]', '"shape":[3,10]', "weight is uint8"),
    "endless rows": ('"shape":[2,10]', '"shape":[268435456,10]', "is not allowed"),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_forged_graphs(case: str, path: Path) -> None:
    old, new, message = GRAPHS[case]
    header, data = parts(small())
    text = header["__metadata__"]["graph"]
    assert old in text
    header["__metadata__"]["graph"] = text.replace(old, new, 1)
    refused(path, sealed(header, data), message)


def test_whole_numbers_do_for_bounds(path: Path) -> None:
    header, data = parts(small())
    header["__metadata__"]["graph"] = header["__metadata__"]["graph"].replace("6.0", "6").replace("2.5", "2")
    path.write_bytes(sealed(header, data))
    graph = model_file.read(path).graph
    assert graph.nodes[1].settings["max"] == 6.0 and graph.logit_scale == 2.0


TENSORS: dict[str, tuple[str, dict[str, Any] | Any, str]] = {
    "no object": ("w", 5, "needs a dtype"),
    "unknown key": ("w", {"dtype": "U8", "shape": [2, 2], "data_offsets": [8, 12], "more": 1}, "needs a dtype"),
    "unknown type": ("w", {"dtype": "F64", "shape": [2, 2], "data_offsets": [8, 12]}, "its type must be one of"),
    "type of no type": ("w", {"dtype": [], "shape": [2, 2], "data_offsets": [8, 12]}, "its type must be one of"),
    "other type of its size": ("w", {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}, "weight is float32"),
    "beyond the end": ("w", {"dtype": "U8", "shape": [2, 4], "data_offsets": [8, 16]}, "it is cut off"),
    "backwards": ("w", {"dtype": "U8", "shape": [2, 2], "data_offsets": [12, 8]}, "it is cut off"),
    "huge": ("w", {"dtype": "U8", "shape": [10**9, 10**9], "data_offsets": [8, 10**17]}, "it is cut off"),
    "shape too large": ("w", {"dtype": "U8", "shape": [10**9, 10**9], "data_offsets": [8, 12]}, "4 bytes for a shape"),
    "nothing of much": ("w", {"dtype": "U8", "shape": [0, 10**17], "data_offsets": [8, 8]}, "the header describes"),
    "negative": ("w", {"dtype": "U8", "shape": [-2, -2], "data_offsets": [8, 12]}, "list of sizes"),
    "three offsets": ("w", {"dtype": "U8", "shape": [2, 2], "data_offsets": [8, 10, 12]}, "two numbers"),
    "overlap": ("w", {"dtype": "U8", "shape": [2, 2], "data_offsets": [4, 8]}, ""),
}


@pytest.mark.parametrize("case", TENSORS)
def test_forged_tensors(case: str, path: Path) -> None:
    name, entry, message = TENSORS[case]
    header, data = parts(small())
    header[name] = entry
    refused(path, sealed(header, data), message)


def test_a_tensor_named_twice(path: Path) -> None:
    header, data = parts(small())
    text = json.dumps(header)
    entry = json.dumps({"w": header["w"]})[1:-1]
    refused(path, sealed(text.replace(entry, f"{entry}, {entry}"), data), "the header has the same key twice")


def test_a_header_that_is_not_unicode(path: Path) -> None:
    raw = b'{"\xff\xfe": 1}'
    refused(path, len(raw).to_bytes(8, "little") + raw, "the header is not JSON")


def test_a_header_that_is_too_large(path: Path) -> None:
    raw = b"{" + b" " * model_file.MAX_HEADER + b"}"
    message = r"it is not a model file: its header has 8,388,610 bytes, 8,388,608 are allowed$"
    refused(path, len(raw).to_bytes(8, "little") + raw, message)


def test_a_file_of_another_kind(path: Path) -> None:
    refused(path, b"age,income,job\n41,1800,nurse\n", "model.safetensors: it is not a model file$")


def test_padding_bits_and_values_are_checked(path: Path) -> None:
    header, data = parts(small())
    refused(path, sealed(header, data[:-1] + b"\x07"), "node 0 .*bits after the last weight of a row are not 0")
    refused(path, sealed(header, np.float32(np.nan).tobytes() + data[4:]), "tensor 'b' has NaN or infinite values")


def test_a_claimed_size_is_not_allocated(path: Path) -> None:
    header, data = parts(small())
    header["w"] = {"dtype": "F32", "shape": [10**6, 10**3], "data_offsets": [8, 4 * 10**9 + 8]}
    tracemalloc.start()
    refused(path, sealed(header, data))
    refused(path, (8 << 20).to_bytes(8, "little") + data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


# ---- the documentation -----------------------------------------------------------------------------------


def test_the_worked_example_of_the_documentation() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    node = Node("linear", (0,), "fc", {"shape": (2, 10)}, {"weight": "fc.weight", "shift": "fc.shift"})
    tensors = {"fc.weight": np.array([[5, 2], [255, 3]], np.uint8), "fc.shift": np.array([0.5, -2], np.float32)}
    model = ModelFile(Graph((10,), (node,), classes=("no", "yes")), tensors)
    content = bytes(model_file.to_bytes(model))
    length = int.from_bytes(content[:8], "little")
    assert f"{len(content)} bytes. The length of the header, {length}:" in text
    for piece in (content[:8].hex(" "), content[8 : 8 + length].decode().rstrip(" "), content[8 + length :].hex(" ")):
        assert f"\n{piece}\n" in text
    assert reference.run(model, np.arange(10, dtype=np.float32)[None]).tolist() == [[[-22.5, 43.0]]]


def test_every_operation_and_setting_is_documented() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `")}
    for name, operation in OPERATIONS.items():
        for key in (*operation.settings, *operation.tensors):
            assert f"`{key}`" in rows[name], f"{name}: {key}"
