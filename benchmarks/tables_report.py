"""The page that `tables.py` writes: a table of means over splits, and which goals are met."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

Cell = dict[str, Any]
OURS = "ours"
SPLITS = 5

HEADER = """# Tables: binary networks and scikit-learn's models

`python benchmarks/tables.py --out results/benchmarks`: every model with its defaults, one thread, means over random
splits. Ours is `BinaryNetworkClassifier()` or `BinaryNetworkRegressor()` on the raw table; the others stand behind
the usual pipeline. Coverage and size describe prediction sets at 90 %: conformal sets for ours; for the others, the
likeliest classes that together have a probability of 0.9. Bytes are those of the model file or of the pickled
pipeline; µs is the time for one raw row.
"""


def means(cells: list[Cell], table: str, model: str) -> dict[str, float]:
    """The mean of every score over the splits of a table."""
    rows = [cell for cell in cells if cell["table"] == table and cell["model"] == model]
    keys = [key for key, value in rows[0].items() if isinstance(value, (int, float)) and key != "split"] if rows else []
    return {key: mean(cell[key] for cell in rows) for key in keys} | {"splits": len(rows)}


def report(cells: list[Cell], tasks: dict[str, str]) -> str:
    """The page in Markdown."""
    lines = [HEADER]
    for task, score in (("classification", "accuracy"), ("regression", "rmse")):
        lines += [
            f"## {task.capitalize()}",
            "",
            f"| table | model | splits | {'accuracy %' if score == 'accuracy' else 'RMSE'} | NLL | ECE | coverage "
            "| size | bytes | µs a row | fit s |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for table in (name for name, kind in tasks.items() if kind == task):
            models = dict.fromkeys(cell["model"] for cell in cells if cell["table"] == table)
            lines += [_row(table, model, means(cells, table, model), score) for model in models]
        lines.append("")
    names = [name for name, task in tasks.items() if task == "classification"]
    return "\n".join([*lines, "## Goals", "", *_unfinished(cells, tasks), *goals(cells, names, list(tasks))]) + "\n"


def _unfinished(cells: list[Cell], tasks: dict[str, str]) -> list[str]:
    """What the run has not measured yet."""
    splits = {name: len({cell["split"] for cell in cells if cell["table"] == name}) for name in tasks}
    if min(splits.values()) >= SPLITS and any("calibrated" in cell["model"] for cell in cells):
        return []
    done = sum(count > 0 for count in splits.values())
    measured = f"{done} of {len(tasks)} tables, {min(splits.values())} of {SPLITS} splits of each"
    without = "" if any("calibrated" in cell["model"] for cell in cells) else ", without CalibratedClassifierCV"
    return [f"This run is not finished: {measured}{without}.", ""]


def _row(table: str, model: str, found: dict[str, float], score: str) -> str:
    digits = {score: 2 if score == "accuracy" else 4, "nll": 3, "ece": 3, "coverage": 3, "size": 2}
    parts = [f"{found[key]:.{count}f}" if key in found else "-" for key, count in digits.items()]
    end = f"{found['bytes']:,.0f} | {found['microseconds']:,.0f} | {found['seconds']:.1f}"
    return f"| {table} | {model} | {found['splits']} | {' | '.join(parts)} | {end} |"


def goals(cells: list[Cell], classification: list[str], tables: list[str]) -> list[str]:
    """Each goal in a line, with what was measured; tables without all models yet are left out."""
    found = {
        name: {model: means(cells, name, model) for model in (OURS, "MLP", "boosting")}
        for name in tables
        if {OURS, "MLP", "boosting"} <= {cell["model"] for cell in cells if cell["table"] == name}
    }
    classes = [found[name] for name in classification if name in found]
    if not classes:
        return ["- nothing measured yet"]
    accuracy = {model: median(each[model]["accuracy"] for each in classes) for model in (OURS, "MLP")}
    behind = median(each[OURS]["accuracy"] - each["MLP"]["accuracy"] for each in classes)
    better = {model: sum(each[OURS]["nll"] < each[model]["nll"] for each in classes) for model in ("MLP", "boosting")}
    sizes = [each[OURS]["mlp_bytes"] / each[OURS]["bytes"] for each in found.values() if _large(each)]
    small = [each[OURS]["bytes"] for each in found.values() if not _large(each)]
    faster = [each["MLP"]["microseconds"] / each[OURS]["microseconds"] for each in found.values()]
    count = len(classes)
    return [
        _goal(
            accuracy[OURS] >= accuracy["MLP"] - 1 and behind >= -1,
            f"median accuracy within 1 point of MLPClassifier's: {accuracy[OURS]:.2f} % and {accuracy['MLP']:.2f} %, "
            f"median difference {behind:+.2f}",
        ),
        _goal(
            3 * better["MLP"] >= 2 * count,
            f"NLL below the plain MLP's on two thirds of the tables: {better['MLP']} of {count}",
        ),
        _goal(
            2 * better["boosting"] >= count,
            f"NLL below boosting's on half of the tables: {better['boosting']} of {count}",
        ),
        _goal(
            min(sizes, default=10) >= 10,
            "file at least 10 times smaller than the pickle of an MLP with the same hidden units and more than 5,000 "
            f"parameters: {min(sizes, default=0):.1f} to {max(sizes, default=0):.1f} times",
        ),
        _goal(max(small) <= 8192, f"otherwise at most 8 KB: {max(small):,.0f} bytes at most")
        if small
        else "- no table yet whose MLP has 5,000 parameters or fewer, for which at most 8 KB are allowed",
        _goal(
            min(faster) >= 5,
            "one raw row at least 5 times faster than the pipeline with an MLP: "
            f"{min(faster):.0f} to {max(faster):.0f} times",
        ),
    ]


def _large(found: dict[str, dict[str, float]]) -> bool:
    return found[OURS]["mlp_parameters"] > 5000


def _goal(met: bool, text: str) -> str:
    return f"- {'met' if met else 'NOT met'}: {text}"
