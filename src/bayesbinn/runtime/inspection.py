"""What is in a model file: its layers, their sizes, and where the bytes go."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from bayesbinn.errors import printable
from bayesbinn.modelfile import container as model_file
from bayesbinn.modelfile.graph import Stored, own_per_network


def inspect(path: Path) -> dict[str, Any]:
    """Plain facts about a file, ready for JSON. Reading it checks everything, including the checksum.

    Weights and bytes are those in the file: of all networks of an ensemble, except that what they share counts once.
    """
    model = model_file.read(path)
    shapes = model_file.shapes(model)
    layers: list[dict[str, Any]] = []
    for index, node in enumerate(model.graph.nodes):
        tensors = {role: model.tensors[name] for role, name in node.tensors.items()}
        weight = tensors.get("weight")
        bits = None if weight is None else 1 if weight.dtype == np.uint8 else 8 * weight.itemsize
        own = weight is not None and own_per_network(Stored(weight.dtype.name, weight.shape), node.op, "weight")
        copies = model.graph.networks if own else 1
        layers.append(
            {
                "node": index,
                "name": node.name,
                "op": node.op,
                "inputs": list(node.inputs),
                "shape": list(shapes[index + 1]),
                "weights": 0 if weight is None else copies * prod(node.settings["shape"]),
                "copies": copies,
                "bits": bits,
                "bytes": sum(array.nbytes for array in tensors.values()),
            }
        )
    weights = sum(layer["weights"] for layer in layers)
    return {
        "file": str(path),
        "bytes": model.size,
        "version": model.version,
        "checksum": model.checksum,
        "task": model.graph.task,
        "networks": model.graph.networks,
        "input_shape": list(model.graph.input_shape),
        "output_shape": list(shapes[-1]),
        "logit_scale": model.graph.logit_scale,
        "classes": list(model.graph.classes),
        "columns": [] if model.encoding is None else json.loads(model.encoding.to_json())["columns"],
        "weights": weights,
        "float32_bytes": 4 * weights,
        "times_smaller": 4 * weights / model.size,
        "layers": layers,
    }


def table(facts: dict[str, Any]) -> str:
    """The same facts as text."""
    head = ["node", "name", "operation", "output", "weights", "bits", "bytes"]
    rows = [
        [
            str(layer["node"]),
            printable(layer["name"]),
            layer["op"],
            "×".join(map(str, layer["shape"])),
            f"{layer['weights']:,}" if layer["weights"] else "",
            str(layer["bits"] or ""),
            f"{layer['bytes']:,}" if layer["bytes"] else "",
        ]
        for layer in facts["layers"]
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) if i < 4 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
        for r in [head, *rows]
    ]
    networks = f"{facts['networks']} networks" if facts["networks"] > 1 else "one network"
    summary = [
        f"{facts['file']}: {facts['bytes']:,} bytes, format {facts['version']}, {networks} for {facts['task']}",
        f"{facts['weights']:,} weights, {facts['times_smaller']:.1f} times smaller than float32"
        + (f"; weights and bytes are those of all {networks}" if facts["networks"] > 1 else ""),
        f"input {'×'.join(map(str, facts['input_shape']))}, output {'×'.join(map(str, facts['output_shape']))}, "
        f"logit scale {facts['logit_scale']:.4g}",
        f"SHA-256 {facts['checksum']} (verified)",
    ]
    if facts["classes"]:
        summary.append(f"classes {', '.join(map(printable, facts['classes']))}")
    if facts["columns"]:
        columns = (f"{printable(column['name'])} ({column['kind']})" for column in facts["columns"])
        summary.append(f"columns {', '.join(columns)}")
    return "\n".join([*lines, "", *summary])
