"""The commands for many runs: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesbinn.cli.options import Track
from bayesbinn.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

    from bayesbinn.cli.sweep_progress import Board

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Run many experiments at once; see docs/scale.md.")

Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once; default: processors / threads, or all threads of the Dask workers."),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads per run.")]
Scheduler = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler, such as tcp://host:8786; default: this machine.")
]
Out = Annotated[Path | None, typer.Option(help="Folder of the sweep; default sweeps/NAME. A sweep there is resumed.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets, here and on the workers; otherwise as for `bayesbinn train`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]


@app.command()
def run(
    grid: Annotated[Path, typer.Argument(help="A GRID.toml: an experiment or your own data, and lists of values.")],
    workers: Workers = None,
    threads: Threads = 1,
    scheduler: Scheduler = None,
    out: Out = None,
    data_dir: DataDir = None,
    track: Track = None,
) -> None:
    """Run every combination of a grid; finished runs are kept, unfinished ones resume.

    Everything is checked before the first run starts. A failed run does not stop the others; the exit code is then 1.
    The results are in results.parquet and results.csv in the sweep's folder.
    """
    from bayesbinn.cli.console import PlainConsole
    from bayesbinn.cli.sweep_progress import Board
    from bayesbinn.runs.tracking import check_trackers
    from bayesbinn.sweeps.executor import open_executor, run_all
    from bayesbinn.sweeps.grid import load_grid, refuse_others, write_plan
    from bayesbinn.sweeps.standings import standings, write_results
    from bayesbinn.train.progress import stoppable

    trackers = check_trackers(track or ())
    sweep = load_grid(grid)
    folder = out or Path("sweeps") / sweep.name
    refuse_others(sweep, folder)
    write_plan(folder, sweep.planned)
    missing = [name for name, each in standings(sweep.planned, folder).items() if each.state != "finished"]
    console = PlainConsole(stderr=True)
    for note in sweep.notes:
        console.print(printable(note), soft_wrap=True)
    console.print(f"{len(sweep.runs)} runs, {len(sweep.runs) - len(missing)} of them already finished", soft_wrap=True)
    board = Board(console, folder, [each for each in sweep.planned if each.name in missing])
    with _reported(console, board):
        try:
            if missing:
                jobs = sweep.jobs(folder, missing, threads, data_dir, trackers)
                with board, stoppable() as should_stop, open_executor(workers, threads, scheduler) as (executor, slots):
                    most = slots if workers else None
                    for ended in run_all(executor, jobs, slots=most, on_tick=board.tick, should_stop=should_stop):
                        board.tell(ended)
        finally:
            paths = write_results(sweep.planned, folder)
        typer.echo(printable(f"results of {len(sweep.runs)} runs in {', '.join(map(str, paths))}"))


@contextmanager
def _reported(console: Console, board: Board) -> Iterator[None]:
    """Report Ctrl-C, SIGTERM and failed runs in the last lines and in the exit code."""
    from bayesbinn.sweeps.executor import Interrupted

    try:
        yield
    except Interrupted as stopped:
        board.report_failures()
        console.print(str(stopped))
        raise typer.Exit(stopped.exit_code) from None
    board.report_failures()
    if board.failed:
        raise typer.Exit(1)


@app.command()
def status(
    sweep: Annotated[Path, typer.Argument(help="A GRID.toml, or the folder of a sweep or search.")],
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show the state of every run of a sweep, even while it runs elsewhere."""
    from bayesbinn.cli.console import PlainConsole
    from bayesbinn.cli.sweep_progress import show_status
    from bayesbinn.sweeps.grid import load_grid, load_plan
    from bayesbinn.sweeps.standings import result_rows

    if sweep.suffix == ".toml":
        planned, folder = load_grid(sweep).planned, out or Path("sweeps") / sweep.stem
    else:
        planned, folder = load_plan(sweep), sweep
    if as_json:
        typer.echo(json.dumps(result_rows(planned, folder), indent=2))
    else:
        show_status(PlainConsole(), planned, folder)


@app.command()
def search(
    file: Annotated[Path, typer.Argument(help="A SEARCH.toml: an experiment or your own data, and ranges.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials in total, including earlier sessions.")] = 20,
    workers: Workers = None,
    threads: Threads = 1,
    scheduler: Scheduler = None,
    out: Out = None,
    data_dir: DataDir = None,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Search settings for the highest validation accuracy (regression: the lowest RMSE) with Optuna.

    The same command resumes. The choice never uses test data. Writes best.toml, which `bayesbinn train`
    accepts.
    """
    from bayesbinn.cli.console import PlainConsole
    from bayesbinn.cli.sweep_progress import Board
    from bayesbinn.runs.tracking import check_trackers
    from bayesbinn.sweeps.executor import open_executor
    from bayesbinn.sweeps.search import Trials, load_search, refuse_sweep
    from bayesbinn.sweeps.standings import write_results
    from bayesbinn.train.progress import stoppable

    trackers = check_trackers(track or ())
    wanted = load_search(file)
    folder = out or Path("sweeps") / wanted.name
    refuse_sweep(folder)
    console = PlainConsole(stderr=True)
    for note in wanted.notes:
        console.print(printable(note), soft_wrap=True)
    found = Trials(wanted, folder, trials, lambda text: console.print(text, soft_wrap=True))
    board = Board(console, folder, found.runs)
    with _reported(console, board):
        try:
            with board, stoppable() as should_stop, open_executor(workers, threads, scheduler) as (executor, slots):
                for ended in found.run(executor, slots, threads, data_dir, board.tick, should_stop, trackers):
                    board.tell(ended)
        finally:
            try:
                best = found.write_best()
                if found.runs:
                    write_results(found.runs, folder)
            finally:
                found.close()
        typer.echo(json.dumps(best, indent=2) if as_json else _lines(best))


def _lines(facts: dict[str, object]) -> str:
    return "\n".join(printable(f"{key:20} {value}") for key, value in facts.items()) or "no trial finished"
