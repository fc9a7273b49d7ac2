"""What the page of a model shows and asks for: the form of its inputs, the names of its outputs, its size."""

from __future__ import annotations

from math import isfinite, prod
from typing import Any

import numpy as np

from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.columns import CategoryColumn, Column, DateColumn, NumberColumn
from bayesbinn.modelfile.container import ModelFile, shapes
from bayesbinn.runtime.conformal import threshold
from bayesbinn.runtime.model import normalises_pixels
from bayesbinn.runtime.unfamiliarity import USUAL

COVERAGE = 0.9
"""The coverage of the prediction sets and intervals that a page shows."""
MAX_FIELDS = 200
_MNIST_SIDE, _MNIST_BOX = 28, 20
_DIGITS = tuple("0123456789")


def page_facts(model: ModelFile, size: int, box: int | None) -> dict[str, Any]:
    """Everything except the model itself, ready for JSON; `size` is the size of the file in bytes."""
    graph = model.graph
    classes = _class_names(model)
    facts: dict[str, Any] = {
        "task": graph.task,
        "shape": list(graph.input_shape),
        "classes": classes,
        "usual": f"{100 * USUAL:g} %",
        "residual": model.residual,
        "details": _details(model, size),
    }
    is_image = len(graph.input_shape) == 3 and graph.input_shape[0] in (1, 3) and model.encoding is None
    facts |= _image(model, classes, box) if is_image else _table(model)
    many = f"{graph.networks} networks" if graph.networks > 1 else "a network"
    facts["default_about"] = f"Runs {many} with weights −1 and +1 in this page; no data leaves it."
    return facts


def _class_names(model: ModelFile) -> list[str]:
    if model.graph.task != "classification":
        return []
    *_, output = shapes(model)
    if len(output) != 1:
        raise InvalidInput(f"the model returns {list(output)} for an input; a page needs one number per class")
    return list(model.graph.classes) or [str(i) for i in range(max(2, output[0]))]


def _details(model: ModelFile, size: int) -> dict[str, str]:
    graph = model.graph
    weights = sum(prod(node.settings["shape"]) for node in graph.nodes if "weight" in node.tensors)
    layers = [node.settings["shape"] for node in graph.nodes if "weight" in node.tensors]
    return {
        "Model": f"{_readable(size)}, {graph.networks} network{'s' if graph.networks > 1 else ''} "
        f"of {weights:,} weights in {len(layers)} layers",
        "Computes with": "bayesbinn’s kernels as WebAssembly, float32 activations",
        "File": f"SHA-256 {model.checksum[:16]}…" if model.checksum else "packed for this page",
    }


def _readable(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


# ---- images ------------------------------------------------------------------------------------------


def _image(model: ModelFile, classes: list[str], box: int | None) -> dict[str, Any]:
    if model.graph.task != "classification":
        raise InvalidInput("a page for images needs a classifier; this model predicts a quantity")
    channels, height, width = model.graph.input_shape
    digits = tuple(classes) == _DIGITS
    grey = (channels, height, width) == (1, _MNIST_SIDE, _MNIST_SIDE)
    box = (_MNIST_BOX if grey else 0) if box is None else box
    if not 0 <= box <= height or (box and (channels != 1 or height != width)):
        raise InvalidInput(f"box={box}: it must be 0, or for square gray images at most their side, here {height}")
    pixels = normalises_pixels(model)
    picture = {
        "rule": "centred drawing" if box else "scaled",
        "box": box,
        "white": 255 if pixels else 1,
        "dark": channels == 1 and pixels and _mean_pixel(model) < 128,
    }
    return {
        "kind": "image",
        "picture": picture,
        "invitation": "Draw a digit" if digits else "Draw something",
        "refusal": "Not a digit" if digits else "Unlike the training images",
        "examples": "digits" if digits else "images",
        "answer": "What it is",
        "sees": f"What the networks see: {width}×{height} pixels"
        + (f", the drawing scaled to {box}×{box}, its center of mass in the middle" if box else ""),
        "default_title": "Digits, drawn by hand" if digits else "Images",
    }


def _mean_pixel(model: ModelFile) -> float:
    first = model.graph.nodes[0]
    scale, shift = (model.tensors[first.tensors[key]].astype(np.float64) for key in ("scale", "shift"))
    return float((-shift / scale).mean())


# ---- tables ------------------------------------------------------------------------------------------


def _table(model: ModelFile) -> dict[str, Any]:
    graph = model.graph
    if model.encoding is not None:
        columns = [_field(column) for column in model.encoding.columns]
    elif len(graph.input_shape) == 1:
        columns = _plain_fields(model)
    else:
        raise InvalidInput(
            f"inputs of shape {list(graph.input_shape)}: a page takes images of 1 or 3 channels, or rows of a table"
        )
    if len(columns) > MAX_FIELDS:
        raise InvalidInput(f"{len(columns)} columns: a form has at most {MAX_FIELDS}; use `bayesbinn run`")
    facts: dict[str, Any] = {
        "kind": "table",
        "encoded": model.encoding is not None,
        "columns": columns,
        "examples": "rows",
        "answer": "Prediction",
        "sees": "",
        "coverage": COVERAGE,
        "default_title": "A model of a table",
    }
    if "conformal" in model.sections:
        scores = model.sections["conformal"].tensors
        limit = threshold(scores["scores"].astype(np.float64), scores["counts"].astype(np.float64), COVERAGE)
        facts["limit"] = limit if isfinite(limit) else None
    return facts


def _field(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"name": column.name, "kind": column.kind}
    if isinstance(column, CategoryColumn):
        return found | {"categories": list(column.categories)}
    if isinstance(column, NumberColumn | DateColumn):
        found |= {"range": list(column.range), "knots": list(column.knots)}
    if isinstance(column, NumberColumn):
        found["whole"] = column.whole
    return found


def _plain_fields(model: ModelFile) -> list[dict[str, Any]]:
    """Columns of numbers; where the file normalizes them first, their mean and deviation in training."""
    count, first = model.graph.input_shape[0], model.graph.nodes[0]
    names = model.graph.features or tuple(f"input {i + 1}" for i in range(count))
    fields: list[dict[str, Any]] = [{"name": name, "kind": "number"} for name in names]
    if first.op == "affine" and first.name == "normalisation":
        scale, shift = (model.tensors[first.tensors[key]].astype(np.float64) for key in ("scale", "shift"))
        for field, a, b in zip(fields, scale, shift, strict=True):
            field |= {"middle": float(-b / a), "deviation": float(1 / a)} if a else {}
    return fields
