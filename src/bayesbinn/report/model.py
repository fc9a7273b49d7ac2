"""The page of a model file: layers, sizes, sections, encoding, speed. It needs no run and no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayesbinn.modelfile.container import read
from bayesbinn.modelfile.sections import Section as Statistics
from bayesbinn.report import provenance, speed
from bayesbinn.report.blocks import Block, Facts, Section, Table, Text
from bayesbinn.report.network import size_text
from bayesbinn.report.page import Page
from bayesbinn.runtime.inspection import inspect

MAX_CLASSES = 100
MAX_CATEGORIES = 10
_ABOUT = {
    "calibration": "how probabilities were calibrated",
    "conformal": "what prediction sets are made of",
    "unfamiliarity": "how rows unlike the training data are recognized",
}


@dataclass(frozen=True)
class ModelFacts:
    """What is in a model file, as `bayesbinn inspect` reports it, and its sections of statistics."""

    path: Path
    file: Mapping[str, Any]
    sections: Mapping[str, Statistics]


def gather(path: Path) -> ModelFacts:
    """Read the file; this checks everything, including the checksum."""
    facts = inspect(path)
    return ModelFacts(path, facts, dict(read(path).sections))


def page(facts: ModelFacts, *, measure_speed: bool) -> Page:
    """Every section of a model file."""
    file = facts.file
    sections = [
        Section("Layers", _layers(file)),
        Section("Inputs and outputs", _interface(file)),
        Section("Statistics", _statistics(facts)),
        speed.section(lambda: speed.of_model(facts.path), measure_speed),
        Section("File", [_file(file), Text("This page was made with:"), provenance.versions()]),
    ]
    networks = f"{file['networks']} networks" if file["networks"] > 1 else "one network"
    numbers = [
        ("file", size_text(file["bytes"])),
        ("smaller than float32", f"{file['times_smaller']:.1f} ×"),
        ("weights", f"{file['weights']:,}"),
        ("networks", str(file["networks"])),
        ("outputs", " × ".join(map(str, file["output_shape"]))),
    ]
    return Page(facts.path.name, f"Model file: {networks} for {file['task']}", [Facts(numbers, large=True)], sections)


def _layers(file: Mapping[str, Any]) -> list[Block]:
    rows = [
        [
            layer["name"] or str(layer["node"]),
            layer["op"],
            "×".join(map(str, layer["shape"])),
            f"{layer['weights']:,}" if layer["weights"] else "",
            str(layer["bits"] or ""),
            f"{layer['bytes']:,}" if layer["bytes"] else "",
        ]
        for layer in file["layers"]
    ]
    head = ["layer", "operation", "output", "weights", "bits per weight", "bytes"]
    counted = f"; weights and bytes are those of all {file['networks']} networks" if file["networks"] > 1 else ""
    return [Table(f"The operations, in order{counted}", head, rows, words=3)]


def _interface(file: Mapping[str, Any]) -> list[Block]:
    rows = [("input", " × ".join(map(str, file["input_shape"])))]
    if file["classes"]:
        more = f" and {len(file['classes']) - MAX_CLASSES} more" if len(file["classes"]) > MAX_CLASSES else ""
        rows.append(("classes", ", ".join(file["classes"][:MAX_CLASSES]) + more))
    blocks: list[Block] = [Facts(rows)]
    if file["columns"]:
        table = [[column["name"], column["kind"], _about_column(column)] for column in file["columns"]]
        blocks.append(
            Table("The columns of the table it takes, in order", ["column", "kind", "values"], table, words=3)
        )
    return blocks


def _about_column(column: Mapping[str, Any]) -> str:
    if "categories" in column:
        values = [str(value) for value in column["categories"]]
        return ", ".join(values[:MAX_CATEGORIES]) + (
            f" and {len(values) - MAX_CATEGORIES} more" if len(values) > MAX_CATEGORIES else ""
        )
    if "range" not in column:
        return ""
    low, high = column["range"]
    return f"{_day(low)} to {_day(high)}" if column["kind"] == "date" else f"{low:g} to {high:g}"


def _day(seconds: float) -> str:
    return str(np.datetime64(round(seconds), "s").astype("datetime64[D]"))


def _statistics(facts: ModelFacts) -> list[Block]:
    rows: list[tuple[str, str]] = [("logit scale", f"{facts.file['logit_scale']:.4g}")]
    rows += [(name, f"{_ABOUT.get(name, name)}: {section.rule}") for name, section in facts.sections.items()]
    blocks: list[Block] = [Facts(rows)]
    if not facts.sections:
        blocks.append(Text("The file has no sections for calibration, prediction sets or unfamiliarity."))
    return blocks


def _file(file: Mapping[str, Any]) -> Facts:
    return Facts([("format version", str(file["version"])), ("SHA-256 (verified)", file["checksum"])])
