"""The README keeps its promises: no gaps, no dead paths, and sentences whose figures stand in results/.

Its tables are checked by test_shown_tables.py.
"""

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
