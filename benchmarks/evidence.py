"""`make evidence`: compute the missing parts of the repository's evidence and write them to results/.

Every run is a real `bayesbinn train` in a separate process at the lowest priority. Several runs with one thread each
compute more per hour than one run with all threads, so that is how they run. The code that runs is a checkout of one
commit with its own environment, so the working tree may change in the meantime; a part starts and ends on the same
commit. You can stop it at any time, even with SIGKILL: the same command resumes and ends with the same numbers. A
finished run leaves its record in results/runs, a finished part its tables and figures.

    python benchmarks/evidence.py            # start or resume
    python benchmarks/evidence.py --status   # what is done, what is running, how long the rest takes
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
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
from statistics import median
from typing import Any

import torch

from bayesbinn.data.catalog import SETS, Published
from bayesbinn.data.published.download import locate
from bayesbinn.environment import cores
from bayesbinn.errors import BayesbinnError
from bayesbinn.paper import records
from bayesbinn.paper.drawing import markdown_table
from bayesbinn.paper.evidence import Part, Planned, Shown, load_queue, planned, undecided
from bayesbinn.paper.gather import SATURATED, duration
from bayesbinn.paper.page import PAGE, write_page
from bayesbinn.paper.records import MeasuredMean
from bayesbinn.runs.best_epoch import best_epoch
from bayesbinn.runs.folder import load_run

REPOSITORY = Path(__file__).resolve().parent.parent
PR_SET_PDEATHSIG = 1
"""From Linux's <sys/prctl.h>."""

THREADS = 1
"""Of each run."""
KEEP_MEMORY = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in (("hugetlb", 1), ("mmap_threshold", 1 << 32), ("trim_threshold", 1 << 33), ("top_pad", 1 << 28))
)
"""As `bayesbinn.train.memory` sets it, and in large pages, which only the environment can ask for. The numbers are the
same."""

CURRENT = "running.json"
COMMITS = "commits.json"


@dataclass(frozen=True)
class Places:
    """The folders in use."""

    home: Path
    """Checkouts, environments, run folders and logs: kept between calls, not part of the repository."""
    results: Path
    in_place: bool
    """Run this installation instead of a checkout (for tests)."""

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def kept(self) -> Path:
        return self.results / "runs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = os.environ.get("BAYESBINN_EVIDENCE", str(Path.home() / ".cache" / "bayesbinn" / "evidence"))
    parser.add_argument("--home", type=Path, default=Path(home), help="checkouts, runs and logs (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", help="where the evidence goes")
    parser.add_argument("--queue", type=Path, help="use this queue instead of the repository's (TOML)")
    parser.add_argument(
        "--jobs", type=int, default=cores(), help="runs at a time, one thread each (default: %(default)s)"
    )
    parser.add_argument("--parts", metavar="NAME,NAME", help="only these parts of the queue (default: all)")
    parser.add_argument("--status", action="store_true", help="show what is done and how long the rest takes")
    parser.add_argument(
        "--in-place", action="store_true", help="run this installation instead of a checkout, at normal priority"
    )
    arguments = parser.parse_args()
    places = Places(arguments.home.resolve(), arguments.results.resolve(), arguments.in_place)
    try:
        parts = chosen_parts(load_queue(arguments.queue).parts, arguments.parts)
        if arguments.status:
            print(status(parts, places, max(1, arguments.jobs)))
            return 0
        places.home.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(THREADS)  # records describe the machine as this process sees it
        with only_one(places.home / "queue.lock"):
            return work_through(parts, places, max(1, arguments.jobs))
    except BayesbinnError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to resume", file=sys.stderr)
        return 130


def chosen_parts(parts: tuple[Part, ...], names: str | None) -> tuple[Part, ...]:
    """The named parts, in the order in which they are named; all of them without names."""
    if names is None:
        return parts
    by_name = {part.name: part for part in parts}
    wanted = [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in by_name]:
        raise BayesbinnError(f"--parts: no part {', '.join(map(repr, unknown))}; choose from {', '.join(by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(wanted))


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """The system releases this lock when its owner dies, however it dies."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BayesbinnError(f"{path}: another process is working on the queue") from None
        yield


# ---- working ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A run that is being computed."""

    run: Planned
    commit: str
    process: subprocess.Popen[bytes]
    log: Path
    started: float


def work_through(parts: tuple[Part, ...], places: Places, jobs: int) -> int:
    """Run what is missing, in the queue's order; a failed run does not stop the others. 0 if nothing failed."""
    provide_data(parts, places)
    failed: set[str] = set()
    running: list[Job] = []
    with passing_on(running) as stopped:
        while True:
            if not stopped:
                failed |= measure_means(parts, places, failed)
                failed |= finish_parts(parts, places, running, failed, stopped)
            while len(running) < jobs and not stopped:
                found = next_run(parts, places, failed | {job.run.name for job in running})
                if found is None:
                    break
                running.append(start(*found, places))
                note_running(running, places)
                if stopped:  # the request came while this one was being started
                    running[-1].process.send_signal(signal.SIGINT)
            if not running:
                break
            if all(job.process.returncode is None for job in running):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            for job in [each for each in running if each.process.poll() is not None]:
                running.remove(job)
                note_running(running, places)
                if problem := "" if stopped else keep(job, places):
                    failed.add(job.run.name)
                    say(f"{job.run.name}: FAILED: {problem}")
        if stopped:
            raise KeyboardInterrupt
    if failed:
        say(f"failed: {', '.join(sorted(failed))}")
    return 1 if failed else 0


def provide_data(parts: tuple[Part, ...], places: Places) -> None:
    """Find or download the data of all missing runs, so that they do not fail one after the other."""
    missing = (run for part in parts for run in planned(part, places.kept) if not done(run, places))
    for name in sorted({run.experiment.data.name for run in missing}):
        if isinstance(known := SETS.get(name), Published):
            locate(known.source)


@contextmanager
def passing_on(running: list[Job]) -> Iterator[list[int]]:
    """Pass requests to stop on to the runs, so that each writes a checkpoint; yield a list that then has an entry."""
    stopped: list[int] = []

    def stop(number: int, _: Any) -> None:
        stopped.append(number)
        if not running:
            raise KeyboardInterrupt
        for job in running:
            with suppress(ProcessLookupError):  # `send_signal` might reap it, and the loop would wait for nothing
                os.kill(job.process.pid, signal.SIGINT)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for job in running:
            job.process.kill()


def next_run(parts: tuple[Part, ...], places: Places, taken: set[str]) -> tuple[Planned, Part] | None:
    """The first run without a record that is neither running nor failed and whose settings are known."""
    for part in parts:
        for run in planned(part, places.kept):
            if run.name not in taken and not done(run, places):
                return run, part
    return None


def finish_parts(
    parts: tuple[Part, ...], places: Places, running: list[Job], failed: set[str], stopped: list[int]
) -> set[str]:
    """Measure and draw the parts whose last run has ended; return what failed.

    The commit of the part measures, as it needs the networks of its runs; this one draws, since others may have left
    records that the part's does not know. Other runs pause while times are measured.
    """
    problems: set[str] = set()
    for part in parts:
        complete = all(done(run, places) for run in planned(part, places.kept))
        ready = complete and not undecided(part, places.kept)[0] and not shown(part, places)
        if not ready or not failed.isdisjoint(programs_of(part)):
            continue
        commit = commit_of(part, places)
        missed: set[str] = set()
        if part.measure:
            python = interpreter(commit, places)
            with paused(running):
                missed = {name for name in part.measure if not measure(name, python, commit, places, stopped)}
        if stopped:
            break
        missed |= {each.name for each in part.show if not show(each, places)}
        say(f"{write_page(places.results, places.results.parent / PAGE)}: written")
        if not missed:
            mark_shown(part, commit, places)
        problems |= missed
    return problems


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


def measure_means(parts: tuple[Part, ...], places: Places, failed: set[str]) -> set[str]:
    """Score the mean over posterior samples of recorded runs that need it; return what failed."""
    problems: set[str] = set()
    for part in parts:
        for run in planned(part, places.kept) if part.samples else ():
            record, job = places.kept / run.name, f"mean of {run.name}"
            if job in failed or not done(run, places) or records.measured_mean(record) is not None:
                continue
            flips = records.expected_flips(record)
            if flips is None or flips < SATURATED or not (places.runs / run.name).is_dir():
                continue
            best = best_epoch(load_run(record)[1])
            if best is None or "test_accuracy_mean" in best:  # measured during training
                continue
            commit = commit_of(part, places)
            options = ["--epoch", "best", "--samples", str(part.samples), "--json"]
            command = [str(interpreter(commit, places)), "-m", "bayesbinn", "evaluate", str(places.runs / run.name)]
            ended = subprocess.run([*command, *options], capture_output=True, text=True)
            if ended.returncode:
                say(f"{job}: FAILED: exit {ended.returncode}: {ended.stderr.strip()}")
                problems.add(job)
                continue
            accuracy = json.loads(ended.stdout)[f"mean of {part.samples}"]["accuracy"]
            text = shlex.join(["bayesbinn", "evaluate", run.name, *options])
            records.keep_mean(record, MeasuredMean(text, commit, int(best["epoch"]), part.samples, accuracy))
            say(f"{job}: {accuracy:.2f}")
    return problems


def programs_of(part: Part) -> tuple[str, ...]:
    """The names of what measures and draws a part."""
    return (*part.measure, *(each.name for each in part.show))


def done(run: Planned, places: Places) -> bool:
    """Whether the repository has the record of this run."""
    return records.provenance(places.kept / run.name) is not None


def start(run: Planned, part: Part, places: Places) -> Job:
    """Start or resume a run."""
    commit = commit_of(part, places)
    python = interpreter(commit, places)
    log = places.home / "logs" / f"{run.name}.log"
    command = [str(python), "-m", "bayesbinn", *run.arguments, "--out", str(places.runs / run.name)]
    say(f"{part.name}: {run.name}")
    process = start_politely(command, log, commit, threads=THREADS, lowest=not places.in_place)
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


def show(each: Shown, places: Places) -> bool:
    """Redraw a table or figure from the records; whether it succeeded."""
    command = [sys.executable, "-m", "bayesbinn", "reproduce", each.name, "--no-train", "--seeds", str(each.seeds)]
    for option in ("epochs", "width", "stop_after", "methods"):
        value = getattr(each, option)
        if value is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    for name, rate in each.rates.items():
        command += ["--rate", f"{name}={rate}"]
    command += ["--runs", str(places.kept), "--out", str(places.results / "paper")]
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    say(f"{each.name}: {f'FAILED: exit {code}' if code else 'written'}")
    return not code


def shown(part: Part, places: Places) -> bool:
    """Whether the tables of a part were drawn since its last run ended."""
    return not (part.show or part.measure) or part.name in read_json(places.home / "shown.json")


def mark_shown(part: Part, commit: str, places: Places) -> None:
    path = places.home / "shown.json"
    write_json(path, {**read_json(path), part.name: commit})


# ---- commits and environments ----------------------------------------------------------------------


def commit_of(part: Part, places: Places) -> str:
    """The commit a part started on; the current one if it starts now."""
    path = places.home / COMMITS
    begun = read_json(path)
    if part.name not in begun:
        begun[part.name] = git("rev-parse", "HEAD")
        write_json(path, begun)
    return str(begun[part.name])


def interpreter(commit: str, places: Places) -> Path:
    """The Python of the environment with that commit installed, created on first use."""
    if places.in_place:
        return Path(sys.executable)
    tree = places.home / "checkouts" / commit[:12]
    python = tree / ".venv" / "bin" / "python"
    ready = tree / ".venv" / "ready"
    if not ready.is_file():
        say(f"setting up {tree}")
        if not (tree / ".git").exists():
            tree.parent.mkdir(parents=True, exist_ok=True)
            git("clone", "--quiet", "--no-checkout", str(REPOSITORY), str(tree))
        git("-C", str(tree), "checkout", "--quiet", "--force", commit)
        subprocess.run([sys.executable, "-m", "venv", str(tree / ".venv")], check=True)
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        install += ["-c", str(tree / "constraints.txt"), f"{tree}[train]"]
        subprocess.run(install, check=True)
        ready.touch()
    return python


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=REPOSITORY)
    return done.stdout.strip()


# ---- status ----------------------------------------------------------------------------------------


def status(parts: tuple[Part, ...], places: Places, jobs: int) -> str:
    """A table of parts, and the current runs."""
    pace = measured(parts, places)
    running = read_json(places.home / CURRENT)
    names = running.get("runs", []) if is_alive(running.get("pid")) else []
    rows, total = [], 0.0
    for part in parts:
        runs = list(planned(part, places.kept))
        missing = [run for run in runs if not done(run, places)]
        waiting, later = undecided(part, places.kept)
        left = sum(seconds_left(run, pace, places) for run in missing) + later
        total += left
        state = f"{len(runs) - len(missing)} of {len(runs) + waiting} runs" if missing or waiting else "done"
        rows.append([part.name, part.title, state, duration(left) if missing or waiting else ""])
    text = markdown_table(["Part", "What", "State", "Left"], rows)
    text += f"\n\ntotal remaining: {duration(total / jobs)} with {jobs} runs at a time"
    for name in names:
        text += f"\nrunning: {name}, {epochs_done(places.runs / name)} epochs done"
    if not names:
        text += "\nnothing is running; `make evidence` resumes"
    return text


def note_running(running: list[Job], places: Places) -> None:
    """Leave a note for --status."""
    write_json(places.home / CURRENT, {"runs": [job.run.name for job in running], "pid": os.getpid()})


def seconds_left(run: Planned, pace: dict[str, float], places: Places) -> float:
    left = max(0, run.epochs - epochs_done(places.runs / run.name))
    return left * pace.get(kind(run), run.epoch_seconds)


def measured(parts: tuple[Part, ...], places: Places) -> dict[str, float]:
    """Seconds per epoch for each kind of run: the median of the runs so far, which ignores pauses."""
    spent: dict[str, list[float]] = {}
    for part in parts:
        for run in planned(part, places.kept):
            for folder in (places.kept / run.name, places.runs / run.name):
                for line in lines_of(folder / "metrics.jsonl"):
                    spent.setdefault(kind(run), []).append(float(line["seconds"]))
    return {key: median(values) for key, values in spent.items()}


def kind(run: Planned) -> str:
    """Runs of the same kind take equally long."""
    each = run.experiment
    return f"{each.data.name} {each.model.name} {each.model.width} {each.method.name} {each.training.batch_size}"


def epochs_done(folder: Path) -> int:
    return len(lines_of(folder / "metrics.jsonl"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except (OSError, ValueError):
        return False
    return True


# ---- small files -----------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1))
    os.replace(partial, path)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
