"""Many runs on the screen: a live table in a terminal, a line per ended run elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from bayesbinn.sweeps.executor import LOG, Ended
from bayesbinn.sweeps.grid import Planned
from bayesbinn.sweeps.standings import Standing, counted, standing_of, standings

REFRESH = 1.0
_FIRST = ("running", "failed", "damaged", "unfinished", "waiting", "finished")
_MEASURES = {
    "validation_accuracy": "validation {:.2f} %",
    "test_accuracy": "test {:.2f} %",
    "validation_rmse": "validation RMSE {:.4g}",
    "test_rmse": "test RMSE {:.4g}",
}


class Board:
    """Shows runs in progress; `runs` may grow."""

    def __init__(self, console: Console, folder: Path, runs: list[Planned]) -> None:
        self.console, self.folder, self.runs = console, folder, runs
        self.failed: list[Ended] = []
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._finished: dict[str, Standing] = {}
        self._drawn = 0.0
        self._told = 0

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self) -> None:
        """Redraw the table once a second."""
        if self._live is None or time.monotonic() - self._drawn < REFRESH:
            return
        self._drawn = time.monotonic()
        found = {}
        for each in self.runs:
            standing = self._finished.get(each.name) or standing_of(each, self.folder / each.name)
            if standing.state == "finished":
                self._finished[each.name] = standing
            found[each.name] = standing
        self._live.update(table_of(self.runs, found, self.console.height - 6), refresh=True)

    def tell(self, ended: Ended) -> None:
        """Count a run that has ended; print a line for it if there is no table."""
        self._told += 1
        if ended.state == "failed":
            self.failed.append(ended)
        if self._live is None:
            planned = next(each for each in self.runs if each.name == ended.name)
            standing = standing_of(planned, self.folder / ended.name)
            text = ended.reason if ended.state == "failed" else summary_of(planned, standing)
            self.console.print(f"{self._told}/{len(self.runs)}  {ended.name}  {ended.state}  {text}", soft_wrap=True)

    def report_failures(self) -> None:
        """Print which runs failed, why, and where their logs are."""
        for ended in self.failed:
            log = self.folder / ended.name / LOG
            self.console.print(f"failed: {ended.name}: {ended.reason}; see {log}", soft_wrap=True)


def summary_of(planned: Planned, standing: Standing) -> str:
    """Epoch, result and time of a run in words."""
    return f"epoch {_epoch(planned, standing)}  {_result(standing)}  {standing.seconds:.1f} s"


def _epoch(planned: Planned, standing: Standing) -> str:
    task = f"task {standing.last['task']}, " if "task" in standing.last else ""
    return f"{task}{standing.last.get('epoch', 0)}/{planned.epochs}"


def _result(standing: Standing) -> str:
    last = standing.last
    parts = [form.format(last[key]) for key, form in _MEASURES.items() if last.get(key) is not None]
    if not parts and "train_loss" in last:
        parts = [f"loss {last['train_loss']:.4f}"]
    return "  ".join(parts)


def table_of(runs: list[Planned], found: dict[str, Standing], height: int = 10_000) -> Table:
    """All runs, those in progress first; runs beyond `height` are only counted."""
    table = Table(box=None, title=counted(found), title_justify="left", title_style="")
    for head in ("run", "state", "epoch", "result", "time"):
        table.add_column(head, justify="right" if head == "time" else "left", overflow="fold")
    ordered = sorted(runs, key=lambda each: _FIRST.index(found[each.name].state)) if height < len(runs) else runs
    for each in ordered[: max(1, height)]:
        standing = found[each.name]
        result = standing.reason or _result(standing)
        cells = (each.name, standing.state, _epoch(each, standing), result, f"{standing.seconds:.1f} s")
        table.add_row(*cells)
    return table


def show_status(console: Console, runs: list[Planned], folder: Path) -> None:
    """Print the whole table once."""
    console.print(table_of(runs, standings(runs, folder)))
