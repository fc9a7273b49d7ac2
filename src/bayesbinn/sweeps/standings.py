"""The state of the runs of a sweep, and their results in one table."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesbinn.errors import BayesbinnError, InvalidFile
from bayesbinn.files import write_whole
from bayesbinn.runs.evaluate import best_epoch
from bayesbinn.sweeps.executor import ERROR
from bayesbinn.sweeps.grid import Planned
from bayesbinn.train.lock import NAME as LOCK
from bayesbinn.train.lock import seems_owned
from bayesbinn.train.rows import read_rows

METRICS = ("epoch", "train_loss", "train_accuracy", "validation_accuracy", "test_accuracy", "test_accuracy_mean")
OF_REGRESSION = ("validation_rmse", "test_rmse")


@dataclass(frozen=True)
class Standing:
    """The state of a run, as read from its folder."""

    state: str
    """waiting, running, unfinished, failed, damaged or finished."""
    rows: tuple[dict[str, Any], ...] = ()
    reason: str = ""

    @property
    def seconds(self) -> float:
        return sum(float(row["seconds"]) for row in self.rows)

    @property
    def last(self) -> Mapping[str, Any]:
        return self.rows[-1] if self.rows else {}

    @property
    def best(self) -> Mapping[str, Any]:
        """The first epoch with the best validation accuracy or RMSE; without validation data, the last epoch."""
        return best_epoch(list(self.rows)) or self.last


def standing_of(planned: Planned, folder: Path) -> Standing:
    """Read a run's state from its folder. A run has finished if its last epoch is there and no one holds its lock."""
    damage, rows = "", tuple[dict[str, Any], ...]()
    try:
        rows = tuple(read_rows(folder / "metrics.jsonl"))
    except InvalidFile as unreadable:
        damage = str(unreadable)
    if seems_owned(folder):
        return Standing("running", rows)
    if damage:
        return Standing("damaged", reason=damage)
    if not (folder / LOCK).exists() and _complete(planned, folder, rows):
        return Standing("finished", rows)
    failure = folder / ERROR
    if failure.is_file():
        return Standing("failed", rows, failure.read_text(encoding="utf-8").strip())
    return Standing("unfinished" if rows or (folder / "checkpoint.pt").exists() else "waiting", rows)


def _complete(planned: Planned, folder: Path, rows: tuple[dict[str, Any], ...]) -> bool:
    if not planned.stream:
        return bool(rows) and rows[-1]["epoch"] >= planned.epochs
    from bayesbinn.runs.stream import load_record

    try:
        record = load_record(folder)[1]
    except BayesbinnError:
        return False
    return len(record.finished) == len(record.tasks)


def standings(planned: Iterable[Planned], folder: Path) -> dict[str, Standing]:
    """The state of all runs, by name."""
    return {each.name: standing_of(each, folder / each.name) for each in planned}


def counted(found: Mapping[str, Standing]) -> str:
    """The number of runs in each state, in words."""
    counts = Counter(each.state for each in found.values())
    order = ("finished", "running", "unfinished", "failed", "damaged", "waiting")
    return ", ".join(f"{counts[state]} {state}" for state in order if counts[state])


# ---- one row per run ------------------------------------------------------------------------------


def result_rows(planned: Iterable[Planned], folder: Path) -> list[dict[str, Any]]:
    """The varied settings and the results of each run, finished or not."""
    rows = []
    for each in planned:
        standing = standing_of(each, folder / each.name)
        row: dict[str, Any] = {"run": each.name, "state": standing.state, "method": each.method, "seed": each.seed}
        row |= {key: _plain(value) for key, value in each.varied.items()}
        if each.stream:
            row |= _of_stream(folder / each.name)
        else:
            for part, epoch in (("last", standing.last), ("best", standing.best)):
                row |= {f"{part}_{key}": epoch.get(key) for key in METRICS}
                row |= {f"{part}_{key}": epoch[key] for key in OF_REGRESSION if key in epoch}
        row |= {"seconds": standing.seconds, "folder": str(folder / each.name), "error": standing.reason or None}
        rows.append(row)
    return rows


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value, sort_keys=True)


def _of_stream(folder: Path) -> dict[str, Any]:
    """The forgetting metrics for each BatchNorm policy."""
    from bayesbinn.runs.stream import load_record

    try:
        summary = load_record(folder)[1].summary()
    except BayesbinnError:
        return {}
    return {f"{policy}_{key}": value for policy, found in summary.items() for key, value in found.items()}


def write_results(planned: Iterable[Planned], folder: Path) -> list[Path]:
    """Write results.parquet and results.csv: one row per run, each run once."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    rows = result_rows(planned, folder)
    names = list(dict.fromkeys(key for row in rows for key in row))
    table = pa.table({name: _column([row.get(name) for row in rows]) for name in names})
    paths = [folder / "results.parquet", folder / "results.csv"]
    for path, write in zip(paths, (parquet.write_table, csv.write_csv), strict=True):
        content = io.BytesIO()
        write(table, content)
        write_whole(path, content.getbuffer())
    return paths


def _column(values: list[Any]) -> list[Any]:
    """A column of one type: if any value is a word, all are words."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values] if float in kinds else values
    return values if len(kinds) <= 1 else [None if value is None else str(value) for value in values]
