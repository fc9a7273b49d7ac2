"""Our versions of the paper's tables and figures: ``bayesbinn reproduce NAME``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bayesbinn.errors import InvalidInput, nearest
from bayesbinn.paper import frontier
from bayesbinn.paper.evidence import load_queue, planned
from bayesbinn.paper.figure_continual import reproduce_continual
from bayesbinn.paper.figure_curves import reproduce_curves
from bayesbinn.paper.figure_functions import reproduce_functions
from bayesbinn.paper.figure_moons import reproduce_moons
from bayesbinn.paper.figure_posteriors import reproduce_posteriors
from bayesbinn.paper.figure_snelson import reproduce_snelson
from bayesbinn.paper.figure_stream import reproduce_stream
from bayesbinn.paper.gather import Budget
from bayesbinn.paper.page import PAGE, write_page
from bayesbinn.paper.records import RECORD, provenance
from bayesbinn.paper.table import reproduce_table
from bayesbinn.paper.table_schedules import reproduce_schedules
from bayesbinn.paper.tables import TABLES

__all__ = ["NAMES", "reproduce"]

_FIGURES: dict[str, tuple[str, Callable[[str, Budget, Path], Iterator[str]]]] = {
    "figure-functions": ("Sign, tanh and hysteresis: from real parameters to weights.", reproduce_functions),
    "figure-moons": ("Two moons: class probabilities by STE, the mode and the mean.", reproduce_moons),
    "figure-snelson": ("Snelson's regression: mean ± 2 std, mode and STE.", reproduce_snelson),
    "figure-curves": ("Our training curves and the authors'.", reproduce_curves),
    "figure-posteriors": ("Permuted MNIST: the distribution over the weights after each task.", reproduce_posteriors),
    "figure-stream": ("A hundred tasks: the newest, all of them at the end, and the weights.", reproduce_stream),
    "table-schedules": ("MNIST against the length of the schedule, also beyond the paper.", reproduce_schedules),
}

TOY_SEEDS = 3
"""Of the figures on synthetic data, as the repository shows them."""

_COMPARISONS: dict[str, tuple[str, Callable[[str, str | None, Budget, Path], Iterator[str]]]] = {
    "figure-continual": ("Permuted MNIST: accuracy on every task while later ones are learned.", reproduce_continual),
}
"""Figures that accept `--methods`."""

NAMES: dict[str, str] = {name: (make.__doc__ or "").strip() for name, make in TABLES.items()}
NAMES |= {name: title for name, (title, _) in [*_FIGURES.items(), *_COMPARISONS.items()]}
"""What can be reproduced, with a one-line description."""


def reproduce(
    name: str,
    *,
    seeds: int = 1,
    epochs: int | None = None,
    methods: str | None = None,
    width: float | None = None,
    runs: Path | None = None,
    out: Path = Path("results/paper"),
    data_dir: Path | None = None,
    stop_after: int | None = None,
    train: bool = True,
    workers: int = 1,
    scheduler: str | None = None,
    rates: Mapping[str, float] | None = None,
) -> Iterator[str]:
    """Reproduce a table or figure of the paper; yields one line of progress per run.

    Writes NAME.md, NAME.json, NAME.png and NAME.pdf to `out`. Runs are kept in `runs`: finished ones are reused,
    interrupted ones resumed, missing ones run. A cell that cannot be run (because its data are missing) says so, and
    the rest continues.

    Args:
        name: one of `NAMES`; ``"list"``; or ``"all"``, which redraws everything in the repository from the records in
            `runs`, with the budgets in ``evidence.toml``, and writes docs/reproduction.md next to the folder of `out`.
        seeds: seeds per cell, starting at the preset's.
        epochs: epochs per run, with the schedule compressed; None: the paper's.
        methods: comma-separated methods of a table or of figure-continual; None: all of the paper's.
        width: width factor of the networks.
        runs: the folder of the runs. Default: runs/; for ``"all"``, the records next to `out`, results/runs/.
        out: the folder of tables and figures.
        data_dir: the folder of the data sets.
        stop_after: stop every run after this epoch of the unchanged schedule.
        train: whether to run what is missing; otherwise it is omitted.
        workers: the number of missing runs of a table or of figure-curves to run at once.
        scheduler: the address of a Dask scheduler to run them on; the workers need the folder `runs` and the data.
        rates: learning rates that replace those of the presets, by ``PRESET.METHOD``.

    >>> next(iter(reproduce("list")))
    'table-accuracy        Test accuracy of all optimizers on the three image sets.'
    """
    if name == "list":
        return iter([f"{known:21} {title}" for known, title in NAMES.items()])
    if name == "all":
        return _all(train, out.parent / "runs" if runs is None else runs, out)
    runs = Path("runs") if runs is None else runs
    if name not in NAMES:
        raise InvalidInput(f"there is no table or figure {name!r}.{nearest(name, NAMES)} Allowed: {', '.join(NAMES)}")
    if (workers > 1 or scheduler) and name not in (*TABLES, "figure-curves"):
        given = f"--scheduler {scheduler}" if scheduler else f"--workers {workers}"
        raise InvalidInput(f"{given}: {name} trains one run after another; leave it out")
    budget = Budget(seeds, epochs, width, runs, data_dir, stop_after, train, workers, scheduler, rates or {})
    if name in TABLES:
        table = TABLES[name](methods)
        cells = [line.cell for line in table.lines if "lr" not in line.cell.changes]
        _check_rates(budget, {f"{cell.preset}.{cell.method}" for cell in cells})
        return reproduce_table(name, table, budget, out)
    _check_rates(budget, set())
    if name in _COMPARISONS:
        return _COMPARISONS[name][1](name, methods, budget, out)
    if methods is not None:
        raise InvalidInput(f"--methods {methods}: {name} shows fixed methods; leave it out")
    return _FIGURES[name][1](name, budget, out)


def _check_rates(budget: Budget, known: set[str]) -> None:
    for name, rate in budget.rates.items():
        if name not in known:
            offered = f"{nearest(name, known)} Allowed: {', '.join(sorted(known))}" if known else " Leave it out"
            raise InvalidInput(f"--rate {name}={rate:g}: it replaces no learning rate here.{offered}")


def _all(train: bool, runs: Path, out: Path) -> Iterator[str]:
    if train:
        raise InvalidInput("reproduce all only reads records; add --no-train (`make evidence` computes missing ones)")
    if not any(runs.glob(f"*/{RECORD}")):  # everything would be drawn empty
        raise InvalidInput(f"there are no records in {runs}; name their folder with --runs, in a clone results/runs")
    return _drawn_again(runs, out)


def _drawn_again(runs: Path, out: Path) -> Iterator[str]:
    for shown in {each.name: each for part in load_queue().parts for each in part.show}.values():
        if not (out / f"{shown.name}.json").is_file() and not _begun(shown.name, runs):
            yield f"{shown.name}: left out: none of its runs is recorded in {runs}"
            continue
        try:
            yield from reproduce(shown.name, train=False, runs=runs, out=out, **shown.model_dump(exclude={"name"}))
        except InvalidInput as error:
            yield f"{shown.name}: left out: {error}"
    yield from _toy_figures(runs, out)
    benchmarks = out.parent / "benchmarks"
    if (benchmarks / "frontier.json").is_file():
        frontier.write(json.loads((benchmarks / "frontier.json").read_text(encoding="utf-8")), benchmarks)
        yield f"{benchmarks}: frontier.md, frontier.png, posterior-worth.md"
    yield f"{write_page(out.parent, out.parent.parent / PAGE)}: written"


def _begun(name: str, runs: Path) -> bool:
    """Whether a run that this table or figure shows is recorded."""
    parts = [part for part in load_queue().parts if name in {each.name for each in part.show}]
    own = {line.cell.preset for line in TABLES[name](None).lines} if name in TABLES else None
    shown = [run for part in parts for run in planned(part) if own is None or run.arguments[1] in own]
    return any(provenance(runs / run.name) for run in shown)


def _toy_figures(runs: Path, out: Path) -> Iterator[str]:
    """Figures on synthetic data, from their own files: their networks are not kept."""
    for name in ("figure-functions", "figure-moons", "figure-snelson"):
        try:
            yield from reproduce(name, seeds=TOY_SEEDS, train=False, runs=runs, out=out)
        except InvalidInput as error:
            yield f"{name}: left out: {error}; `bayesbinn reproduce {name} --seeds {TOY_SEEDS}` trains its networks"
