"""The frontier of bytes, time and calibration: on digits, resumed cell by cell, and its sentences on known numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesbinn.experiments.config import load_experiment
from bayesbinn.paper import frontier, records
from bayesbinn.paper.evidence import load_queue, planned
from bayesbinn.runs.single import Run
from tests.helpers.places import ROOT

SCRIPT = ROOT / "benchmarks" / "frontier.py"
QUEUE = """
[[parts]]
name = "frontier"
title = "The frontier on digits"
measure = ["frontier"]
"""
RUNS = """
[[parts.runs]]
preset = "digits"
name = "NAME"
methods = ["METHOD"]
seeds = SEEDS
settings = { "training.epochs" = 1, "data.split_seed" = 0EXTRA }
grid = { "model.width" = [0.02] }
epoch_seconds = 0.1
"""


def runs(name: str, method: str, seeds: list[int], extra: str = "") -> str:
    filled = RUNS.replace("NAME", name).replace("METHOD", method)
    return filled.replace("SEEDS", str(seeds)).replace("EXTRA", extra)


def assert_measured(out: Path) -> None:
    """Two seeds, an ensemble of them, float32 and int8, and a spread posterior."""
    cells = json.loads((out / "frontier.json").read_text())["cells"]
    kinds = [cell["kind"] for cell in cells.values()]
    assert sorted(kinds) == [
        *("ensemble of 2", "float32", "int8", "mode", "mode", "posterior mean", "posterior mode"),
    ]
    by_kind = {cell["kind"]: cell for cell in cells.values()}
    assert by_kind["mode"]["bytes"] < by_kind["ensemble of 2"]["bytes"] < 2 * by_kind["mode"]["bytes"]
    assert by_kind["mode"]["bytes"] < by_kind["float32"]["bytes"]
    for cell in cells.values():
        assert 10 < cell["test"]["accuracy"] <= 100 and cell["microseconds"]["1"] > 0
        assert cell["runs"][0]["sha256"] and len(cell["blocks"]["nll"]) == 100
        assert 0 <= cell["auroc"]["inverted"] <= 1 and cell["noisy"]["accuracy"] <= 100
    assert "Up to 32 KiB" in (out / "frontier.md").read_text()
    assert (out / "frontier.png").read_bytes().startswith(b"\x89PNG")


def measured(folder: Path, out: Path) -> list[str]:
    """The cells that the program measured when called."""
    command = [sys.executable, str(SCRIPT), "--runs", str(folder), "--records", str(folder), "--out", str(out)]
    command += ["--without-photographs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "width" in line]


@pytest.mark.slow
def test_every_cell_is_measured_once(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    shared = {"training.epochs": 1, "data.split_seed": 0, "model.width": 0.02}
    for name, method, seed, extra in (
        ("frontier-bayesbinn-s1", "bayesbinn", 1, {}),
        ("frontier-bayesbinn-s2", "bayesbinn", 2, {}),
        ("frontier-float-s1", "float", 1, {}),
        ("frontier-posterior-s1", "bayesbinn", 1, {"certainty": 100}),
    ):
        overrides = {**shared, "training.seed": seed, **extra}
        Run.open(load_experiment("digits", method=method, overrides=overrides), tmp_path / "runs" / name).train()
        records.keep(tmp_path / "runs" / name, tmp_path / "kept", command="bayesbinn train", commit="0" * 40)
        shutil.copy(tmp_path / "kept" / name / "record.json", tmp_path / "runs" / name)
    out = tmp_path / "out"
    assert len(measured(tmp_path / "runs", out)) == 7
    assert_measured(out)
    # What is measured is not measured again; what is lost, is.
    found = json.loads((out / "frontier.json").read_text())
    lost = next(key for key in found["cells"] if key.startswith("int8"))
    del found["cells"][lost]
    (out / "frontier.json").write_text(json.dumps(found))
    assert measured(tmp_path / "runs", out) == [lost]


@pytest.mark.slow
def test_the_queue_trains_and_then_measures(tmp_path: Path) -> None:
    text = QUEUE + runs("frontier", "bayesbinn", [1, 2]) + runs("frontier", "float", [1])
    queue = tmp_path / "queue.toml"
    queue.write_text(text + runs("frontier-posterior", "bayesbinn", [1], ", certainty = 100"))
    places = ["--home", str(tmp_path / "home"), "--results", str(tmp_path / "results"), "--queue", str(queue)]
    command = [sys.executable, str(ROOT / "benchmarks" / "evidence.py"), *places, "--in-place", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    log = tmp_path / "home" / "logs" / "frontier.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    assert_measured(tmp_path / "results" / "benchmarks")


def cell(kind: str, size: int, accuracy: float, nll: float, **more: Any) -> dict[str, Any]:
    quality = {"accuracy": accuracy, "nll": nll, "ece": nll / 10}
    blocks = {"nll": [nll - 0.001, nll + 0.001], "correct": [int(accuracy)] * 2, "images": [100, 100]}
    plain = {"kind": kind, "width": 1.0, "certainty": None, "bytes": size, "microseconds": {"1": 1.0}, "auroc": {}}
    plain["machine"] = {"processor": "Abacus", "torch": "2.13"}
    return {**plain, "test": quality, "shifted": quality, "noisy": quality, "blocks": blocks, **more}


def test_at_equal_bytes_the_better_one_wins() -> None:
    cells = {
        "a": cell("mode", 30_000, 97.0, 0.10),
        "b": cell("float32", 1_000_000, 98.0, 0.30),
        "c": cell("ensemble of 10", 300_000, 98.5, 0.05),
    }
    first, second = frontier.winners({"cells": cells})
    assert first.startswith(
        "Up to 32 KiB: BayesBiNN, mode at 2048 units (highest accuracy, 97.00 %; lowest NLL, 0.1000;"
    )
    assert second.startswith("Up to 1,024 KiB: BayesBiNN, 10 seeds at 2048 units (highest accuracy, 98.50 %;")
    swapped = {
        **cells,
        "b": {**cells["b"], "test": cells["c"]["test"]},
        "c": {**cells["c"], "test": cells["b"]["test"]},
    }
    assert "float32 at 2048 units (highest accuracy, 98.50 %;" in frontier.winners({"cells": swapped})[-1]


def test_networks_with_learned_batchnorm_are_a_row_of_their_own(tmp_path: Path) -> None:
    cells = {
        "a": cell("mode", 30_000, 97.0, 0.10),
        "b": cell("mode", 30_000, 98.0, 0.05, affine=True),
        "c": cell("posterior mean", 300_000, 97.0, 0.09, certainty=100.0),
    }
    (sentence,) = frontier.winners({"cells": cells})
    assert sentence.startswith(
        "Up to 32 KiB: BayesBiNN, mode, learned BatchNorm at 2048 units (highest accuracy, 98.00"
    )
    table, verdicts = frontier.worth({"cells": cells})  # the posterior has no learned BatchNorm: it meets its like
    assert "learned" not in table and "(-0.0100 ± 0.0000)" in verdicts[0]
    frontier.write({"cells": cells}, tmp_path)
    rows = [line for line in (tmp_path / "frontier.md").read_text().splitlines() if line.startswith("| 2048")]
    assert [row.split("|")[2].strip() for row in rows].count("BayesBiNN, mode, learned BatchNorm") == 1


def test_times_name_the_processor_that_they_were_measured_on(tmp_path: Path) -> None:
    slow = {"processor": "Pencil", "torch": "2.12"}
    cells = {"a": cell("mode", 30_000, 97.0, 0.10), "b": cell("int8", 60_000, 98.0, 0.05, machine=slow)}
    frontier.write({"cells": cells}, tmp_path)
    text = (tmp_path / "frontier.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| 2048")]
    assert [(row[2].strip(), row[-2].strip()) for row in rows] == [
        ("BayesBiNN, mode", "Abacus"),
        ("int8 (torch)", "Pencil"),
    ]
    assert "compare the times of one processor with each other. torch 2.12, 2.13" in text


def test_the_posterior_s_worth_is_judged_by_paired_errors() -> None:
    mean = {"certainty": 100.0}
    cells = {
        "a": cell("mode", 1000, 98.0, 0.05),
        "b": cell("posterior mean", 10_000, 98.0, 0.04, **mean),
        "c": cell("ensemble of 10", 10_000, 98.0, 0.03),
    }
    _, verdicts = frontier.worth({"cells": cells})
    assert "NLL better than the mode's by 2 paired standard errors (-0.0100 ± 0.0000)" in verdicts[0]
    assert "accuracy within 0.3 points" in verdicts[0] and "ECE not worse" in verdicts[0]
    assert "of equal bytes: its NLL is higher (+0.0100 ± 0.0000, paired)" in verdicts[1]
    wider = {**cells, "d": cell("mode", 4000, 99.0, 0.02, width=2.0)}
    assert frontier.worth({"cells": wider}) == frontier.worth({"cells": cells}), "no posterior has that width"
    cells["b"] = cell("posterior mean", 10_000, 97.0, 0.06, **mean)
    _, verdicts = frontier.worth({"cells": cells})
    assert "NLL not better" in verdicts[0] and "not within 0.3 points (-1.00" in verdicts[0]
    assert frontier.worth({"cells": {"a": cells["a"]}}) == ("Not computed yet.", [])


def test_networks_that_are_not_measured_yet_are_named() -> None:
    names = [run.name for part in load_queue().parts if "frontier" in part.measure for run in planned(part)]
    small = {"runs": [{"run": name} for name in names if "width0.0625" in name]}
    assert frontier.missing({"cells": {"a": small}}) == [
        "Not computed yet: networks of 512 and 2048 units.",
        "Not computed yet: networks of 512 units, learned BatchNorm.",
    ]
    assert frontier.missing({"cells": {"a": {"runs": [{"run": name} for name in names]}}}) == []
