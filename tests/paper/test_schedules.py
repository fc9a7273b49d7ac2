"""Settings chosen by validation accuracy, and the table that shows what they buy: from records with known numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bayesbinn import paper
from bayesbinn.environment import describe
from bayesbinn.errors import InvalidInput
from bayesbinn.paper import table_schedules
from bayesbinn.paper.evidence import Part, Planned, best_settings, load_queue, planned, undecided
from bayesbinn.paper.records import RECORD
from tests.helpers.places import ROOT
from tests.helpers.processes import warm_python

ORIGIN = {"command": "bayesbinn train", "commit": "0" * 40, "seconds": 60.0, "sha256": "1" * 64}
ELSEWHERE = {**describe(), "processor": "Another processor", "cores": 64}


def beyond() -> Part:
    return next(part for part in load_queue().parts if part.name == "beyond")


def record(run: Planned, kept: Path, validation: float, test: float, missing: int = 0) -> None:
    """A run, without its last epochs if they are `missing`, whose first epoch is the best on validation data."""
    folder = kept / run.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(run.experiment.to_toml(), encoding="utf-8")
    plain = {"lr": 1e-4, "train_loss": 0.1, "train_accuracy": 99.0, "seconds": 1.0}
    rows = [
        {"epoch": e, "validation_accuracy": validation - (e > 1), "test_accuracy": test + (e > 1), **plain}
        for e in range(1, run.epochs + 1 - missing)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / RECORD).write_text(json.dumps({**ORIGIN, "machine": ELSEWHERE, "posterior": None}))


def test_the_best_candidate_is_run_at_full_width(tmp_path: Path) -> None:
    part = beyond()
    first = list(planned(part, tmp_path))
    assert {run.experiment.model.width for run in first} == {0.25}
    waiting, seconds = undecided(part, tmp_path)
    assert waiting == 6 and seconds > 3600
    for run in first[:-1]:
        good = run.experiment.training.batch_size == 50 and not run.experiment.training.average_epochs
        record(run, tmp_path, 98.5 if good else 98.0, 97.0 if good else 99.0)  # a better test accuracy plays no part
    assert best_settings(part, tmp_path) is None
    record(first[-1], tmp_path, 98.4, 99.0, missing=1)
    assert best_settings(part, tmp_path) is None, "a run that was stopped is not done"
    record(first[-1], tmp_path, 98.4, 99.0)
    assert best_settings(part, tmp_path) == {"training.batch_size": 50}
    assert undecided(part, tmp_path) == (0, 0)
    later = [run for run in planned(part, tmp_path) if run.name not in {each.name for each in first}]
    assert [run.name for run in later] == [
        *("mnist-best-bayesbinn-e50-s1", "mnist-shifted-bayesbinn-e50-s1"),
        *(f"mnist-best-bayesbinn-e20-s{seed}" for seed in (1, 2, 3)),
        "mnist-shifted-bayesbinn-e20-s1",
    ]
    assert {(run.experiment.model.width, run.experiment.training.batch_size) for run in later} == {(1.0, 50)}
    assert [run.experiment.data.shift for run in later] == [0, 2, 0, 0, 0, 2]
    assert "training.batch_size=50" in later[0].arguments


def reproduced(tmp_path: Path) -> tuple[str, dict[str, object]]:
    list(paper.reproduce("table-schedules", train=False, runs=tmp_path / "runs", out=tmp_path / "out"))
    text = (tmp_path / "out" / "table-schedules.md").read_text(encoding="utf-8")
    return text, json.loads((tmp_path / "out" / "table-schedules.json").read_text(encoding="utf-8"))


def cells_of(text: str, epochs: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {epochs} "))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_table_takes_the_test_accuracy_at_the_best_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_schedules, "_draw", lambda *arguments: [])
    text, numbers = reproduced(tmp_path)
    assert "| not computed yet" in text and numbers["best settings"] is None
    kept = tmp_path / "runs"
    for run in planned(beyond(), kept):
        record(run, kept, 98.0, 98.0)
    for run in planned(beyond(), kept):
        if not (kept / run.name).exists():
            record(run, kept, 99.0, 98.9 if "shifted" in run.name else 98.7)
    for run in (each for part in load_queue().parts for each in planned(part, kept)):
        if run.name in ("mnist-bayesbinn-e20-s1", "mnist-bayesbinn-e20-s2"):
            record(run, kept, 98.6, 98.3 if run.name.endswith("1") else 98.5)
    text, numbers = reproduced(tmp_path)
    cells = cells_of(text, "20")
    assert cells[1:5] == ["98.40 ± 0.10", "98.60 ± 0.00", "1, 2", "2.0 min"]
    assert cells[5] == "98.70 ± 0.00" and cells[9] == "98.90"
    assert (cells_of(text, "10")[1], cells_of(text, "10")[5]) == ("not computed yet", "–")
    assert "98.86 % is reached in 50 epochs or fewer: not computed yet; so far, 98.70" in text
    for run in (each for part in load_queue().parts for each in planned(part, kept)):
        if run.name == "mnist-bayesbinn-e50-s1":
            record(run, kept, 98.6, 98.5, missing=20)
            assert cells_of(reproduced(tmp_path)[0], "50")[1] == "not computed yet"
            record(run, kept, 98.6, 98.5)
    text, _ = reproduced(tmp_path)
    assert "98.86 % is not reached in 50 epochs or fewer without augmentation: the best is 98.70" in text
    assert numbers["columns"]["best"]["20"][0]["origin"]["sha256"] == "1" * 64  # type: ignore[index]


def test_it_is_drawn_from_records_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="add --no-train"):
        paper.reproduce("table-schedules", runs=tmp_path, out=tmp_path)


def test_status_counts_runs_that_wait_for_a_choice(tmp_path: Path) -> None:
    command = [warm_python(), str(ROOT / "benchmarks" / "evidence.py"), "--status"]
    places = ["--home", str(tmp_path / "home"), "--results", str(tmp_path / "results")]
    text = subprocess.run([*command, *places], capture_output=True, text=True, check=True).stdout
    assert next(line for line in text.splitlines() if line.startswith("| beyond")).count("0 of 28 runs") == 1


STAGES = """
[[parts]]
name = "stages"
title = "Two rates, then the better one at another width"

[[parts.runs]]
preset = "digits"
methods = ["bayesbinn"]
seeds = [1]
candidate = true
settings = { "training.epochs" = 2, "model.width" = 0.02, lr = 1e-3 }
epoch_seconds = 0.1

[[parts.runs]]
preset = "digits"
methods = ["bayesbinn"]
seeds = [1]
candidate = true
settings = { "training.epochs" = 2, "model.width" = 0.02, lr = 1e-30 }
epoch_seconds = 0.1

[[parts.runs]]
preset = "digits"
name = "digits-best"
methods = ["bayesbinn"]
seeds = [1, 2]
chosen = true
settings = { "training.epochs" = 2, "model.width" = 0.03 }
epoch_seconds = 0.1
"""


@pytest.mark.slow
def test_the_queue_runs_what_it_has_chosen(tmp_path: Path) -> None:
    """Slow where the machine is busy: runs of the queue have the lowest priority."""
    queue = tmp_path / "queue.toml"
    queue.write_text(STAGES)
    places = ["--home", str(tmp_path / "home"), "--results", str(tmp_path / "results"), "--queue", str(queue)]
    command = [sys.executable, str(ROOT / "benchmarks" / "evidence.py"), *places, "--in-place", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    for seed in (1, 2):
        text = (tmp_path / "results" / "runs" / f"digits-best-bayesbinn-e2-s{seed}" / "config.toml").read_text()
        assert "lr = 0.001" in text and "width = 0.03" in text
    status = subprocess.run([*command, "--status"], capture_output=True, text=True, check=True).stdout
    assert "| done" in status and "total remaining: 0 s" in status
