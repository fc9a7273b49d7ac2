"""The README keeps its promises: no gaps, no dead paths, and figures that stand in results/."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
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
