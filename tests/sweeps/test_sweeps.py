"""Sweeps and searches with real processes: local, on Dask, killed, failed, resumed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from bayesbinn.environment import cores
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput
from bayesbinn.sweeps.executor import Ended, Job, open_executor
from bayesbinn.sweeps.grid import load_grid, load_plan, write_plan
from bayesbinn.sweeps.search import load_search
from bayesbinn.sweeps.standings import standings, write_results
from bayesbinn.train.lock import LockLost, RunLock, owner_of
from tests.helpers.processes import warm_python

GRID = """
experiment = "digits"
methods = ["bayesbinn", "ste"]
seeds = {seeds}
[grid]
lr = {rates}
[set]
"training.epochs" = {epochs}
"training.batch_size" = 500
"training.mean_samples" = 0
"model.width" = 0.01
"""


def grid(folder: Path, *, seeds: int = 1, rates: str = "[1e-3, 1e-2]", epochs: int = 2, extra: str = "") -> Path:
    path = folder / "grid.toml"
    path.write_text(GRID.format(seeds=seeds, rates=rates, epochs=epochs) + extra)
    return path


def command(*arguments: str | Path, python: str | None = None) -> list[str]:
    """The processes of a sweep share their imports, with `python=sys.executable` they do not."""
    return [python or warm_python(), "-m", "bayesbinn", "sweep", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def call(*arguments: str | Path, python: str | None = None) -> subprocess.CompletedProcess[str]:
    words = command(*arguments, python=python)
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment())


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows by run; every run must appear exactly once."""
    rows: list[dict[str, Any]] = parquet.read_table(folder / "results.parquet").to_pylist()
    assert len({row["run"] for row in rows}) == len(rows)
    assert len((folder / "results.csv").read_text().splitlines()) == len(rows) + 1
    return {row["run"]: row for row in rows}


def numbers(folder: Path) -> dict[str, dict[str, Any]]:
    """The results without times and machines."""
    left_out = ("seconds", "folder")
    return {name: {k: v for k, v in row.items() if k not in left_out} for name, row in results(folder).items()}


def until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def starts(folder: Path) -> int:
    """The number of processes that worked on a run."""
    return (folder / "log.txt").read_text().count("---- ")


# ---- the file --------------------------------------------------------------------------------------

GRID_ERRORS = [
    ("methods = ['ste']", "experiment is missing"),
    ("experiment = 'digits'", "nothing varies"),
    ("experiment = 'digit'\nseeds = 2", "Did you mean 'digits'?"),
    ("experiment = 'nowhere.toml'\nseeds = 2", "there is no such file"),
    ("experiment = 'digits'\nmethod = ['ste']\nseeds = 2", "method must be a table"),
    ("experiment = 'digits'\nmethodes = ['ste']", "Did you mean 'methods'?"),
    ("experiment = 'digits'\nmethods = ['stee']", "Did you mean 'ste'?"),
    ("experiment = 'digits'\nmethods = []", "methods is an empty list"),
    ("experiment = 'digits'\nmethods = [1]", "methods must be a list of str values, received 1"),
    ("experiment = 'digits'\nmethods = ['ste', 'ste']", "methods has 'ste' twice"),
    ("experiment = 'digits'\nseeds = 0", "seeds = 0: must be 1 or more"),
    ("experiment = 'digits'\nseeds = [1, 1]", "seeds has 1 twice"),
    ("experiment = 'digits'\nseeds = [-1]", "training.seed"),
    ("experiment = 'digits'\n[grid]\nlr = 0.1", "lr must be a list of values, received 0.1"),
    ("experiment = 'digits'\n[grid]\nlr = []", "lr is an empty list"),
    ("experiment = 'digits'\n[grid]\nlr = [1e-3, 0.001]", "lr has 0.001 twice"),
    ("experiment = 'digits'\n[grid]\nlr = [1e-3, -1]", "with lr=-1"),
    ("experiment = 'digits'\n[grid]\nlearning = [1]", "no setting 'learning'"),
    ("experiment = 'digits'\n[grid]\ntraining.epoch = [1]", "Did you mean 'epochs'?"),
    ("experiment = 'digits'\n[grid]\ntraining.seed = [1]", "is set by seeds"),
    ("experiment = 'digits'\n[grid]\nlr = [1e-3]\n[set]\nlr = 1e-2", "lr is both in [set] and in a grid"),
    ("experiment = 'digits'\n[grid]\nlr = [1e-3, 1e-2]\nmethod.settings.lr = [1e-3]", "are the same run"),
    ("experiment = 'digits'\nmethods = ['ste']\n[method.bop]\nlr = [1]", "[method.bop] is not among the methods"),
    ("experiment = 'digits'\nmethods = ['ste']\n[methods.ste]\nlr = [1]", "a method's own grid is [method.NAME]"),
]


@pytest.mark.parametrize(("text", "message"), GRID_ERRORS, ids=[message for _, message in GRID_ERRORS])
def test_a_mistake_in_a_grid_gets_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "g.toml"
    path.write_text(text)
    with pytest.raises(BayesbinnError) as caught:
        load_grid(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_grid_is_every_combination_with_stable_names(tmp_path: Path) -> None:
    path = grid(tmp_path, seeds=2, extra='[method.ste]\nlr = [0.1]\n"training.evaluate_every" = [2]\n')
    sweep = load_grid(path)
    assert [each.name for each in sweep.planned] == [
        *("bayesbinn-lr0.001-s0", "bayesbinn-lr0.001-s1", "bayesbinn-lr0.01-s0", "bayesbinn-lr0.01-s1"),
        *("ste-lr0.1-evaluate_every2-s0", "ste-lr0.1-evaluate_every2-s1"),
    ]
    assert sweep.runs[2][1].method.settings["lr"] == 0.01 and sweep.runs[1][1].training.seed == 1
    assert all(experiment.model.width == 0.01 for _, experiment in sweep.runs)
    write_plan(tmp_path / "s", sweep.planned)
    assert load_plan(tmp_path / "s") == sweep.planned
    write_results(sweep.planned, tmp_path / "s")
    rows = results(tmp_path / "s")
    assert len(rows) == 6 and {row["state"] for row in rows.values()} == {"waiting"}
    assert rows["bayesbinn-lr0.01-s0"]["training.evaluate_every"] is None


SEARCH_ERRORS = [
    ("experiment = 'digits'", "[search] is empty"),
    ("experiment = 'digits'\n[search]\nlr = 3", "search.lr must be a range"),
    ("experiment = 'digits'\n[search]\nlr = {low=1, high=0}", "low 1 must be below high 0"),
    ("experiment = 'digits'\n[search]\nlr = {low=0, high=1, log=true}", "must start above 0"),
    ("experiment = 'digits'\n[search]\nlr = {low=1e-3, high=1, lag=true}", "Did you mean 'log'?"),
    ("experiment = 'digits'\n[search]\nlr = {low='a', high=1}", "search.lr.low is 'a'"),
    ("experiment = 'digits'\n[search]\nlr = {low=-1, high=1}", "lr"),
    ("experiment = 'digits'\n[search]\nlr = {low=0.1, high=1}\n[set]\nlr = 1", "both fixed and searched"),
    ("experiment = 'digits'\n[search]\nlr = {low=0.1, high=1}\n[set]\ndata.validation = 0", "data.validation is 0"),
    ("experiment = 'permuted-digits'\n[search]\nlr = {low=0.1, high=1}", "a stream of tasks"),
]


@pytest.mark.parametrize(("text", "message"), SEARCH_ERRORS, ids=[text for text, _ in SEARCH_ERRORS])
def test_a_mistake_in_a_search_gets_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_search(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


# ---- the lock --------------------------------------------------------------------------------------


def test_a_lock_has_one_owner(tmp_path: Path) -> None:
    first, second = (RunLock(tmp_path, heartbeat=0.1, stale=60) for _ in range(2))
    assert first.acquire() and not second.acquire(wait=False)
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    time.sleep(0.3)
    assert waiting.is_alive(), "a living owner keeps its lock"
    first.release()
    waiting.join(30)
    assert not waiting.is_alive() and not RunLock(tmp_path).acquire(wait=False)
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_dead_process_is_taken_over_at_once(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from bayesbinn.train.lock import RunLock
RunLock(Path({str(tmp_path)!r})).acquire()
os._exit(0)
"""
    subprocess.run([warm_python(), "-c", code], check=True)
    assert owner_of(tmp_path) is not None
    lock = RunLock(tmp_path, stale=3600)
    assert lock.acquire(wait=False)
    lock.release()


def test_a_silent_owner_on_another_machine_loses_its_lock_and_notices(tmp_path: Path) -> None:
    silent = RunLock(tmp_path, heartbeat=3600, stale=0.5)
    object.__setattr__(silent._owner, "machine", "elsewhere")
    assert silent.acquire()
    silent.check()
    takers = [RunLock(tmp_path, heartbeat=0.1, stale=0.5) for _ in range(4)]
    assert not takers[0].acquire(wait=False), "it was first seen just now"
    owned = []
    threads = [
        threading.Thread(target=lambda t=taker: owned.append(t) if t.acquire(should_stop=lambda: bool(owned)) else None)
        for taker in takers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(owned) == 1, "one of four that wait for the lock gets it"
    time.sleep(0.3)
    with pytest.raises(LockLost, match="took over this run"):
        silent.check()
    silent.release()
    found = owner_of(tmp_path)
    assert found is not None and found[0] == owned[0]._owner, "a lost lock is not removed"
    owned[0].release()


def test_a_silent_owner_on_another_machine_gets_time_to_respond(tmp_path: Path) -> None:
    silent = RunLock(tmp_path, heartbeat=3600)
    object.__setattr__(silent._owner, "machine", "elsewhere 123")
    assert silent.acquire()
    lock = RunLock(tmp_path, stale=0.5)
    assert not lock.claim() and "a process on another machine was writing there" in lock.waits_for
    until(lock.claim, "the owner is silent", 10)
    lock.check()
    lock.release()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidFile, match="cannot create the folder of the run"):
        RunLock(tmp_path / "file" / "run").claim()


# ---- on this machine -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished local sweep of four runs."""
    folder = tmp_path_factory.mktemp("local")
    done = call("run", grid(folder), "--out", folder / "sweep", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "4 runs, 0 of them already finished"
    assert [line.split()[0] for line in done.stderr.splitlines()[1:]] == ["1/4", "2/4", "3/4", "4/4"]
    return folder / "sweep"


def test_a_local_sweep(local: Path) -> None:
    rows = results(local)
    assert len(rows) == 4 and {row["state"] for row in rows.values()} == {"finished"}
    row = rows["ste-lr0.01-s0"]
    assert row["method"] == "ste" and row["lr"] == 0.01 and row["last_epoch"] == 2 and row["seconds"] > 0
    assert row["best_validation_accuracy"] >= row["last_validation_accuracy"]
    assert all(starts(local / name) == 1 and not (local / name / "lock").exists() for name in rows)


def test_finished_runs_are_not_run_again(local: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in local.glob("*/metrics.jsonl")}
    done = call("run", local.parent / "grid.toml", "--out", local)
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == "4 runs, 4 of them already finished"
    assert {path: path.stat().st_mtime_ns for path in local.glob("*/metrics.jsonl")} == before
    shown = call("status", local)
    assert shown.returncode == 0 and "4 finished" in shown.stdout and "bayesbinn-lr0.001-s0" in shown.stdout
    rows = json.loads(call("status", local.parent / "grid.toml", "--out", local, "--json").stdout)
    assert [row["state"] for row in rows] == ["finished"] * 4


def test_a_changed_experiment_is_rejected(local: Path, tmp_path: Path) -> None:
    done = call("run", grid(tmp_path, epochs=3), "--out", local, python=sys.executable)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "holds another experiment (training.epochs is 2 there, 3 here)" in done.stderr


def test_a_failed_run_is_reported_and_does_not_stop_the_others(tmp_path: Path) -> None:
    """One run has a damaged checkpoint."""
    path, folder = grid(tmp_path, rates="[1e-3]", epochs=40), tmp_path / "sweep"
    broken = folder / "ste-lr0.001-s0"
    broken.mkdir(parents=True)
    (broken / "checkpoint.pt").write_text("no checkpoint")
    done = call("run", path, "--out", folder, "--workers", "2")
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("failed: ste-lr0.001-s0: ") and last.endswith(f"see {broken / 'log.txt'}")
    assert "Traceback" in (broken / "log.txt").read_text() and "Traceback" not in done.stderr
    rows = results(folder)
    assert rows["ste-lr0.001-s0"]["state"] == "failed" and "cannot be resumed" in rows["ste-lr0.001-s0"]["error"]
    assert rows["bayesbinn-lr0.001-s0"]["state"] == "finished"
    (broken / "checkpoint.pt").unlink()
    again = call("run", path, "--out", folder)
    assert again.returncode == 0 and {row["state"] for row in results(folder).values()} == {"finished"}
    assert starts(folder / "bayesbinn-lr0.001-s0") == 1


@pytest.mark.parametrize(
    ("number", "python"),
    [
        pytest.param(signal.SIGKILL, None, id="kill -9"),
        pytest.param(signal.SIGKILL, sys.executable, id="kill -9 of an interpreter", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, sys.executable, id="SIGTERM", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, sys.executable, id="Ctrl-C", marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_ends_leaves_no_process_and_can_resume(
    number: signal.Signals, python: str | None, tmp_path: Path
) -> None:
    count = 120 if python is None else 300  # interpreters do not start at the same time
    path, folder = grid(tmp_path, rates="[1e-3]", epochs=count), tmp_path / "sweep"
    words = command("run", path, "--out", folder, "--workers", "2", python=python)
    driver = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment())
    until(lambda: len(list(folder.glob("*/checkpoint.pt"))) == 2, "two runs under way")
    driver.send_signal(number)
    _, said = driver.communicate(timeout=120)
    until(lambda: not list(folder.glob("*/lock")), "the processes wrote their checkpoints and went")
    if number != signal.SIGKILL:
        assert driver.returncode == 128 + number and "run the same command again to resume" in said
    assert all("stopped in epoch" in log.read_text() for log in folder.glob("*/log.txt"))
    shown = call("status", folder)
    assert "2 unfinished" in shown.stdout, shown.stdout
    done = call("run", path, "--out", folder, "--workers", "2")
    assert done.returncode == 0, done.stderr
    rows = results(folder)
    assert len(rows) == 2 and {(row["state"], row["last_epoch"]) for row in rows.values()} == {("finished", count)}
    for log in folder.glob("*/log.txt"):
        lines = log.read_text().splitlines()
        epochs = [line.split()[1] for line in lines if line.startswith("epoch ")]
        assert len(epochs) == len(set(epochs)) == count and starts(log.parent) == 2, "no epoch was trained twice"


@pytest.mark.slow
def test_a_run_that_something_else_stops_is_restarted(tmp_path: Path) -> None:
    """SIGTERM, as at the time limit of a cluster."""
    path, folder = grid(tmp_path, rates="[1e-3]", epochs=300), tmp_path / "sweep"
    driver = subprocess.Popen(
        command("run", path, "--out", folder, "--workers", "2"), stderr=subprocess.PIPE, text=True, env=environment()
    )
    until(lambda: len(list(folder.glob("*/checkpoint.pt"))) == 2, "two runs under way")
    owner = owner_of(folder / "ste-lr0.001-s0")
    assert owner is not None and owner[0] is not None
    os.kill(owner[0].process, signal.SIGTERM)
    _, said = driver.communicate(timeout=240)
    assert driver.returncode == 0, said
    assert {row["state"] for row in results(folder).values()} == {"finished"}
    assert starts(folder / "ste-lr0.001-s0") == 2 and starts(folder / "bayesbinn-lr0.001-s0") == 1
    assert "stopped in epoch" in (folder / "ste-lr0.001-s0" / "log.txt").read_text()


@pytest.mark.slow
def test_a_local_sweep_of_twelve_runs(tmp_path: Path) -> None:
    path = grid(tmp_path, seeds=3)
    done = call("run", path, "--out", tmp_path / "two", "--workers", "2", python=sys.executable)
    assert done.returncode == 0, done.stderr
    assert call("run", path, "--out", tmp_path / "one", "--workers", "1").returncode == 0
    assert len(results(tmp_path / "two")) == 12 and numbers(tmp_path / "two") == numbers(tmp_path / "one")


def test_workers_share_the_processors() -> None:
    with open_executor(None, 1, None) as (_, slots):
        assert slots() == cores()
    with open_executor(None, 2 * cores(), None) as (_, slots):
        assert slots() == 1
    with pytest.raises(InvalidInput, match="--workers 0"), open_executor(0, 1, None):
        pass


# ---- on Dask ---------------------------------------------------------------------------------------


@contextmanager
def dask_cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers, as separate processes."""
    pytest.importorskip("distributed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    program, quiet = [sys.executable, "-m", "dask"], ["--no-dashboard"]
    port = address.rpartition(":")[2]
    commands = [[*program, "scheduler", "--host", "127.0.0.1", "--port", port, *quiet]]
    for number in range(2):
        own = ["--nthreads", "1", "--no-nanny", "--local-directory", str(folder / f"worker{number}")]
        commands.append([*program, "worker", address, *own, *quiet])
    with (folder / "dask.log").open("wb") as log:
        started = [subprocess.Popen(each, stdout=log, stderr=log, env=environment()) for each in commands]
    try:
        until(lambda: (folder / "dask.log").read_text().count("Registered to") == 2, "two workers")
        yield address, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def killed_worker(folder: Path, *, seeds: int, epochs: int) -> None:
    """A sweep on Dask whose first worker is killed while two runs are in progress; the numbers match a local sweep."""
    path = grid(folder, seeds=seeds, epochs=epochs)
    count = 4 * seeds
    with dask_cluster(folder) as (address, workers):
        sweep = folder / "dask"
        driver = subprocess.Popen(
            command("run", path, "--out", sweep, "--scheduler", address),
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        until(lambda: len(list(sweep.glob("*/lock"))) == 2, "two runs under way")
        until(lambda: bool(list(sweep.glob("*/checkpoint.pt"))), "a checkpoint")
        workers[0].kill()
        _, said = driver.communicate(timeout=600)
        assert driver.returncode == 0, said
    lines = [line.split() for line in said.splitlines() if line and line.split()[0].endswith(f"/{count}")]
    assert len({line[1] for line in lines}) == len(lines) == count, "every run ended once"
    assert {row["state"] for row in results(sweep).values()} == {"finished"}
    assert sum(starts(each.parent) for each in sweep.glob("*/log.txt")) == count + 1, "one run was started again"
    for log in sweep.glob("*/log.txt"):
        epochs_run = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("epoch ")]
        assert len(epochs_run) == len(set(epochs_run)), f"{log}: no epoch was trained twice"
    assert call("run", path, "--out", folder / "here", "--workers", "2").returncode == 0
    assert numbers(sweep) == numbers(folder / "here")


@pytest.mark.slow
def test_a_killed_dask_worker_costs_no_run(tmp_path: Path) -> None:
    killed_worker(tmp_path, seeds=1, epochs=30)


@pytest.mark.slow
def test_a_killed_dask_worker_costs_none_of_twelve_runs(tmp_path: Path) -> None:
    killed_worker(tmp_path, seeds=3, epochs=60)


@pytest.mark.slow
def test_ctrl_c_stops_the_runs_on_dask_and_the_same_command_resumes_them(tmp_path: Path) -> None:
    path, folder = grid(tmp_path, rates="[1e-3]", epochs=300), tmp_path / "sweep"
    with dask_cluster(tmp_path) as (address, _):
        arguments = command("run", path, "--out", folder, "--scheduler", address)
        driver = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment())
        until(lambda: len(list(folder.glob("*/checkpoint.pt"))) == 2, "two runs under way")
        driver.send_signal(signal.SIGINT)
        _, said = driver.communicate(timeout=120)
        assert driver.returncode == 130, said
        until(lambda: not list(folder.glob("*/lock")), "the runs wrote their checkpoints and went")
        assert all("stopped in epoch" in log.read_text() for log in folder.glob("*/log.txt"))
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment())
        assert done.returncode == 0, done.stderr
    assert {row["state"] for row in results(folder).values()} == {"finished"}


def test_an_address_without_a_scheduler_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("bayesbinn.sweeps.executor._PATIENCE", 0.5)
    with pytest.raises(InvalidInput) as caught, open_executor(None, 1, "tcp://127.0.0.1:9"):
        pass
    assert "start one with `dask scheduler`" in str(caught.value) and "\n" not in str(caught.value)


# ---- search ----------------------------------------------------------------------------------------

SEARCH = """
experiment = "digits"
method = "bayesbinn"
[search]
lr = {low=1e-5, high=1e-1, log=true}
initial_strength = {low=1, high=15}
[set]
"training.epochs" = 1
"training.batch_size" = 500
"training.mean_samples" = 0
"model.width" = 0.01
"""


def test_a_search_resumes_and_its_best_can_be_trained(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    path, folder = tmp_path / "s.toml", tmp_path / "search"
    path.write_text(SEARCH)
    first = call("search", path, "--trials", "2", "--workers", "2", "--out", folder, "--json")
    assert first.returncode == 0, first.stderr
    done = call("search", path, "--trials", "3", "--workers", "2", "--out", folder, "--json")
    assert done.returncode == 0, done.stderr
    rows = results(folder)
    assert list(rows) == ["trial-0000", "trial-0001", "trial-0002"]
    assert all(starts(folder / name) == 1 for name in rows), "earlier trials are kept"
    assert len({row["lr"] for row in rows.values()}) == 3 and all(
        1 <= row["initial_strength"] <= 15 for row in rows.values()
    )
    answer = json.loads(done.stdout)
    best = max(rows.values(), key=lambda row: row["best_validation_accuracy"])
    assert answer["validation accuracy"] == best["best_validation_accuracy"]
    from bayesbinn.experiments.config import load_experiment

    settings = load_experiment(str(folder / "best.toml")).method.settings
    assert settings["lr"] == rows[answer["best"]]["lr"]

    path.write_text(SEARCH.replace('"training.epochs" = 1', '"training.epochs" = 2'))
    other = call("search", path, "--trials", "4", "--out", folder)
    assert other.returncode == 2 and "holds another experiment (training.epochs is 1 there, 2 here)" in other.stderr


def test_a_search_without_optuna_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesbinn.errors import MissingDependency
    from bayesbinn.sweeps.search import Trials

    (tmp_path / "s.toml").write_text(SEARCH)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingDependency, match=r"pip install .*\[optuna\]'"):
        Trials(load_search(tmp_path / "s.toml"), tmp_path / "x", 1)


# ---- the paper's tables ----------------------------------------------------------------------------


@pytest.mark.slow
def test_missing_runs_of_a_table_are_trained_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesbinn.paper import gather as cells

    budget = cells.Budget(1, 1, 0.01, tmp_path, None, workers=2)
    wanted = [cells.Cell("digits", method) for method in ("ste", "bayesbinn")]
    lines = list(cells.train_ahead(wanted, budget))
    assert lines[0].startswith("training 2 runs, 2 at once") and all(line.endswith(": finished") for line in lines[1:])
    assert list(cells.train_ahead(wanted, budget)) == []
    assert "reused" in next(iter(cells.outcome_of(wanted[0], budget)))


def test_a_run_without_its_data_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesbinn.paper import gather as cells

    def failed(job: Job) -> Ended:
        Path(job.folder).mkdir(parents=True)
        (Path(job.folder) / "log.txt").write_text("no data")
        return Ended(job.name, "failed", "no data")

    monkeypatch.setattr("bayesbinn.sweeps.executor.work", failed)
    lines = list(cells.train_ahead([cells.Cell("mnist", "ste")], cells.Budget(1, 1, None, tmp_path, None, workers=2)))
    assert lines[1].endswith("failed: no data") and list(tmp_path.iterdir()) == []


def test_a_figure_of_single_runs_rejects_workers(tmp_path: Path) -> None:
    from bayesbinn.paper import reproduce

    with pytest.raises(InvalidInput, match="--workers 2"):
        reproduce("figure-moons", workers=2, runs=tmp_path, out=tmp_path)


def test_standings_of_nothing(tmp_path: Path) -> None:
    sweep = load_grid(grid(tmp_path))
    assert {each.state for each in standings(sweep.planned, tmp_path / "none").values()} == {"waiting"}
