"""Fill in a table: our runs next to the paper's numbers, as Markdown, JSON and a chart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bayesbinn.experiments.config import load_experiment
from bayesbinn.paper import records
from bayesbinn.paper.drawing import (
    BLACK,
    GRAY,
    machine,
    machine_rows,
    markdown_table,
    new_figure,
    save_figure,
    save_text,
    written,
)
from bayesbinn.paper.evidence import load_queue
from bayesbinn.paper.gather import Budget, Cell, Outcome, duration, outcome_of, train_ahead
from bayesbinn.paper.published import EPOCHS, SEEDS, Value
from bayesbinn.paper.tables import Line, Table

WALL_TIME = (
    "Wall times are sums over seeds, for training and evaluation without writing checkpoints; a reused run keeps "
    "the times of the machine that ran it."
)


@dataclass(frozen=True)
class Filled:
    """A row of the table with our values by column."""

    line: Line
    outcome: Outcome
    ours: dict[str, list[float]]
    """One value per seed; empty if the runs have none."""


def reproduce_table(name: str, table: Table, budget: Budget, out: Path) -> Iterator[str]:
    """Fill in a table and write it; yields one line per run and one per cell that could not be run."""
    yield from train_ahead([line.cell for line in table.lines], budget)
    outcomes: dict[str, Outcome] = {}
    filled = []
    for line in table.lines:
        key = _key(line.cell)
        if key not in outcomes:
            outcomes[key] = yield from outcome_of(line.cell, budget)
        outcome = outcomes[key]
        if outcome.reason and not outcome.runs:
            yield f"{', '.join(line.labels)}: not run: {outcome.reason}"
        filled.append(Filled(line, outcome, _values(line, outcome, table)))
    paths = save_text(out, name, to_markdown(table, filled, budget), to_numbers(name, table, filled, budget))
    paths += draw(name, table, filled, out)
    yield written(paths)


def _key(cell: Cell) -> str:
    return repr((cell.preset, cell.method, sorted(cell.changes.items())))


def _values(line: Line, outcome: Outcome, table: Table) -> dict[str, list[float]]:
    found = {}
    for column in table.columns:
        values = [line.read(run, column, table.select) for run in outcome.runs]
        found[column] = [value for value in values if value is not None]
    return found


# ---- Markdown and JSON ----------------------------------------------------------------------------


def to_markdown(table: Table, filled: list[Filled], budget: Budget) -> str:
    """The table, including budget, wall time and machine, with its notes below."""
    head = [*table.heads]
    for column in table.columns:
        head += [f"{column.capitalize()}, ours", "paper"] if table.compared else [column.capitalize()]
    head += [*(["Saturated"] if table.saturation else []), "Epochs", "Seeds", "Wall time"]
    rows = [_row(table, each) for each in filled]
    rows += machine_rows(len(head), _machine(filled))
    paper = f"The paper's numbers are means over {SEEDS} seeds"
    paper += f" of {EPOCHS} epochs." if table.select == "best" else ", except for LR-net's."
    steps = cliffs(filled) if table.saturation else []
    notes = [*table.notes, *steps, *other_rates(table, budget), *([paper] if table.compared else []), WALL_TIME]
    listed = "\n".join(f"- {note}" for note in notes)
    return f"# {table.title}\n\n{markdown_table(head, rows)}\n\n{listed}\n"


def other_rates(table: Table, budget: Budget) -> list[str]:
    """Which rows have another learning rate than the paper's."""
    queue = {key: rate for part in load_queue().parts for each in part.show for key, rate in each.rates.items()}
    found = {}
    for line in table.lines:
        own = f"{line.cell.preset}.{line.cell.method}"
        if own in budget.rates and "lr" not in line.cell.changes:
            usual = load_experiment(line.cell.preset, method=line.cell.method).method.settings["lr"]
            chosen = ", chosen on validation data at a quarter of the width (table-rates)"
            why = chosen if queue.get(own) == budget.rates[own] else ""
            found[", ".join(line.labels)] = f"learning rate {budget.rates[own]:g} instead of {usual:g}{why}"
    return [f"{name}: {text}." for name, text in found.items()]


def cliffs(filled: list[Filled]) -> list[str]:
    """Where test accuracy falls along a grid, ours and the paper's; the rows go from the worse end to the better."""
    ours = [(each.line.labels[-1], Value.of(each.ours["test"]).mean) for each in filled if each.ours["test"]]
    paper = [(each.line.labels[-1], value.mean) for each in filled if (value := each.line.paper["test"])]
    return [f"{who}: {_cliff(values)}" for who, values in (("Ours", ours), ("The paper", paper)) if len(values) > 2]


def _cliff(values: list[tuple[str, float]]) -> str:
    """
    >>> _cliff([("1e-3", 51.0), ("1e-4", 83.0), ("1e-5", 97.5), ("1e-6", 98.0)])
    'more than 1 point below the best at 1e-3, 1e-4; the largest step is from 83.00 at 1e-4 to 51.00 at 1e-3.'
    """
    best = max(value for _, value in values)
    low = [label for label, value in values if value < best - 1]
    (here, least), (there, most) = max(pairwise(values), key=lambda pair: pair[1][1] - pair[0][1])
    where = f"more than 1 point below the best at {', '.join(low)}" if low else "within 1 point of the best everywhere"
    return f"{where}; the largest step is from {most:.2f} at {there} to {least:.2f} at {here}."


def _row(table: Table, each: Filled) -> list[str]:
    cells = [*each.line.labels]
    reason = each.outcome.reason
    for index, column in enumerate(table.columns):
        values, paper = each.ours[column], each.line.paper[column]
        if values:
            ours = str(Value.of(values))
        elif each.outcome.runs:
            ours = "not measured"
        else:
            ours = f"not run: {reason}" if index == 0 else ""
        cells += [ours, "not given" if paper is None else str(paper)] if table.compared else [ours]
    runs = each.outcome.runs
    if table.saturation:
        cells.append(_saturated(each))
    if not runs:
        return [*cells, "", "", ""]
    seeds = ", ".join(str(run.seed) for run in runs) + (f" (then: {reason})" if reason else "")
    return [*cells, _epochs(each), seeds, duration(sum(run.seconds for run in runs))]


def _saturated(each: Filled) -> str:
    shares = [facts["saturated"] for run in each.outcome.runs if (facts := records.facts_of(run.folder))]
    return f"{100 * sum(shares) / len(shares):.1f} %" if shares else ""


def _epochs(each: Filled) -> str:
    run = each.outcome.runs[0]
    reached = min(other.last()["epoch"] for other in each.outcome.runs)
    return str(run.epochs) if reached == run.epochs else f"{reached} of {run.epochs}"


def to_numbers(name: str, table: Table, filled: list[Filled], budget: Budget) -> dict[str, Any]:
    """Everything behind the table, as numbers."""
    rows = []
    for each in filled:
        runs = each.outcome.runs
        row: dict[str, Any] = dict(zip(table.heads, each.line.labels, strict=True))
        for column in table.columns:
            values, paper = each.ours[column], each.line.paper[column]
            row[column] = {
                "ours": {**asdict(Value.of(values)), "values": values} if values else None,
                "paper": None if paper is None else asdict(paper),
            }
        row["seeds"] = [run.seed for run in runs]
        row["epochs"] = runs[0].epochs if runs else None
        row["selected epochs"] = [(run.best() if table.select == "best" else run.last())["epoch"] for run in runs]
        row["last epochs"] = [run.last()["epoch"] for run in runs]
        row["seconds"] = sum(run.seconds for run in runs)
        row["not run"] = each.outcome.reason
        row["runs"] = [_origin(run.folder) for run in runs]
        rows.append(row)
    return {
        "name": name,
        "title": table.title,
        "width": budget.width or 1.0,
        "stopped after": budget.stop_after,
        "other rates": other_rates(table, budget),
        "machine": _machine(filled),
        "rows": rows,
    }


def _machine(filled: list[Filled]) -> dict[str, str]:
    return machine(records.machines(run.folder for each in filled for run in each.outcome.runs))


def _origin(folder: Path) -> dict[str, Any]:
    """Where a value comes from, as far as recorded."""
    origin = records.provenance(folder)
    return {"run": folder.name, **({} if origin is None else asdict(origin))}


# ---- chart ----------------------------------------------------------------------------------------


def draw(name: str, table: Table, filled: list[Filled], out: Path) -> list[Path]:
    """Accuracy, ours next to the paper's: one panel per data set, or one for a grid."""
    compared = any(each.line.paper[table.charted] for each in filled)
    grouped = len(table.heads) > 1
    panels: dict[str, list[Filled]] = {}
    for each in filled:
        panels.setdefault(each.line.labels[0] if grouped else "MNIST", []).append(each)
    tallest = max(map(len, panels.values()))
    size = (0.9 + 2.1 * max(len(panels), 1.6), 0.9 + 0.27 * tallest)
    with new_figure(1, len(panels), size=size, sharex=False if compared else "all") as (figure, axes):
        for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
            _panel(axis, lines, table.charted, apart=0.15 if compared else 0.0)
            axis.set_title(title)
            axis.set_xlabel(f"{table.charted} accuracy (%)")
        axes[0, 0].set_ylabel(table.heads[-1])
        if compared:
            handles, labels = axes[0, 0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=2)
        return save_figure(figure, out, name)


def _panel(axis: Any, lines: list[Filled], column: str, apart: float) -> None:
    """Ours lies `apart` below the line of its label, the paper's above."""
    places = range(len(lines))
    axis.set_yticks(places, [_tick(each, column) for each in lines])
    axis.set_ylim(len(lines) - 0.4, -0.6)
    axis.grid(axis="x", linewidth=0.4, color="#dddddd")
    axis.set_axisbelow(True)
    paper = [(place, each.line.paper[column]) for place, each in zip(places, lines, strict=True)]
    ours = [
        (place, Value.of(each.ours[column])) for place, each in zip(places, lines, strict=True) if each.ours[column]
    ]
    _points(axis, [(p - apart, v) for p, v in paper if v is not None], "paper", "o", GRAY, "white")
    _points(axis, [(p + apart, v) for p, v in ours], "ours", "D", BLACK, BLACK)


def _tick(each: Filled, column: str) -> str:
    label = each.line.labels[-1]
    if each.ours[column]:
        return label
    return f"{label}\n({'not measured' if each.outcome.runs else 'not run'})"


def _points(axis: Any, points: list[tuple[float, Value]], label: str, marker: str, line: str, face: str) -> None:
    axis.errorbar(
        [value.mean for _, value in points],
        [place for place, _ in points],
        xerr=[value.std or 0.0 for _, value in points],
        fmt=marker,
        color=line,
        markerfacecolor=face,
        markersize=4,
        elinewidth=0.9,
        capsize=2,
        label=label,
    )
