"""The processes of `make evidence`: runs and measurements at the lowest priority, which end when the queue ends."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bayesbinn.paper import records
from bayesbinn.paper.evidence import Part, Planned
from bayesbinn.paper.gather import duration
from evidence_places import REPOSITORY, Places, commit_of, interpreter, say

PR_SET_PDEATHSIG = 1
"""From Linux's <sys/prctl.h>."""

KEEP_MEMORY = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in (("hugetlb", 1), ("mmap_threshold", 1 << 32), ("trim_threshold", 1 << 33), ("top_pad", 1 << 28))
)
"""As `bayesbinn.train.memory` sets it, and in large pages, which only the environment can ask for. The numbers are the
same."""


@dataclass(frozen=True)
class Job:
    """A run that is being computed."""

    run: Planned
    commit: str
    process: subprocess.Popen[bytes]
    log: Path
    started: float


def start(run: Planned, part: Part, places: Places, threads: int) -> Job:
    """Start or resume a run."""
    commit = commit_of(part, places)
    python = interpreter(commit, places)
    log = places.home / "logs" / f"{run.name}.log"
    command = [str(python), "-m", "bayesbinn", *run.arguments, "--out", str(places.runs / run.name)]
    say(f"{part.name}: {run.name}")
    process = start_politely(command, log, commit, threads=threads, lowest=not places.in_place)
    return Job(run, commit, process, log, time.time())


def keep(job: Job, places: Places) -> str:
    """Keep the record of a run that has ended; return the reason if it failed."""
    if job.process.returncode:
        tail = job.log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"exit {job.process.returncode}: {tail[0] if tail else 'no output'} ({job.log})"
    text = shlex.join(["bayesbinn", *job.run.arguments])
    records.keep(places.runs / job.run.name, places.kept, command=text, commit=job.commit)
    say(f"{job.run.name}: done, {duration(time.time() - job.started)} since it was started or resumed")
    return ""


def measure(name: str, python: Path, commit: str, places: Places, stopped: list[int]) -> bool:
    """Run a program of benchmarks/, which goes on where it was stopped; whether it succeeded."""
    tree = REPOSITORY if places.in_place else places.home / "checkouts" / commit[:12]
    command = [str(python), str(tree / "benchmarks" / f"{name}.py"), "--runs", str(places.runs)]
    command += ["--records", str(places.kept), "--out", str(places.results / "benchmarks")]
    log = places.home / "logs" / f"{name}.log"
    process = start_politely(command, log, commit, threads=2, lowest=not places.in_place)
    while (code := process.poll()) is None:
        if stopped:
            process.terminate()
        time.sleep(0.2)
    say(f"{name}: {f'FAILED: exit {code} ({log})' if code else 'measured'}")
    return not code


@contextmanager
def paused(running: list[Job]) -> Iterator[None]:
    """Stop the runs for the length of a block; each is the leader of a process group."""

    def tell_all(number: int) -> None:
        for job in running:
            with suppress(ProcessLookupError):
                os.killpg(job.process.pid, number)

    tell_all(signal.SIGSTOP)
    try:
        yield
    finally:
        tell_all(signal.SIGCONT)


# ---- starting a process ----------------------------------------------------------------------------


def start_politely(
    command: list[str], log: Path, commit: str, *, threads: int, lowest: bool
) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to a log, at the `lowest` priority if asked."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("GLIBC_TUNABLES", KEEP_MEMORY)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"\n$ {shlex.join(command)}  # {commit}\n".encode())
        output.flush()
        before_start = partial(behave, lowest)
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, preexec_fn=before_start)


def behave(lowest: bool) -> None:
    """Called in a run's process before it starts: its priority, and end when the parent ends, for whatever reason.

    Linux may share the processor between sessions first (autogroups). A process's own priority then has no effect, so
    the run gets its own session, and the session gets the lowest priority as well.
    """
    os.setsid()
    if lowest:
        os.nice(19)
    if sys.platform == "linux":
        if lowest:
            with suppress(OSError):
                Path("/proc/self/autogroup").write_text("19")
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
