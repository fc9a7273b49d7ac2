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
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from bayesbinn.data.catalog import SETS, Published
from bayesbinn.data.published.download import locate
from bayesbinn.environment import cores
from bayesbinn.errors import BayesbinnError
from bayesbinn.paper import records
from bayesbinn.paper.evidence import Part, Planned, Shown, load_queue, planned, undecided
from bayesbinn.paper.gather import SATURATED
from bayesbinn.paper.page import PAGE, write_page
from bayesbinn.paper.records import MeasuredMean
from bayesbinn.runs.best_epoch import best_epoch
from bayesbinn.runs.folder import load_run
from evidence_jobs import Job, keep, measure, paused, start
from evidence_places import REPOSITORY, Places, commit_of, done, interpreter, mark_shown, say, shown
from evidence_status import note_running, status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = os.environ.get("BAYESBINN_EVIDENCE", str(Path.home() / ".cache" / "bayesbinn" / "evidence"))
    parser.add_argument("--home", type=Path, default=Path(home), help="checkouts, runs and logs (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "results", help="where the evidence goes")
    parser.add_argument("--queue", type=Path, help="use this queue instead of the repository's (TOML)")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: as many as keep all cores busy)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run (default: %(default)s)")
    parser.add_argument("--parts", metavar="NAME,NAME", help="only these parts of the queue (default: all)")
    parser.add_argument("--status", action="store_true", help="show what is done and how long the rest takes")
    parser.add_argument(
        "--in-place", action="store_true", help="run this installation instead of a checkout, at normal priority"
    )
    arguments = parser.parse_args()
    threads = max(1, arguments.threads)
    jobs = max(1, cores() // threads if arguments.jobs is None else arguments.jobs)
    places = Places(arguments.home.resolve(), arguments.results.resolve(), arguments.in_place)
    try:
        parts = chosen_parts(load_queue(arguments.queue).parts, arguments.parts)
        if arguments.status:
            print(status(parts, places, jobs))
            return 0
        places.home.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(threads)  # records describe the machine as this process sees it
        with only_one(places.home / "queue.lock"):
            return work_through(parts, places, jobs, threads)
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


# ---- runs ------------------------------------------------------------------------------------------


def work_through(parts: tuple[Part, ...], places: Places, jobs: int, threads: int) -> int:
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
                running.append(start(*found, places, threads))
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


# ---- results ---------------------------------------------------------------------------------------


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


def programs_of(part: Part) -> tuple[str, ...]:
    """The names of what measures and draws a part."""
    return (*part.measure, *(each.name for each in part.show))


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


if __name__ == "__main__":
    sys.exit(main())
