"""Damaged and forged model files: `python tests/tools/fuzz_model_files.py --count 20000 --seed 0`.

Half of the files keep the checksum of the file they were made from: each must be an `InvalidFile`. The
other half get a matching checksum, as an attacker's would have, so that they reach the checks of the
graph and the repacking in C++: each is an `InvalidFile`, asks for more memory than the limit (`TooMuchMemory`), or
is a model that loads and predicts a batch of 2 in both modes. Anything else ends with exit code 1, and so does
allocating memory that a file only claims to need.

csrc/tests/fuzz.sh runs it with a module built with AddressSanitizer (BAYESBINN_FUZZ_MODULE).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "model-v1.safetensors"
MAX_GROWTH = 256 << 20
"""Bytes. The files have a few kilobytes; a reader that believes a claim of gigabytes exceeds this."""
MAX_MEMORY = 48 << 20
"""The memory limit of a model: enough for all files made from small ones without large claims."""
MAX_WORK = 1 << 24
"""Multiplications per example in all networks: a file that needs more is loaded but not run."""

Random = np.random.Generator


# ---- files to start from -----------------------------------------------------------------------------


@dataclass
class Content:
    """A file taken apart: the header without its metadata, the metadata without the graph, the graph, the tensors."""

    header: dict[str, Any]
    metadata: dict[str, Any]
    graph: Any
    data: bytearray

    @staticmethod
    def of(content: bytes) -> Content:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        metadata = header.pop("__metadata__")
        return Content(header, metadata, json.loads(metadata.pop("graph")), bytearray(content[8 + length :]))

    def to_bytes(self) -> bytes:
        """Exactly what `format.to_bytes` writes, as long as nothing is changed."""

        def text(value: Any) -> str:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

        graph = self.graph if isinstance(self.graph, str) else text(self.graph)
        metadata = {key: value for key, value in self.metadata.items() if key != "checksum"} | {"graph": graph}
        if "checksum" in self.metadata:
            metadata["checksum"] = self.metadata["checksum"]
        raw = text({"__metadata__": metadata, **self.header}).encode("utf-8", "surrogatepass")
        raw += b" " * (-len(raw) % 8)
        return len(raw).to_bytes(8, "little") + raw + bytes(self.data)


def sealed(content: bytes) -> bytes:
    """The file with a matching checksum, if it has a place for one."""
    found = re.search(rb'"checksum":"([0-9a-f]{64})"', content)
    if found is None:
        return content
    start, end = found.span(1)
    zeroed = content[:start] + b"0" * 64 + content[end:]
    return content[:start] + hashlib.sha256(zeroed).hexdigest().encode() + content[end:]


def originals() -> list[bytes]:
    """The committed file, and a few with other layers."""
    from bayesbinn.modelfile.container import to_bytes
    from tests.helpers.random_graphs import GraphBuilder

    def convolution(g: GraphBuilder, out: int, groups: int, kernel: int, own: bool = False, **other: Any) -> None:
        shape = (out, g.shape()[0] // groups, kernel, kernel)
        settings = {"stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": groups, **other}
        tensors = {"weight": g.weight(shape, own=own), **g.scales(out)}
        g.add("conv2d", shape=shape, tensors=tensors, **settings)

    def classifier(g: GraphBuilder, own: bool = False) -> None:
        g.add("reshape", shape=(prod(g.shape()),))
        shape = (3, g.shape()[0])
        g.add("linear", shape=shape, tensors={"weight": g.weight(shape, own=own), **g.scales(3, own=own)})

    linear = GraphBuilder((20,), 1, 0)
    for out in (65, 33):
        shape = (out, linear.shape()[0])
        linear.add("linear", shape=shape, tensors={"weight": linear.weight(shape), **linear.scales(out)})
        linear.add("relu")
    linear.add("linear", shape=(3, 33), tensors={"weight": linear.weight((3, 33), binary=False)})

    ensemble = GraphBuilder((2, 12), 3, 1)
    shape = (40, 12)
    ensemble.add("linear", shape=shape, tensors={"weight": ensemble.weight(shape, own=True), **ensemble.scales(40)})
    ensemble.add("hardtanh", min=-1.0, max=1.0)
    classifier(ensemble, own=True)

    images = GraphBuilder((3, 7, 6), 1, 2)
    convolution(images, 32, 1, 3)
    images.add("max_pool2d", kernel=(2, 2), stride=(2, 2), padding=(0, 0), ceil=True, dilation=(1, 1))
    convolution(images, 34, 1, 3, stride=(1, 2))
    images.add("tanh")
    images.add("avg_pool2d", kernel=(2, 2), stride=(1, 1), padding=(1, 1), ceil=False, count_padding=True)
    classifier(images)

    # Any windows fit together in these two: no layer with a fixed number of inputs follows.
    windows = GraphBuilder((8, 9, 8), 1, 4)
    convolution(windows, 40, 1, 3)
    windows.add("max_pool2d", kernel=(2, 2), stride=(1, 1), padding=(0, 0), ceil=False, dilation=(1, 1))
    convolution(windows, 5, 5, 1, dilation=(2, 2))
    windows.add("avg_pool2d", kernel=(2, 2), stride=(1, 1), padding=(1, 1), ceil=True, count_padding=False)
    single = GraphBuilder((5, 7, 7), 3, 5)
    convolution(single, 5, 5, 3)
    single.add("hardtanh", min=-1.0, max=1.0)
    convolution(single, 33, 1, 3, own=True)
    single.add("adaptive_avg_pool2d", size=(3, 3))
    single.add("softmax", axis=0)

    branches = GraphBuilder((4, 6, 6), 2, 3)
    convolution(branches, 4, 4, 3)
    branches.add("add", 0, 1)
    convolution(branches, 8, 2, 3, own=True, dilation=(2, 1))
    branches.add("adaptive_avg_pool2d", size=(3, 2))
    branches.add("concat", 4, 4, axis=0)
    branches.add("softmax", axis=0)
    branches.add("affine", tensors=branches.scales(16, own=True))
    branches.add("adaptive_max_pool2d", size=(2, 2))
    branches.add("sigmoid")
    classifier(branches)
    made = [
        table_model(),
        linear.model(classes=("a", "b", "ü")),
        ensemble.model(task="regression"),
        images.model(logit_scale=0.5),
        windows.model(),
        single.model(task="regression"),
        branches.model(),
    ]
    return [FIXTURE.read_bytes(), *(bytes(to_bytes(model)) for model in made)]


def table_model() -> Any:
    """A model of raw rows: every kind of column, labels, and sections with a tensor."""
    from bayesbinn.modelfile.columns import BooleanColumn, CategoryColumn, DateColumn, NumberColumn
    from bayesbinn.modelfile.encoding import TableEncoding
    from bayesbinn.modelfile.sections import Section
    from tests.helpers.random_graphs import GraphBuilder

    columns = (
        NumberColumn("age", missing=True, knots=(18.0, 40.5, 90.0), codes=("line", "rank", "ramps"), whole=True),
        NumberColumn("x", range=(-1.0, 1e9), knots=(0.0,), codes=("line",), height=0.5),
        CategoryColumn('job, "', categories=("cook", "nürse"), other=True),
        BooleanColumn("member", missing=True),
        DateColumn("since", range=(0.0, 9e8), knots=(0.0, 9e8), codes=("line",), cycles=("year", "day"), order="dmy"),
    )
    encoding = TableEncoding(columns, ignored=("id",))
    g = GraphBuilder((encoding.width,), 1, 6)
    g.add("linear", shape=(3, encoding.width), tensors={"weight": g.weight((3, encoding.width)), **g.scales(3)})
    model = g.model(classes=("0", "1", "2"))
    model.encoding, model.labels = encoding, (0, 1, 2)
    model.sections = {
        "calibration": Section("scale and shift", {"rows": 40}),
        "conformal": Section(
            "scores", {"rows": 50, "quantiles": (0.5, 0.9)}, {"scores": np.arange(5, dtype=np.float32)}
        ),
        "unfamiliarity": Section("distance", {"threshold": 1.5}, {"mean": np.zeros(encoding.width, np.float32)}),
    }
    return model


# ---- changes to the bytes --------------------------------------------------------------------------


def header_end(content: bytes) -> int:
    return min(8 + int.from_bytes(content[:8], "little"), len(content))


def flipped(random: Random, content: bytes, start: int, end: int) -> bytes:
    changed = bytearray(content)
    for _ in range(random.integers(1, 4)):
        changed[random.integers(start, end)] ^= 1 << random.integers(8)
    return bytes(changed)


def flip_length(random: Random, content: bytes) -> bytes:
    return flipped(random, content, 0, 8)


def flip_header(random: Random, content: bytes) -> bytes:
    return flipped(random, content, 8, header_end(content))


def flip_body(random: Random, content: bytes) -> bytes:
    return flipped(random, content, min(header_end(content), len(content) - 1), len(content))


def cut(random: Random, content: bytes) -> bytes:
    return content[: random.integers(len(content))]


def remove(random: Random, content: bytes) -> bytes:
    at = random.integers(len(content))
    return content[:at] + content[at + random.integers(1, 20) :]


def insert(random: Random, content: bytes) -> bytes:
    at = random.integers(len(content) + 1)
    return content[:at] + random.bytes(random.integers(1, 20)) + content[at:]


def overwrite_digits(random: Random, content: bytes) -> bytes:
    """Other digits for one of the header's numbers: the length stays, the JSON stays whole."""
    numbers = list(re.finditer(rb"(?<![0-9a-f\"])\d+(?![0-9a-f\"])", content[: header_end(content)]))
    if not numbers:
        return flip_header(random, content)
    found = numbers[random.integers(len(numbers))]
    digits = "".join(str(d) for d in random.integers(0, 10, len(found[0]))).lstrip("0")
    return content[: found.start()] + digits.rjust(len(found[0])).encode() + content[found.end() :]


BYTES: tuple[Callable[[Random, bytes], bytes], ...] = (
    flip_length,
    flip_header,
    flip_body,
    cut,
    remove,
    insert,
    overwrite_digits,
)

# ---- changes to the content ------------------------------------------------------------------------

SIZES = [0, 1, 2, 3, 5, 7, 8, 9, 31, 33, 64, 255, 4096, 4097, 2**16, 2**20, 2**20 + 1, 2**28, 2**28 + 1]
HUGE = [2**31 - 1, 2**31, 2**32, 2**53, 2**62, 10**18, 10**30, -1, -(2**31)]
ODD: list[Any] = [1.5, float("nan"), float("inf"), 1e300, 1e-320, True, None, "x", "9" * 99, "\ud800", [], {}, [[1]]]


def choose(random: Random, values: Any) -> Any:
    values = list(values)
    return values[random.integers(len(values))]


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    keys: Any = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *places_of(value[key])]]


def nodes_of(content: Content) -> list[dict[str, Any]]:
    nodes = content.graph.get("nodes") if isinstance(content.graph, dict) else None
    return [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []


def change_value(random: Random, content: Content) -> None:
    """Any number or text of the graph or of a tensor's entry."""
    places = places_of(content.graph) if random.integers(3) else places_of(content.header)
    if places:
        container, key = choose(random, places)
        container[key] = choose(random, SIZES + HUGE + ODD)


def change_number(random: Random, content: Content) -> None:
    """Change an integer of the graph to one near it or to one of another size."""
    places = [(c, k) for c, k in places_of(content.graph) if type(c[k]) is int]
    if places:
        container, key = choose(random, places)
        near = max(0, container[key] + int(random.integers(-2, 3)))
        container[key] = near if random.integers(2) else choose(random, SIZES)


def change_settings(random: Random, content: Content) -> None:
    """Change some windows, limits and axes to values that are mostly allowed: these files reach the kernels."""
    for node in nodes_of(content):
        for key in [key for key in node if random.integers(6) == 0]:
            if key in ("stride", "padding", "dilation", "kernel", "size") and isinstance(node[key], list):
                allowed = [0, 0, 1] if key == "padding" else [1, 1, 2, 3]
                node[key] = [choose(random, allowed if random.integers(6) else SIZES) for _ in node[key]]
            elif key in ("ceil", "count_padding"):
                node[key] = not node[key]
            elif key == "axis":
                node[key] = int(random.integers(3))
            elif key in ("min", "max"):
                node[key] = choose(random, [0.0, -1.0, 1.0, 1e300, -1e300, 1e-320])


def change_inputs(random: Random, content: Content) -> None:
    """Cycles, values that come later, values of other shapes, more and fewer of them."""
    nodes = nodes_of(content)
    if nodes:
        count = choose(random, [0, 1, 1, 1, 2, 3])
        choose(random, nodes)["inputs"] = [int(random.integers(len(nodes) + 2)) for _ in range(count)]


def change_keys(random: Random, content: Content) -> None:
    """Delete, rename or add a key, anywhere."""
    tree = [content.metadata, content.header, content.graph]
    dicts = [t for t in tree if isinstance(t, dict)] + [c[k] for c, k in places_of(tree) if isinstance(c[k], dict)]
    chosen = choose(random, dicts)
    if not chosen:
        return
    key = choose(random, chosen)
    kind = random.integers(3)
    if kind == 2:
        chosen[str(key) + "2"] = chosen[key]
    else:
        value = chosen.pop(key)
        if kind == 1:
            chosen[choose(random, ["", "ü", "shape", "weight", "scale", "__metadata__", str(key).upper()])] = value


def change_nodes(random: Random, content: Content) -> None:
    """Delete, repeat, swap or insert a node, or change its operation."""
    if not isinstance(content.graph, dict) or not isinstance(content.graph.get("nodes"), list):
        return
    nodes = content.graph["nodes"]
    at = int(random.integers(len(nodes) + 1))
    kind = random.integers(4)
    plain = {"op": choose(random, ["relu", "tanh", "sigmoid", "reshape", "affine", "add", "concat", "conv2d"])}
    if kind == 0:
        del nodes[at : at + 1]
    elif kind == 1:
        nodes[at:at] = nodes[at : at + 1]
    elif kind == 2 and nodes_of(content):
        choose(random, nodes_of(content))["op"] = plain["op"]
    else:  # in front of the output
        nodes.append({**plain, "inputs": [len(nodes)]})


def change_tensors(random: Random, content: Content) -> None:
    """Types, shapes and places of tensors; two swapped; one more or less."""
    entries = [entry for entry in content.header.values() if isinstance(entry, dict)]
    if not entries:
        return
    one, other = choose(random, entries), choose(random, entries)
    kind = random.integers(6)
    if kind == 0:
        one["dtype"] = choose(random, ["U8", "F16", "F32", "F64", "I64", "BOOL", "F8_E4M3", "", 7])
    elif kind == 1 and isinstance(one.get("shape"), list):
        one["shape"] = choose(random, [one["shape"][::-1], [prod_of(one["shape"])], [1, *one["shape"]], [2**40, 2**40]])
    elif kind == 2:
        one["data_offsets"] = [int(n) for n in random.integers(0, len(content.data) + 9, 2)]
    elif kind == 3:
        for key in ("shape", "data_offsets", "dtype"):
            one[key], other[key] = other.get(key), one.get(key)
    elif kind == 4:
        content.header["one more"] = dict(one)
    else:
        content.header.pop(choose(random, content.header))


def prod_of(values: list[Any]) -> int:
    return prod(value for value in values if isinstance(value, int))


def change_data(random: Random, content: Content) -> None:
    """NaN, infinity and extreme floats anywhere, or random bytes."""
    if len(content.data) < 4:
        return
    at = int(random.integers(len(content.data) // 4)) * 4
    numbers = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0]
    new = np.float32(choose(random, numbers)).tobytes() if random.integers(2) else random.bytes(4)
    content.data[at : at + 4] = new


def change_facts(random: Random, content: Content) -> None:
    """How many networks, which task, names."""
    if not isinstance(content.graph, dict):
        return
    graph = content.graph
    kind = random.integers(5)
    if kind == 0:
        graph["networks"] = choose(random, SIZES)
    elif kind == 1:
        graph["task"] = choose(random, ["classification", "regression", "Regression", 1])
    elif kind == 2:
        graph["input_shape"] = [choose(random, SIZES) for _ in range(random.integers(9))]
    elif kind == 3:
        graph[choose(random, ["classes", "features"])] = [str(i) for i in range(random.integers(30))]
    else:
        graph["logit_scale"] = choose(random, [0, -1.0, 1e-300, 1e300, 3, float("nan")])


def change_metadata(random: Random, content: Content) -> None:
    """A graph that is not JSON or is deeply nested; another version, kind, checksum."""
    graph = content.graph if isinstance(content.graph, str) else json.dumps(content.graph)
    depth = 10 ** int(random.integers(1, 6))
    part = graph[: random.integers(len(graph) + 1)]
    texts = [part, "[" * depth, '{"a":' * depth, "[" * depth + "]" * depth, "null", ""]
    kind = random.integers(3)
    if kind == 0:
        content.graph = choose(random, texts)
    elif kind == 1:
        key = choose(random, ["version", "format", "checksum"])
        values = ["3", "2", "1", "01", "-1", "", "bayesbinn model", "0" * 64, "f" * 64, None, 1]
        content.metadata[key] = choose(random, values)
    else:
        content.metadata[choose(random, ["graph2", "note"])] = content.metadata.get("checksum")


DOCUMENTS = ("encoding", "labels", "calibration", "conformal", "unfamiliarity")


def change_documents(random: Random, content: Content) -> None:
    """Any value, key or text of the encoding, the labels or a section; a document twice, or none."""
    there = [name for name in DOCUMENTS if isinstance(content.metadata.get(name), str)]
    if not there:
        return change_value(random, content)
    name = choose(random, there)
    text = content.metadata[name]
    kind = random.integers(8)
    if kind == 0:
        content.metadata[name] = choose(random, [text[: random.integers(len(text))], "{}", "[" * 10_000, "null", "", 7])
        return None
    if kind == 1:
        content.metadata[choose(random, DOCUMENTS)] = text
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    places = places_of(document)
    for _ in range(int(random.integers(1, 3)) if places else 0):
        container, key = choose(random, places)
        if kind == 2 and isinstance(container, dict) and key in container:
            container[choose(random, ["", "knots", "kind", "names", str(key) + "2"])] = container.pop(key)
        elif kind == 3 and isinstance(container, list) and container:
            container[:] = choose(random, [container * 2, container[::-1], container[:1], container * 500])
        elif isinstance(container, dict) and key in container:
            container[key] = choose(random, SIZES + HUGE + ODD + [[1.0, 2.0], ["a", "b"], 0.5, -1e300, "number"])
    content.metadata[name] = json.dumps(document)
    return None


CONTENTS: tuple[Callable[[Random, Content], None], ...] = (
    change_value,
    change_number,
    change_settings,
    change_inputs,
    change_keys,
    change_nodes,
    change_tensors,
    change_data,
    change_facts,
    change_metadata,
    change_documents,
    change_documents,
)


def forged(random: Random, original: bytes) -> tuple[str, bytes]:
    """A changed file with its old checksum, and the name of the (first) change."""
    while True:
        change: Any = choose(random, BYTES + 2 * CONTENTS)
        if change in BYTES:
            result = change(random, original)
        else:
            content = Content.of(original)
            change(random, content)
            while random.integers(3) == 0:
                choose(random, CONTENTS)(random, content)
            result = content.to_bytes()
        if result != original:
            return change.__name__, result


# ---- running ---------------------------------------------------------------------------------------


def use_module(path: str) -> None:
    """Use another build instead of the installed bayesbinn.runtime._native."""
    spec = importlib.util.spec_from_file_location("bayesbinn.runtime._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def work_of(model: Any) -> int:
    """About how many multiplications an example takes, and how many numbers it needs; all networks."""
    from bayesbinn.modelfile.container import shapes

    total = 0
    for node, shape in zip(model.graph.nodes, shapes(model)[1:], strict=True):
        s = node.settings
        each = prod(s["shape"][1:]) if "weight" in node.tensors else prod(s.get("kernel", (1,)))
        total += prod(shape) * each
    return model.graph.networks * (total + sum(map(prod, shapes(model))))


def outcome(path: Path, random: Random, threads: int) -> str:
    """Load and run a file in both modes: "refused", "ran", or "loaded", if running it would take too long here."""
    from bayesbinn.errors import InvalidFile, InvalidInput, TooMuchMemory
    from bayesbinn.modelfile.container import read
    from bayesbinn.runtime import load

    for activations in ("exact", "int8"):
        try:
            model = load(path, activations, threads, backend="native", max_memory=MAX_MEMORY)
        except (InvalidFile, TooMuchMemory) as error:
            if isinstance(error, TooMuchMemory) and "max_memory" not in str(error):
                raise  # not rejected, but allocated until there was none left
            if "\n" in str(error) or len(str(error)) > 1000:
                raise ValueError("a message of one line is needed") from error
            return "refused"
        if work_of(read(path)) > MAX_WORK:
            return "loaded"
        x = random.standard_normal((2, *model.input_shape)).astype(np.float32)
        with np.errstate(all="ignore"):
            y = model.outputs(x)
            assert y.shape == (model.networks, 2, *model.output_shape)
            if model.encoding is not None:
                run_rows(model, random)
            if len(model.output_shape) == 1:
                # Forged scales may make numbers that float32 cannot hold.
                with suppress(InvalidInput):
                    model.predict(x if model.encoding is None else 0 * x)  # other numbers may be no codes
    return "ran"


ODD_CELLS: list[Any] = [None, 0, -1.5, 1e308, "7", "x", "", True, "2024-02-29", "29.2.2024", "nurse", float("nan")]


def run_rows(model: Any, random: Random) -> None:
    """Raw rows of any cells: codes that are finite, or one line."""
    from bayesbinn.errors import InvalidInput

    rows = [{name: choose(random, ODD_CELLS) for name in model.encoding.names} for _ in range(3)]
    for some in (rows, rows[:1], {name: [row[name] for row in rows] for name in rows[0]}):
        try:
            assert np.isfinite(model.encode_rows(some)).all()
        except InvalidInput as error:
            if "\n" in str(error):
                raise ValueError("a message of one line is needed") from error


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_memory() -> None:
    """Limit address space to the current use plus `MAX_GROWTH`; AddressSanitizer needs terabytes, so not for it."""
    if "BAYESBINN_FUZZ_MODULE" not in os.environ and sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + 2 * MAX_GROWTH, resource.RLIM_INFINITY))


def fuzz(count: int, seed: int, folder: Path, first: int = 0) -> tuple[Counter[tuple[str, str, str]], list[str]]:
    """Counts by (checksum, change, outcome), and the errors."""
    made = originals()
    for index, content in enumerate(made):
        path = folder / f"original{index}.safetensors"
        path.write_bytes(content)
        assert Content.of(content).to_bytes() == content == sealed(content), "as the library writes it"
        assert outcome(path, np.random.default_rng(0), 2) == "ran"
    limit_memory()
    before = peak_memory()
    counts: Counter[tuple[str, str, str]] = Counter()
    errors = []
    for index in range(first, first + count):
        random = np.random.default_rng([seed, index])
        name, content = forged(random, choose(random, made))
        checksum = "recomputed" if index % 2 else "original"
        path = folder / f"{index}.safetensors"
        path.write_bytes(sealed(content) if index % 2 else content)
        peak = peak_memory()
        try:
            found = outcome(path, random, threads=2 if index % 16 == 1 else 1)
            assert found == "refused" or index % 2, "a file that does not match its checksum is refused"
            grown = peak_memory() - peak
            assert grown < MAX_GROWTH // 4, f"{grown >> 20} MB for a file of {path.stat().st_size} bytes"
        except Exception:
            found = "ERROR"
            errors.append(f"--seed {seed} --first {index} --count 1 ({name}):\n{traceback.format_exc()}")
        counts[checksum, name, found] += 1
        path.unlink()
    if peak_memory() - before > MAX_GROWTH:
        errors.append(f"peak memory grew by {peak_memory() - before >> 20} MB")
    return counts, errors


def report(counts: Counter[tuple[str, str, str]]) -> str:
    """Both halves in one table."""
    columns = [("original", "refused"), ("recomputed", "refused"), ("recomputed", "ran"), ("recomputed", "loaded")]
    columns += [("original", "ERROR"), ("recomputed", "ERROR")]
    names = sorted({name for _, name, _ in counts})
    rows = [("change", *(": ".join(column) for column in columns)), ("---", *["---:"] * len(columns))]
    rows += [(name, *(str(counts[kind, name, found]) for kind, found in columns)) for name in names]
    rows.append(("**all**", *(str(sum(counts[kind, name, found] for name in names)) for kind, found in columns)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first file, to repeat one")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    module = os.environ.get("BAYESBINN_FUZZ_MODULE")
    if module:
        use_module(module)
    # Not removed if the process dies: the file that killed it is left.
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    print(f"files in {folder}; after a crash, it contains the file that caused it", file=sys.stderr, flush=True)
    print(f"module: {importlib.import_module('bayesbinn.runtime._native').__file__}\n")
    start = time.perf_counter()
    counts, errors = fuzz(arguments.count, arguments.seed, folder, arguments.first)
    print(report(counts))
    print(f"\n{arguments.count} files in {time.perf_counter() - start:.0f} s, peak memory {peak_memory() >> 20} MB")
    print("\n".join(errors[:20]), end="\n" if errors else "")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
