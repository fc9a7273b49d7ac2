"""Sweeps with damaged or excessive files: one line, and other runs are not affected."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bayesbinn.__main__ import main
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput
from bayesbinn.experiments import load_experiment
from bayesbinn.runs.folder import load_run
from bayesbinn.sweeps.grid import MAX_RUNS, Planned, load_grid, write_plan
from bayesbinn.sweeps.search import Trials, load_search
from bayesbinn.sweeps.standings import standings

ROW = {"epoch": 1, "train_loss": 0.5, "train_accuracy": 90.0, "validation_accuracy": 91.0, "seconds": 1.0}


def bayesbinn(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["bayesbinn", *map(str, arguments)])
    try:
        return main()
    except SystemExit as stop:
        return int(stop.code or 0)


def planned(folder: Path) -> list[Planned]:
    """A sweep of three runs, each with its metrics."""
    runs = [Planned(f"run-{index}", "ste", index, {}, 1) for index in range(3)]
    write_plan(folder, runs)
    for run in runs:
        (folder / run.name).mkdir()
        (folder / run.name / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
    return runs


@pytest.mark.parametrize(
    "line",
    [
        *("{}", "[]", "5", "null", "{", "\x00", "[" * 5000, '{"epoch": "one"}', '{"epoch": 1, "train_loss": 1}'),
        json.dumps({**ROW, "validation_accuracy": "high"}),
    ],
)
def test_a_damaged_line_of_metrics_affects_only_one_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = planned(tmp_path)
    with (tmp_path / "run-1" / "metrics.jsonl").open("a") as metrics:
        metrics.write(line + "\n")
    assert [each.state for each in standings(runs, tmp_path).values()] == ["finished", "damaged", "finished"]
    assert bayesbinn(monkeypatch, "sweep", "status", tmp_path) == 0
    said = capsys.readouterr().out
    assert "2 finished, 1 damaged" in said and "90" not in said.splitlines()[0]
    assert bayesbinn(monkeypatch, "sweep", "status", tmp_path, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in rows] == ["finished", "damaged", "finished"]
    assert "resume the run to rewrite it" in rows[1]["error"]


def test_the_other_commands_report_a_damaged_line_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(load_experiment("digits").to_toml())
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(InvalidFile, match=r"expected one line of JSON per epoch \(line 1: epoch is None\)"):
        load_run(tmp_path)


# ---- files that ask for too much -------------------------------------------------------------------

DEEP = {
    "lists": "x = " + "[" * 50_000,
    "closed lists": "x = " + "[" * 500 + "]" * 500,
    "tables": "x = " + "{a=" * 50_000,
    "dotted keys": "a." * 5000 + "b = 1",
    "headers": "[" + "a." * 5000 + "b]",
    "a long number": "x = " + "1" * 5000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deeply_nested_toml_gets_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    for read in (load_grid, load_search, lambda path: load_experiment(str(path))):
        with pytest.raises(BayesbinnError) as refused:
            read(path)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    for words in (("train",), ("sweep", "run")):
        assert bayesbinn(monkeypatch, *words, path) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1 and said[0].startswith("error: ")


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ("seeds = 1000000000", "1,000,000,000 runs"),
        ("methods = ['bayesbinn', 'ste']\nseeds = 6000", "12,000 runs"),
        (f"[grid]\nlr = {[1 / n for n in range(1, 102)]}\ntraining.epochs = {list(range(1, 101))}", "10,100 runs"),
        (f"seeds = {list(range(20_000))}", "20,000 runs"),
    ],
)
def test_too_many_runs_are_rejected_before_they_are_built(settings: str, count: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(f"experiment = 'digits'\n{settings}\n")
    started = time.process_time()
    with pytest.raises(InvalidInput, match=f"{count} .*a sweep can have at most {MAX_RUNS:,}"):
        load_grid(path)
    assert time.process_time() - started < 2


# ---- the record of a search --------------------------------------------------------------------------

SEARCH = """
experiment = "digits"
[search]
lr = {low=1e-4, high=1e-2, log=true}
"""


def test_a_damaged_search_record_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    file, folder = tmp_path / "search.toml", tmp_path / "found"
    file.write_text(SEARCH)
    Trials(load_search(file), folder, 1).close()
    whole = (folder / "study.db").read_bytes()
    damages = {
        "text": b"not a database",
        "cut": whole[: len(whole) // 2],
        "schema": whole[:100] + bytes(4000) + whole[4100:],
        "page": whole[:8192] + b"\xff" * 4096 + whole[12288:],
    }
    for content in damages.values():
        (folder / "study.db").write_bytes(content)
        with pytest.raises(InvalidFile, match=r"study\.db: not a usable search record") as refused:
            Trials(load_search(file), folder, 1)
        assert "\n" not in str(refused.value) and not (folder / "lock").exists()
    assert bayesbinn(monkeypatch, "sweep", "search", file, "--out", folder) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith(f"error: {folder / 'study.db'}: not a usable search record")
