"""The evidence queue: what it computes, and that stopping it in any way does not change the numbers."""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bayesbinn.errors import InvalidFile
from bayesbinn.paper import records
from bayesbinn.paper.evidence import load_queue, planned
from bayesbinn.paper.gather import Trained
from bayesbinn.paper.published import LEARNING_RATES, TEMPERATURES
from bayesbinn.runs.evaluate import evaluate_run
from tests.helpers.places import ROOT
from tests.helpers.processes import warm_python

SCRIPT = ROOT / "benchmarks" / "evidence.py"
QUEUE = """
[[parts]]
name = "short"
title = "One method on the digits"
samples = 2

[[parts.runs]]
preset = "digits"
methods = ["bayesbinn"]
seeds = [1]
settings = { "training.epochs" = EPOCHS, "model.width" = 0.02, certainty = 100, "training.mean_samples" = 0 }
epoch_seconds = 0.1

[[parts]]
name = "rates"
title = "A grid"

[[parts.runs]]
preset = "digits"
methods = ["ste"]
seeds = [1]
settings = { "training.epochs" = EPOCHS, "model.width" = 0.02 }
grid = { lr = [1e-2] }
epoch_seconds = 0.1
"""


def command(folder: Path, *options: str, epochs: int = 4, python: str | None = None) -> list[str]:
    queue = folder / "queue.toml"
    if not queue.exists():
        folder.mkdir(exist_ok=True)
        queue.write_text(QUEUE.replace("EPOCHS", str(epochs)))
    places = ["--home", str(folder / "home"), "--results", str(folder / "results"), "--queue", str(queue)]
    return [python or warm_python(), str(SCRIPT), *places, "--in-place", "--jobs", "1", *options]


def finish(folder: Path, epochs: int) -> None:
    done = subprocess.run(command(folder, epochs=epochs), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def numbers(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The metrics of every run without their times."""
    found = {}
    for path in sorted((folder / "results" / "runs").glob("*/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.parent.name] = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    return found


EPOCHS = 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue that ran without interruption, computed once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("queue")
    finish(folder, EPOCHS)
    return folder


def test_a_queue_that_is_killed_ends_with_the_same_numbers(finished: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path, epochs=EPOCHS), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "home" / "runs").glob("*/metrics.jsonl")):
        assert time.monotonic() < deadline, "no run has begun"
        time.sleep(0.002)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(numbers(tmp_path)) < 2
    finish(tmp_path, EPOCHS)
    assert len(numbers(tmp_path)) == 2
    assert numbers(tmp_path) == numbers(finished)


def test_two_runs_at_a_time_give_the_same_numbers(finished: Path, tmp_path: Path) -> None:
    words = command(tmp_path, "--jobs", "2", epochs=EPOCHS)
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    started, ended = (
        done.stdout.find(word)
        for word in ("rates: digits-ste", "digits-bayesbinn-width0.02-certainty100-mean_samples0-e3-s1: done")
    )
    assert 0 <= started < ended, done.stdout
    assert numbers(tmp_path) == numbers(finished)


def test_a_request_to_stop_reaches_every_run_and_starts_nothing(finished: Path, tmp_path: Path) -> None:
    words = command(tmp_path, "--jobs", "2", epochs=400)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "home" / "runs").glob("*/checkpoint.pt"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None, "both runs must have begun"
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "FAILED" not in said
    assert not numbers(tmp_path) and not list((tmp_path / "home" / "runs").glob("*/lock"))
    epochs = [len(path.read_text().splitlines()) for path in (tmp_path / "home" / "runs").glob("*/metrics.jsonl")]
    assert len(epochs) == 2 and max(epochs) < 400, "both stopped before their end"


def killed(folder: Path, kills: int, epochs: int) -> None:
    """Work through the queue, killing it at random times."""
    chance = random.Random(kills)
    for _ in range(kills):
        words = command(folder, epochs=epochs, python=sys.executable)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(2.0, 9.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    finish(folder, epochs)


@pytest.mark.slow
def test_ten_kills_end_with_the_same_numbers(tmp_path: Path) -> None:
    finish(tmp_path / "undisturbed", 12)
    killed(tmp_path / "killed", 10, 12)
    assert len(numbers(tmp_path / "killed")) == 2
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "undisturbed")


def test_a_finished_run_leaves_a_record_and_is_not_run_again(finished: Path) -> None:
    folder = finished / "results" / "runs" / "digits-bayesbinn-width0.02-certainty100-mean_samples0-e3-s1"
    origin = records.provenance(folder)
    assert origin is not None
    words = "bayesbinn train digits --method bayesbinn --seed 1 --epochs 3 --set model.width=0.02 --set certainty=100 "
    words += "--set training.mean_samples=0"
    assert origin.command == words
    assert len(origin.commit) == 40
    assert origin.sha256 == records.folder_hash(finished / "home" / "runs" / folder.name)
    assert origin.seconds > 0
    assert origin.posterior is not None
    assert 0 < origin.posterior["saturated"] < 1
    log = finished / "home" / "logs" / f"{folder.name}.log"
    before = log.read_bytes()
    finish(finished, EPOCHS)
    assert log.read_bytes() == before


def test_the_mean_of_a_spread_posterior_is_measured_in_the_best_epoch(finished: Path, tmp_path: Path) -> None:
    (record,) = (finished / "results" / "runs").glob("digits-bayesbinn-*")
    measured = records.measured_mean(record)
    assert measured is not None and measured.samples == 2
    assert measured.command == f"bayesbinn evaluate {record.name} --epoch best --samples 2 --json"
    rows = [json.loads(line) for line in (record / "metrics.jsonl").read_text().splitlines()]
    assert measured.epoch == max(rows, key=lambda row: row["validation_accuracy"])["epoch"]
    folder = finished / "home" / "runs" / record.name
    again = evaluate_run(folder, 2, True, None, "best")
    assert measured.accuracy == again["mean of 2"]["accuracy"]

    row = {"epoch": measured.epoch, "test_accuracy": 12.5}
    run = Trained(seed=1, folder=record, epochs=EPOCHS, rows=[row])
    assert run.accuracy_of_the_mean(row) == measured.accuracy
    assert run.accuracy_of_the_mean({**row, "epoch": measured.epoch + 1}) is None, "measured in another epoch"
    damaged = tmp_path / records.MEAN
    damaged.write_text("{}")
    with pytest.raises(InvalidFile, match="delete it to measure it again"):
        records.measured_mean(tmp_path)


def test_status_reports_what_is_done_and_what_remains(finished: Path, tmp_path: Path) -> None:
    before, after = (
        subprocess.run(command(folder, "--status", epochs=1), capture_output=True, text=True, check=True).stdout
        for folder in (tmp_path, finished)
    )
    assert "0 of 1 runs" in before
    assert "nothing is running" in before
    assert after.count("done") == 2
    assert "total remaining: 0 s" in after


def test_parts_can_be_selected(finished: Path) -> None:
    words = command(finished, "--status", "--parts", "rates")
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "A grid" in shown and "One method" not in shown
    unknown = subprocess.run([*words[:-1], "rates,roses"], capture_output=True, text=True)
    assert unknown.returncode == 1
    assert unknown.stderr == "error: --parts: no part 'roses'; choose from short, rates\n"


def test_missing_data_stop_the_queue_before_its_first_run(tmp_path: Path) -> None:
    words = command(tmp_path)
    queue = tmp_path / "queue.toml"
    queue.write_text(queue.read_text().replace("digits", "mnist"))
    nowhere = {"BAYESBINN_DATA": str(tmp_path / "none"), "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    offline = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {**os.environ, **nowhere, **offline}
    done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("error: mnist could not be downloaded") and done.stderr.count("\n") == 1
    assert not (tmp_path / "home" / "runs").exists()


def test_runs_pause_while_times_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    evidence = importlib.import_module("evidence")
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=os.setsid)
    try:
        while "-c" not in Path(f"/proc/{process.pid}/cmdline").read_text():
            time.sleep(0.01)  # before that it has no session yet
        job = evidence.Job(None, "", process, Path(), 0.0)
        with evidence.paused([job]):
            assert state(process.pid) == "T"
        assert state(process.pid) == "R"
    finally:
        process.kill()
        process.wait()


def state(pid: int) -> str:
    """T: stopped; R: running."""
    time.sleep(0.05)
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_record_without_its_origin_counts_as_empty(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "results" / "runs", tmp_path / "runs")
    wanted = next(planned(load_queue(finished / "queue.toml").parts[0])).experiment
    found = records.find(tmp_path / "runs", wanted)
    assert found is not None
    (found / records.RECORD).unlink()
    assert records.find(tmp_path / "runs", wanted) is None


def test_a_table_keeps_the_record_of_its_own_preset(finished: Path, tmp_path: Path) -> None:
    """Another preset may run the same experiment, with other rounding."""
    shutil.copytree(finished / "results" / "runs", tmp_path / "runs")
    wanted = next(planned(load_queue(finished / "queue.toml").parts[0])).experiment
    own = records.find(tmp_path / "runs", wanted)
    assert own is not None
    other = tmp_path / "runs" / f"a-{own.name}"  # earlier in the alphabet
    shutil.copytree(own, other)
    config = other / "config.toml"
    text = config.read_text()
    assert text.count(wanted.title) == 1
    config.write_text(text.replace(wanted.title, "Another table"))
    assert records.find(tmp_path / "runs", wanted) == own
    shutil.rmtree(own)
    assert records.find(tmp_path / "runs", wanted) == other


def test_the_repository_s_queue_covers_the_paper_s_grids() -> None:
    queue = load_queue()
    grids = list(planned(next(part for part in queue.parts if part.name == "grids")))
    settings = [run.experiment.method.settings for run in grids]
    assert {each["temperature"] for each in settings} == set(TEMPERATURES)
    assert {each["lr"] for each in settings} == set(LEARNING_RATES)
    names = [run.name for part in queue.parts for run in planned(part)]
    assert len(names) == len(set(names))


def test_a_queue_with_a_misspelled_key_gets_one_line(tmp_path: Path) -> None:
    path = tmp_path / "queue.toml"
    path.write_text('[[parts]]\nname = "x"\ntitle = "x"\nrun = []\n')
    with pytest.raises(InvalidFile, match=r"queue\.toml: parts\.0\.run"):
        load_queue(path)
