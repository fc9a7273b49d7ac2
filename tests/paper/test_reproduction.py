"""docs/reproduction.md: up to date, and every number of ours in the row and column of its cell in results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bayesbinn.paper.cost import GPU_BYTES, GPU_FLOPS, GPU_SHARE, cost_of
from bayesbinn.paper.page import NOT_MEASURED, NOT_PLANNED, NOT_YET, PAGE, page
from bayesbinn.paper.published import DATASETS, Value
from bayesbinn.paper.tables import TABLES
from tests.helpers.places import ROOT

RESULTS = ROOT / "results"


def test_the_page_is_what_the_generator_writes_now() -> None:
    stale = "stale: bayesbinn reproduce all --no-train"
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(RESULTS), stale


# ---- numbers and their cells -----------------------------------------------------------------------


def sections(text: str) -> dict[str, list[dict[str, str]]]:
    """The tables of the page by heading, a dictionary by column for each row."""
    found: dict[str, list[dict[str, str]]] = {}
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.splitlines() if line.startswith("| ")]
        if rows:
            found[title] = [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]
    return found


def expected(numbers: dict[str, Any] | None, missing: str = NOT_YET) -> str:
    return missing if numbers is None else str(Value(numbers["mean"], numbers["std"]))


def misplaced(results: Path, text: str) -> list[str]:
    """Every cell of the page that does not hold the number of its file: none, unless somebody swapped something."""
    tables, wrong = sections(text), []
    for name, make in TABLES.items():
        table = make(None)
        listed = tables[table.title]
        path = results / "paper" / f"{name}.json"
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
        cells = {tuple(row[head] for head in table.heads): row for row in rows}
        for line, row in zip(table.lines, listed, strict=True):
            kept = cells.get(line.labels)
            for column in table.columns:
                title, paper = column.capitalize(), line.paper[column]
                missing = NOT_PLANNED if "CIFAR" in line.labels[0] else NOT_YET
                missing = NOT_MEASURED if kept and kept["seeds"] else missing
                ours = expected(kept[column]["ours"] if kept else None, missing)
                theirs = "not given" if paper is None else str(paper)
                shown = (row[f"{title}: ours"], row[f"{title}: the paper"]) if table.compared else (row[title], theirs)
                if shown != (ours, theirs):
                    wrong.append(f"{name}, {line.labels}, {column}")
    return wrong


def fabricated(folder: Path) -> Path:
    """Results in which every number is another."""
    number = 0.0
    (folder / "paper").mkdir(parents=True)
    for name, make in TABLES.items():
        table, rows = make(None), []
        for line in table.lines:
            row: dict[str, Any] = dict(zip(table.heads, line.labels, strict=True))
            for column in table.columns:
                number += 0.07
                row[column] = {"ours": {"mean": number, "std": number / 10, "values": [number]}, "paper": None}
            row |= {"seeds": [1, 2], "epochs": 20, "last epochs": [20, 20], "seconds": 60.0}
            rows.append(row)
        (folder / "paper" / f"{name}.json").write_text(json.dumps({"width": 0.5, "rows": rows}))
    return folder


def test_the_repository_s_numbers_are_in_their_cells() -> None:
    assert misplaced(RESULTS, (ROOT / PAGE).read_text(encoding="utf-8")) == []


def test_every_cell_is_filled_from_its_own_number(tmp_path: Path) -> None:
    results = fabricated(tmp_path / "results")
    text = page(results)
    assert misplaced(results, text) == []
    assert "Ours has 0.5 of the paper's width" in text and text.count("| 20 ") >= 10


@pytest.mark.parametrize("name", [name for name, make in TABLES.items() if len(make(None).columns) > 1])
def test_swapped_columns_are_noticed(name: str, tmp_path: Path) -> None:
    results = fabricated(tmp_path / "results")
    text = page(results)
    path = results / "paper" / f"{name}.json"
    numbers = json.loads(path.read_text())
    for row in numbers["rows"]:
        row["train"], row["test"] = row["test"], row["train"]
    path.write_text(json.dumps(numbers))
    assert misplaced(results, text)
    swapped = (
        text.replace("Train: ours", "?").replace("Validation: ours", "Train: ours").replace("?", "Validation: ours")
    )
    assert misplaced(fabricated(tmp_path / "again"), swapped)


def test_continual_numbers_are_in_their_cells() -> None:
    numbers = json.loads((RESULTS / "paper" / "figure-continual.json").read_text(encoding="utf-8"))["variants"]
    shown = next(rows for title, rows in sections(page(RESULTS)).items() if title.startswith("Figure 5"))
    by_name = {(row["Variant"], row["BatchNorm"]): row for row in shown if "authors" not in row["Variant"]}
    count = 0
    for each in numbers.values():
        for policy, values in each.get("after the last task", {}).items():
            row, count = by_name[each["variant"], policy], count + 1
            assert row["Mean accuracy after 5 tasks"] == expected(values["Mean"])
            assert row["Forgetting"] == expected(values["Forgetting since learned"])
    assert count >= 13


def test_stream_numbers_are_in_their_cells() -> None:
    numbers = json.loads((RESULTS / "paper" / "figure-stream.json").read_text(encoding="utf-8"))["variants"]
    shown = {row["Variant"]: row for row in sections(page(RESULTS))["A stream of permuted MNIST tasks"]}
    for each in numbers.values():
        for values in each.get("accuracy", {}).values():
            row = shown[each["variant"]]
            assert row["Newest five tasks"] == expected(values["Last 5 tasks"])
            assert row["All older tasks"] == expected(values["Older tasks"])


def test_nothing_computed_says_so(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert text.count(NOT_YET) > 60 and "Not computed yet." in text
    assert all(title in text for title in DATASETS.values())


def test_the_cost_of_a_full_run_by_hand() -> None:
    """MNIST: 10,014,720 weights, each used once per example, 54,000 examples, 540 steps, 500 epochs."""
    cost = cost_of("mnist")
    assert cost.flops == pytest.approx(6 * 10_014_720 * 54_000 * 500)
    assert cost.bytes_moved == pytest.approx(24 * 10_014_720 * 540 * 500)
    assert cost.gpu_seconds == pytest.approx(cost.flops / (GPU_SHARE * GPU_FLOPS) + cost.bytes_moved / GPU_BYTES)
