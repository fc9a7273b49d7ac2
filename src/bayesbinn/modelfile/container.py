"""The model file: a safetensors file whose metadata holds the layer graph and a checksum. See docs/format.md.

Needs NumPy and safetensors, never torch. Files are treated as hostile: every size they claim is checked against the
size of the file before anything is allocated. A file is read into memory once, so that the bytes that were checked
are the bytes that are used, even if the file changes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from bayesbinn.errors import InvalidFile, TooMuchMemory, printable
from bayesbinn.files import write_whole
from bayesbinn.modelfile.bits import padding_is_zero
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.graph import Graph, Node, Shape, Stored, check_graph, place
from bayesbinn.modelfile.sections import (
    SECTIONS,
    Label,
    Section,
    check_labels,
    labels_from,
    labels_text,
    section_from,
    section_text,
    tensor_name,
)
from bayesbinn.modelfile.strict_json import compact_json, strict_json

KIND = "bayesbinn model"
VERSION = 2
"""The highest version that is read. A file is written as version 1 if it has nothing that version 1 lacks."""
MAX_HEADER = 1 << 23
"""Bytes. A network of 65,536 layers would need about this much."""

_TYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype(np.uint8), "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
_ROLES = ("weight", "scale", "shift")
_GRAPH_KEYS = {"input_shape", "networks", "task", "logit_scale", "classes", "features", "nodes"}
_NO_DIGITS = "0" * 64


@dataclass
class ModelFile:
    """A graph with the tensors that its nodes name."""

    graph: Graph
    tensors: dict[str, NDArray[Any]]
    size: int = field(default=0, compare=False)
    """Size in bytes of the file it was read from."""
    checksum: str = field(default="", compare=False)
    """The SHA-256 stored in the file, verified."""
    residual: float | None = None
    """For a regression: the standard deviation of what its networks leave unexplained, in the unit of the outputs."""
    encoding: TableEncoding | None = None
    """How the rows of a table become the network's inputs."""
    labels: tuple[Label, ...] | None = None
    """The classes' labels as the training data had them, text, numbers or true/false, in the order of the outputs."""
    sections: dict[str, Section] = field(default_factory=dict)
    """Statistics of the trained network, by the names in `SECTIONS`."""

    @property
    def version(self) -> int:
        """Of the format that it needs."""
        return 1 if self.encoding is None and self.labels is None and not self.sections else 2


# ---- writing --------------------------------------------------------------------------------------


def write(path: str | Path, model: ModelFile) -> None:
    """Write a model file atomically: a reader sees either the old file or the complete new one."""
    write_whole(path, to_bytes(model))


def to_bytes(model: ModelFile) -> bytearray:
    """The content of a model file. Rejects whatever a reader would reject."""
    tensors = {name: np.ascontiguousarray(array) for name, array in model.tensors.items()}
    check_model(replace(model, tensors=tensors))
    metadata = {
        "format": KIND,
        "version": str(model.version),
        **_optional_metadata(model),
        "graph": compact_json(_document(model.graph)),
        "checksum": _NO_DIGITS,
    }
    if model.residual is not None:
        metadata["residual"] = json.dumps(float(model.residual))
        _check_residual(model.residual, model.graph.task)
    tensors |= {
        tensor_name(name, key): np.ascontiguousarray(array)
        for name, section in model.sections.items()
        for key, array in section.tensors.items()
    }
    # safetensors writes metadata in an order that changes from run to run; here the same model gives the same bytes.
    plain = save(tensors)
    length = int.from_bytes(plain[:8], "little")
    header = {"__metadata__": metadata, **json.loads(plain[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    if len(text) > MAX_HEADER:
        raise InvalidFile(f"the graph needs a header of {len(text)} bytes, {MAX_HEADER} are allowed; use fewer layers")
    content = bytearray(len(text).to_bytes(8, "little") + text + plain[8 + length :])
    start = _place_of_digits(text, _NO_DIGITS)
    content[start : start + 64] = hashlib.sha256(content).hexdigest().encode()
    return content


def _optional_metadata(model: ModelFile) -> dict[str, str]:
    """What only version 2 has."""
    found = {} if model.encoding is None else {"encoding": model.encoding.to_json()}
    found |= {} if model.labels is None else {"labels": labels_text(model.labels)}
    return found | {name: section_text(model.sections[name]) for name in SECTIONS if name in model.sections}


def _document(graph: Graph) -> dict[str, Any]:
    return {
        "input_shape": graph.input_shape,
        "networks": graph.networks,
        "task": graph.task,
        "logit_scale": graph.logit_scale,
        "classes": graph.classes,
        "features": graph.features,
        "nodes": [
            {
                "op": node.op,
                **({"name": node.name} if node.name else {}),
                "inputs": node.inputs,
                **node.settings,
                **{role: node.tensors[role] for role in _ROLES if role in node.tensors},
            }
            for node in graph.nodes
        ],
    }


# ---- reading --------------------------------------------------------------------------------------


def read(path: str | Path, max_bytes: int | None = None) -> ModelFile:
    """Read and check a model file. Any fault raises `InvalidFile` with a one-line message.

    A file of more than `max_bytes` raises `TooMuchMemory`.
    """
    path = Path(path)
    try:
        _require(path.exists(), "there is no such file")
        is_run = (path / "config.toml").is_file()
        hint = "; it is a run: use `bayesbinn predict`, or pack it first" if is_run else ""
        _require(path.is_file(), f"it is not a file{hint}")
        with path.open("rb") as file:
            model = _read(file, max_bytes)
        check_model(model)
    except TooMuchMemory as error:
        raise TooMuchMemory(f"{path}: {error}") from None
    except MemoryError:
        raise TooMuchMemory(f"{path}: there is not enough memory to read it") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidFile(f"{path}: {printable(' '.join(reason.split()))[:500]}") from None
    return model


def checksum(path: str | Path) -> str:
    """The SHA-256 stored in a model file, after reading and checking the file."""
    return read(path).checksum


def _read(file: io.BufferedReader, max_bytes: int | None) -> ModelFile:
    status = os.fstat(file.fileno())
    _require(stat.S_ISREG(status.st_mode), "it is not a file")
    size = status.st_size
    _require(size >= 8, "it is cut off: a model file starts with an 8-byte length")
    start = _exactly(file, 8)
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER:
        # In a file of another kind these bytes are no length, and it would only puzzle.
        large = f": its header has {length:,} bytes, {MAX_HEADER:,} are allowed" if length <= size - 8 else ""
        raise InvalidFile(f"it is not a model file{large}")
    _require(length <= size - 8, f"it is cut off: it has {size} bytes, and just the header needs {length + 8}")
    text = bytes(_exactly(file, length))
    header = strict_json(text, "the header")
    metadata = header.pop("__metadata__", None)
    right = isinstance(metadata, dict) and metadata.get("format") == KIND
    _require(right, f"it is not a {KIND}; write one with bb.pack")
    _check_version(metadata.get("version"))
    _check_sizes(header, size - 8 - length)
    if max_bytes is not None and size > max_bytes:
        raise TooMuchMemory(f"the file has {size:,} bytes, max_memory allows {max_bytes:,}; raise it (--max-memory)")
    data = _exactly(file, size - 8 - length)
    digits = metadata.get("checksum")
    _check_digits(start, text, data, digits)
    graph = metadata.get("graph")
    _require(isinstance(graph, str), "its metadata has no graph")
    _require(_strings(list(metadata.values())), "its metadata must be strings")
    tensors = {name: _tensor(data, entry) for name, entry in header.items()}
    parsed = _parsed_graph(strict_json(graph, "the graph"))
    residual = _strict_number(metadata["residual"]) if "residual" in metadata else None
    if residual is not None:
        _check_residual(residual, parsed.task)
    model = ModelFile(parsed, tensors, size, digits, residual)
    if metadata["version"] == "1":
        return model
    if "encoding" in metadata:
        model.encoding = TableEncoding.from_json(metadata["encoding"])
    if "labels" in metadata:
        model.labels = labels_from(metadata["labels"])
    model.sections = {name: section_from(name, metadata[name], tensors) for name in SECTIONS if name in metadata}
    return model


def _strict_number(text: str) -> float:
    # 17 digits and up to 4 zeros follow the point: float64 is written that way from 0.0001 on.
    found = re.fullmatch(r"\d{1,18}(\.\d{1,21})?(e[+-]?\d{1,3})?", text, re.ASCII)
    _require(found is not None, f"its residual {text[:40]!r} is not a decimal number")
    return float(text)


def _check_residual(residual: float, task: str) -> None:
    _require(task == "regression", "only a regression has a residual")
    _require(0 <= residual < float("inf"), f"its residual {residual} must be a finite number, at least 0")


def _exactly(file: io.BufferedReader, count: int) -> bytearray:
    """`count` bytes; there may be fewer if another program truncates the file at the same time."""
    content = bytearray(count)
    _require(file.readinto(content) == count, "it is cut off: it got shorter during reading")
    return content


def _tensor(data: bytearray, entry: Mapping[str, Any]) -> NDArray[Any]:
    kind, start = _TYPES[entry["dtype"]], entry["data_offsets"][0]
    array: NDArray[Any] = np.ndarray(tuple(entry["shape"]), kind, data, start)
    return array if array.flags.aligned else array.copy()


def _check_version(version: Any) -> None:
    known = isinstance(version, str) and re.fullmatch(r"[1-9]\d{0,8}", version, re.ASCII) is not None
    _require(known, f"version {version!r}: it must be a whole number, at least 1")
    if int(version) > VERSION:
        raise InvalidFile(f"its format version is {version}, this installation reads up to {VERSION}; update bayesbinn")


def _check_sizes(header: Mapping[str, Any], available: int) -> None:
    """Check every tensor's type, shape and offsets; together they fill the file without gaps or overlaps."""
    places = []
    for name, entry in header.items():
        _require(
            isinstance(entry, dict) and set(entry) == {"dtype", "shape", "data_offsets"},
            f"tensor {name!r} needs a dtype, a shape and data_offsets",
        )
        kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        _require(isinstance(kind, str) and kind in _TYPES, f"tensor {name!r}: its type must be one of {list(_TYPES)}")
        _require(_naturals(shape), f"tensor {name!r}: its shape must be a list of sizes")
        _require(_naturals(offsets) and len(offsets) == 2, f"tensor {name!r}: its offsets must be two numbers")
        start, end = offsets
        _require(start <= end <= available, f"it is cut off: tensor {name!r} ends at byte {end} of {available}")
        size = _TYPES[kind].itemsize * prod(shape)
        _require(end - start == size, f"tensor {name!r}: {end - start} bytes for a shape that needs {size}")
        places.append((start, end, name))
    last = 0
    for start, end, name in sorted(places):
        _require(start == last, f"tensor {name!r} starts at byte {start}, the one before it ends at byte {last}")
        last = end
    _require(last == available, f"it has {available} bytes of tensors, the header describes {last}")


def _check_digits(start: bytearray, header: bytes, data: bytearray, digits: Any) -> None:
    _require(
        isinstance(digits, str) and re.fullmatch("[0-9a-f]{64}", digits) is not None,
        "its checksum must be 64 hexadecimal digits",
    )
    at = _place_of_digits(header, digits) - len(start)
    digest = hashlib.sha256(start)
    digest.update(header[:at] + _NO_DIGITS.encode() + header[at + 64 :])
    digest.update(data)
    _require(digest.hexdigest() == digits, "its checksum does not match: the file is damaged; copy or pack it again")


def _place_of_digits(header: bytes, digits: str) -> int:
    """Where the checksum's digits are in the file."""
    pattern = f'"{digits}"'.encode()
    _require(header.count(pattern) == 1, "its checksum must occur in the header exactly once")
    return 8 + header.index(pattern) + 1


# ---- the graph as JSON ------------------------------------------------------------------------------


def _parsed_graph(document: dict[str, Any]) -> Graph:
    _require(set(document) == _GRAPH_KEYS, f"the graph has the keys {sorted(document)}, not {sorted(_GRAPH_KEYS)}")
    for key in ("classes", "features"):
        _require(_strings(document[key]), f"{key} must be a list of strings")
    _require(type(document["networks"]) is int, f"networks={document['networks']!r}: a whole number is needed")
    _require(_is_number(document["logit_scale"]), f"logit_scale={document['logit_scale']!r}: a number is needed")
    _require(isinstance(document["task"], str), f"task={document['task']!r}: a string is needed")
    _require(_naturals(document["input_shape"]), f"input_shape={document['input_shape']!r}: sizes are needed")
    _require(isinstance(document["nodes"], list), "nodes must be a list")
    return Graph(
        input_shape=tuple(document["input_shape"]),
        nodes=tuple(_parsed_node(index, node) for index, node in enumerate(document["nodes"])),
        networks=document["networks"],
        task=document["task"],
        logit_scale=float(document["logit_scale"]),
        classes=tuple(document["classes"]),
        features=tuple(document["features"]),
    )


def _parsed_node(index: int, entry: Any) -> Node:
    _require(isinstance(entry, dict), f"node {index} is not an object")
    settings = dict(entry)
    op, name, inputs = settings.pop("op", None), settings.pop("name", ""), settings.pop("inputs", None)
    _require(isinstance(op, str) and isinstance(name, str), f"node {index}: its op and its name must be strings")
    _require(_naturals(inputs), f"node {index} ({op}): its inputs must be numbers of values")
    tensors = {role: settings.pop(role) for role in _ROLES if role in settings}
    _require(_strings(list(tensors.values())), f"node {index} ({op}): its tensors must be names")
    for key, value in settings.items():
        if isinstance(value, list):
            settings[key] = tuple(value)
        elif key in ("min", "max") and _is_number(value):
            settings[key] = float(value)  # other writers may omit the ".0"
    return Node(op, tuple(inputs), name, settings, tensors)


# ---- checks ----------------------------------------------------------------------------------------


def shapes(model: ModelFile) -> list[Shape]:
    """The shape of every value of the graph, after checking it against its tensors."""
    stored = {name: Stored(array.dtype.name, array.shape) for name, array in model.tensors.items()}
    return check_graph(model.graph, stored)


def check_model(model: ModelFile) -> None:
    """The graph against its tensors, the tensors' values, and what else the file holds against the graph."""
    shapes(model)
    if model.encoding is not None:
        width, shape = model.encoding.width, model.graph.input_shape
        _require(shape == (width,), f"an encoding of {width} codes for inputs of shape {shape}")
        _require(not model.graph.features, "a file with an encoding has no other names of columns")
    if model.labels is not None:
        check_labels(model.labels, model.graph.classes)
    for name, section in model.sections.items():
        _require(name in SECTIONS, f"there is no section {name!r}; there are {', '.join(SECTIONS)}")
        clash = [key for key in section.tensors if tensor_name(name, key) in model.tensors]
        _require(not clash, f"the section {name}: a node has a tensor of the same name")
    used = set()
    checked = set()  # many nodes may share a tensor
    for index, node in enumerate(model.graph.nodes):
        for role, name in node.tensors.items():
            used.add(name)
            array = model.tensors[name]
            if role == "weight" and array.dtype == np.uint8:
                count = prod(node.settings["shape"][1:])
                fine = (name, count) in checked or padding_is_zero(array, count)
                _require(fine, f"{place(index, node)}: the bits after the last weight of a row are not 0")
                checked.add((name, count))
    for name, array in model.tensors.items():
        _require(name in used, f"tensor {name!r} belongs to no node")
        fine = array.dtype == np.uint8 or bool(np.isfinite(array).all())
        _require(fine, f"tensor {name!r} has NaN or infinite values")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvalidFile(otherwise)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
