"""Run many experiments at once through `concurrent.futures`: on this machine or on the workers of a Dask cluster.

Each run is a separate process, started and awaited by a task of the executor. Runs share neither random state nor
threads, a crash does not affect other runs, and a task that Dask repeats finds the folder locked until the first
process is gone. This module does not import torch.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bayesbinn.environment import cores, need
from bayesbinn.errors import BayesbinnError, InvalidFile, InvalidInput
from bayesbinn.files import write_whole
from bayesbinn.runs.process import STOPPED, TERMINATED

LOG, ERROR, METRICS = "log.txt", "error.txt", "metrics.jsonl"
TICK = 0.5
_PATIENCE = 10.0
_LATENESS = 60.0
"""Seconds to wait for a shared file system to show what another machine wrote."""
_RESTARTS = 3
"""Restarts of a run that something else stops, such as a cluster's time limit, before it finishes another epoch."""


class Interrupted(BayesbinnError):
    """The user asked all runs to stop; they can be resumed."""

    exit_code = STOPPED


@dataclass(frozen=True)
class Job:
    """A run to train, as plain values that can be sent to other machines."""

    name: str
    folder: str
    config: str
    """The experiment as JSON."""
    threads: int = 1
    data_dir: str | None = None
    stop_after: int | None = None
    track: tuple[str, ...] = ()
    """The trackers that its metrics go to."""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    name: str
    state: Literal["finished", "stopped", "failed"]
    reason: str = ""
    machine: str = ""
    lines: int = 0
    """Lines of its metrics, on the machine where it ran."""


# ---- where runs are run ---------------------------------------------------------------------------


class LocalProcesses(ThreadPoolExecutor):
    """Threads that each wait for the process of one run; shutdown with cancellation also stops the processes."""

    def __init__(self, workers: int) -> None:
        self._leaving = threading.Event()
        super().__init__(workers, "run", _on_this_machine, (self._leaving.is_set,))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            self._leaving.set()
        super().shutdown(wait, cancel_futures=cancel_futures)


@contextmanager
def open_executor(
    workers: int | None, threads: int, scheduler: str | None
) -> Iterator[tuple[Executor, Callable[[], int]]]:
    """An executor, and the number of runs it can run at once. Leaving the block by an exception stops all runs."""
    for option, value in (("workers", workers), ("threads", threads)):
        if value is not None and value < 1:
            raise InvalidInput(f"--{option} {value}: must be 1 or more")
    if scheduler is None:
        slots = workers or max(1, cores() // threads)
        local = LocalProcesses(slots)
        try:
            yield local, lambda: slots
        except BaseException:
            local.shutdown(cancel_futures=True)
            raise
        local.shutdown()
        return
    client = _connect(scheduler)
    executor: Executor = client.get_executor(pure=False)
    try:
        yield executor, lambda: workers or _threads_of(client)
    finally:
        executor.shutdown(wait=False)
        with suppress(Exception):  # the scheduler may be gone
            client.close()


def _threads_of(client: Any) -> int:
    """Current number of threads of all workers; 1 if there are none or the scheduler does not answer."""
    try:
        return max(1, int(sum(client.nthreads().values())))
    except Exception:
        return 1


def _connect(address: str) -> Any:
    distributed = need("distributed", "--scheduler", "dask")
    try:
        return distributed.Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInput(
            f"--scheduler {address}: no scheduler answers there ({reason}); start one with `dask scheduler`, "
            "which logs its address"
        ) from None


# ---- one run --------------------------------------------------------------------------------------

_here = threading.local()


def _on_this_machine(abandoned: Callable[[], bool]) -> None:
    _here.abandoned = abandoned


def _forgotten_by_dask() -> bool:
    """Whether no one waits for this thread's task any more: it was canceled, or the client is gone."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        worker = distributed.get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
    except (ValueError, KeyError):
        return False  # not a Dask worker
    return task is None or task.state in ("cancelled", "released", "forgotten")


def work(job: Job) -> Ended:
    """Run a job in a separate process and wait for it; its output goes to log.txt in its folder."""
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"---- {time.strftime('%Y-%m-%d %H:%M:%S')} on {platform.node()}\n")
        log.flush()
        code = _run_process(job, log)
    if code == 0:
        with suppress(OSError):
            (folder / ERROR).unlink()
        return Ended(job.name, "finished", machine=platform.node(), lines=_lines_of(folder))
    if code in (STOPPED, TERMINATED):
        return Ended(job.name, "stopped", machine=platform.node(), lines=_lines_of(folder))
    reason = _reason(folder / LOG, code)
    with suppress(InvalidFile):
        write_whole(folder / ERROR, (reason + "\n").encode())
    return Ended(job.name, "failed", reason, platform.node())


def _lines_of(folder: Path) -> int:
    try:
        return (folder / METRICS).read_bytes().count(b"\n")
    except OSError:
        return 0


def _run_process(job: Job, log: Any) -> int:
    threads = {f"{library}_NUM_THREADS": str(job.threads) for library in ("OMP", "MKL", "OPENBLAS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "bayesbinn.runs.process"],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **threads},
        start_new_session=True,
    )
    assert process.stdin is not None
    abandoned: Callable[[], bool] = getattr(_here, "abandoned", _forgotten_by_dask)
    with process, suppress(BrokenPipeError):
        process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        process.stdin.flush()
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(TICK)
            if abandoned():
                process.stdin.close()
                process.wait()
    return process.returncode


def _reason(log: Path, code: int) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if code < 0:
        return f"signal {-code} ended its process"
    return lines[-1].removeprefix("error: ")


# ---- all runs -------------------------------------------------------------------------------------


def run_all(
    executor: Executor,
    jobs: Iterable[Job],
    *,
    slots: Callable[[], int] | None = None,
    on_tick: Callable[[], None] = lambda: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Ended]:
    """Run all jobs and yield each as it ends, in any order; a failed job does not stop the others.

    With `slots`, the next job is requested only when fewer than that many are running. A run that something else
    stopped is restarted.
    """
    source, running, starts = iter(jobs), dict[Future[Ended], Job](), Counter[str]()
    late: list[tuple[Ended, Job, float]] = []
    reached: dict[str, int] = {}
    more = True

    def start(job: Job) -> None:
        starts[job.name] += 1
        running[executor.submit(work, job)] = job

    while more or running or late:
        while more and (slots is None or len(running) < slots()):
            job = next(source, None)
            if job is None:
                more = False
            else:
                start(job)
        done, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
        if late and not done:
            time.sleep(TICK if not running else 0)
        for future in done:
            job = running.pop(future)
            ended = _outcome(future)
            if ended.state == "finished":
                late.append((ended, job, time.monotonic() + _LATENESS))
            elif ended.state == "failed" or should_stop():
                yield replace(ended, name=job.name)
            else:
                if ended.lines > reached.get(job.name, -1):
                    starts[job.name] = 0  # it makes progress
                reached[job.name] = ended.lines
                if starts[job.name] <= _RESTARTS:
                    start(job)
                else:
                    yield replace(ended, state="failed", reason=f"it was stopped {starts[job.name]} times in one epoch")
        for each in list(late):
            ended, job, deadline = each
            is_seen = _is_seen_here(ended, Path(job.folder))
            if is_seen or ended.machine == platform.node() or time.monotonic() > deadline:
                late.remove(each)
                missing = f"finished on {ended.machine}, but {job.folder} is not visible here; use a shared file system"
                yield ended if is_seen else replace(ended, state="failed", reason=missing)
        on_tick()
        if running and should_stop():
            stopped = Interrupted("stopped; run the same command again to resume")
            stopped.exit_code = getattr(should_stop, "exit_code", STOPPED)
            raise stopped


def _outcome(future: Future[Ended]) -> Ended:
    if future.cancelled():
        return Ended("", "failed", "the scheduler dropped it; check that the scheduler is still running")
    error = future.exception()
    if error is not None:
        text = " ".join(str(error).split()) or "no message"
        return Ended("", "failed", f"{type(error).__name__}: {text}")
    return future.result()


def _is_seen_here(ended: Ended, folder: Path) -> bool:
    """Whether the files of a finished run are visible; files from another machine may appear late."""
    return (folder / "config.toml").exists() and _lines_of(folder) >= ended.lines
