"""The README keeps its promises: no gaps, no dead paths, and figures that stand in results/."""

from __future__ import annotations

import json
import re
import statistics

from tests.helpers.places import ROOT

TEXT = (ROOT / "README.md").read_text()


def test_there_are_no_gaps() -> None:
    assert "<!--" not in TEXT


def test_named_files_exist() -> None:
    named = set(re.findall(r"`((?:src|docs|results|examples|tests|benchmarks|csrc)/[\w./-]+)`", TEXT))
    named |= {f"examples/{name}" for name in re.findall(r"`(\w+\.py)`", TEXT) if (ROOT / "examples" / name).exists()}
    assert len(named) >= 8
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_figures_stand_in_the_results() -> None:
    speed = (ROOT / "results/benchmarks/training.md").read_text()
    for milliseconds in re.findall(r"\| ([\d.]+) ms \| ([\d.]+) ms \|", TEXT):
        for value in milliseconds:
            assert any(
                abs(float(found) - float(value)) < 0.051 or found.split(".")[0] == value
                for found in re.findall(r"\| ([\d.]+) \|", speed)
            ), value
    demo = (ROOT / "results/demo.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (mode|mean) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", TEXT, re.MULTILINE)
    assert len(rows) >= 6
    for method, by, *numbers in rows:
        (line,) = [row for row in demo.splitlines() if row.startswith(f"│ {method} ") and f" {by} " in row]
        assert all(number in line for number in numbers), line


def test_inference_figures_stand_in_the_results() -> None:
    results = (ROOT / "results/benchmarks/inference.md").read_text()
    rows = re.findall(r"^\| (?:linear )?([^,|]+?)(?:,[^|]*)? \| (\d+) \|((?: [\d.]+ \|){5})$", TEXT, re.MULTILINE)
    assert len(rows) == 4
    for network, batch, numbers in rows:
        (line,) = [line for line in results.splitlines() if line.startswith(f"| {network} | {batch} | 1 |")]
        cells = [cell.strip() for cell in line.split("|")[4:10]]
        assert all(number in cells for number in numbers.replace("|", " ").split()), (network, numbers, cells)


def test_figures_of_continual_learning_stand_in_the_results() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| (shared|recalibrated|none) \|((?: [\d. ±]+ \|)+)$", TEXT, re.MULTILINE)
    assert len(rows) >= 5
    results = [
        [cell.strip() for cell in line.split("|")]
        for name in ("figure-continual", "figure-stream")
        for line in (ROOT / f"results/paper/{name}.md").read_text().splitlines()
    ]
    for variant, policy, numbers in rows:
        found = [cells for cells in results if cells[1:3] == [variant, policy]]
        assert found, (variant, policy)
        for number in numbers.strip(" |").split(" | "):
            assert any(number in cells for cells in found), (variant, policy, number)


def test_figures_of_scaling_stand_in_the_results() -> None:
    report = json.loads((ROOT / "results/benchmarks/scaling.json").read_text())
    step, speed = report["step, ms"], report["speed of two ranks beside one process of two threads"]
    text = " ".join(TEXT.split())
    said = re.search(r"takes them (\d+) ms, one process of two threads (\d+) ms, a speed of ([\d.]+)", text)
    assert said is not None
    assert said.groups() == (f"{step['two ranks']:.0f}", f"{step['one process']:.0f}", f"{speed['two ranks']:.2f}")
    sent = report["sent per rank and step, bytes"]["measured, two ranks"]
    assert f"sends {sent / 1e6:.1f} MB per step" in text


def test_the_time_of_an_ensemble_and_of_a_seed_stand_in_the_results() -> None:
    text = " ".join(TEXT.split())
    many = json.loads((ROOT / "results/benchmarks/agreement.json").read_text())["ensemble"]
    medians = [statistics.median(values) for key, values in many.items() if key.startswith("times_")]
    assert f"An ensemble of 10 takes {min(medians):.1f} to {max(medians):.1f} times as long as one network" in text
    took = re.search(r"real\s+(\d+)m([\d.]+)s", (ROOT / "results/continual/duration.md").read_text())
    assert took is not None
    assert f"took {took[1]} min {float(took[2]):.0f} s" in text


def test_figures_of_tables_stand_in_the_results_column_by_column() -> None:
    columns = ["table", "splits", "ours %", "MLPClassifier %", "NLL", "theirs"]
    head, _, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "results/benchmarks/tables.md").read_text().splitlines()
        if line.startswith("|")
    ]
    wanted = [[line[head.index(column)] for column in columns] for line in lines]
    shown = TEXT.partition("| table | splits |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in shown] == wanted
