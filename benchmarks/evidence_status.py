"""`make evidence STATUS=1`: what is done, what is running, and how long the rest takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any

from bayesbinn.paper import records
from bayesbinn.paper.drawing import markdown_table
from bayesbinn.paper.evidence import Part, Planned, planned, undecided
from bayesbinn.paper.gather import duration
from evidence_jobs import Job
from evidence_places import Places, done, read_json, write_json

CURRENT = "running.json"


def status(parts: tuple[Part, ...], places: Places, jobs: int) -> str:
    """A table of parts, and the current runs."""
    pace = measured(parts, places)
    running = read_json(places.home / CURRENT)
    names = running.get("runs", []) if is_alive(running.get("pid")) else []
    rows, total, longest = [], 0.0, 0.0
    for part in parts:
        runs = list(planned(part, places.kept))
        missing = [run for run in runs if not done(run, places)]
        waiting, later = undecided(part, places.kept)
        each = [seconds_left(run, pace, places) for run in missing]
        left = sum(each) + later
        total, longest = total + left, max(longest, *each, 0.0)
        state = f"{len(runs) - len(missing)} of {len(runs) + waiting} runs" if missing or waiting else "done"
        rows.append([part.name, part.title, state, duration(left) if missing or waiting else ""])
    text = markdown_table(["Part", "What", "State", "Left"], rows)
    text += f"\n\ntotal remaining: {duration(max(total / jobs, longest))} with {jobs} runs at a time"
    for name in names:
        text += f"\nrunning: {name}, {records.epochs_done(places.runs / name)} epochs done"
    if not names:
        text += "\nnothing is running; `make evidence` resumes"
    return text


def note_running(running: list[Job], places: Places) -> None:
    """Leave a note for --status."""
    write_json(places.home / CURRENT, {"runs": [job.run.name for job in running], "pid": os.getpid()})


def seconds_left(run: Planned, pace: dict[str, float], places: Places) -> float:
    left = max(0, run.epochs - records.epochs_done(places.runs / run.name))
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
