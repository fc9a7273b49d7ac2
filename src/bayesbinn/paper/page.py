"""docs/reproduction.md: every table and figure of the paper, its numbers and ours, written from results/ alone.

``bayesbinn reproduce all --no-train`` writes it; a test fails when it is not what this module writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesbinn.files import make_folder, write_whole
from bayesbinn.paper.cost import GPU, GPU_SHARE, cost_of
from bayesbinn.paper.drawing import markdown_table
from bayesbinn.paper.earlier import MARK, NOTE
from bayesbinn.paper.evidence import load_queue, planned
from bayesbinn.paper.figure_curves import in_full
from bayesbinn.paper.frontier import SO_FAR
from bayesbinn.paper.gather import duration
from bayesbinn.paper.published import DATASETS, EPOCHS, SEEDS, STREAM, Value
from bayesbinn.paper.table_schedules import COLUMNS, LENGTHS, settings_text
from bayesbinn.paper.tables import TABLES, Line, Table

PAGE = Path("docs") / "reproduction.md"
NOT_YET = "not computed yet"
NOT_MEASURED = "not measured"
"""In a row that has runs, but not this number."""
NOT_PLANNED = "needs a GPU"
"""In the rows of a table for which `make evidence` has no runs; the page says at its end what they would take."""
FIGURES = {
    "figure-functions": "Figure 1: sign, tanh and hysteresis, from real parameters to weights",
    "figure-snelson": "Figure 2: Snelson's regression",
    "figure-moons": "Figure 3: two moons, class probabilities by STE, the mode and the mean",
    "figure-posteriors": "Figure 4: the distribution over the weights from task to task",
    "figure-continual": "Figure 5: permuted MNIST, accuracy on every task while later ones are learned",
    "figure-curves": "Training curves over the authors' own",
}
"""The paper's figures, and the curves that its authors published with their code."""

Numbers = Mapping[str, Any]


def write_page(results: Path, path: Path) -> Path:
    """Write the page of a folder of results."""
    make_folder(path.parent)
    write_whole(path, page(results).encode())
    return path


def page(results: Path) -> str:
    """The whole page."""
    sections = [
        "# Reproduction\n\n"
        "The paper's tables and figures, its numbers and ours. Written by `bayesbinn reproduce all --no-train` from "
        "the files in `results/`; do not edit. `make evidence` computes what is missing, `make evidence STATUS=1` says "
        "how long it takes. "
        f"A cell without a recorded run says “{NOT_YET}”, or “{NOT_PLANNED}” if two cores would need days for it: see "
        "[what a full run takes](#what-a-full-run-takes). The paper's numbers are means over "
        f"{SEEDS} seeds of {EPOCHS} epochs, unless said otherwise. A schedule shorter than the paper's is its own, "
        "compressed. Wall times are sums over seeds and contain the pauses of a run.",
        *(_table(name, make(None), results) for name, make in TABLES.items()),
        "## Figures",
        *(_figure(name, title, results) for name, title in FIGURES.items()),
        "## Beyond the paper",
        _schedules(results),
        _stream(results),
        _frontier(results),
        _costs(results),
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _read(path: Path) -> Numbers:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def value_text(numbers: Numbers | None) -> str:
    """A mean with its spread, or that there is none.

    >>> value_text({"mean": 98.0, "std": 0.5, "values": [97.5, 98.5]}), value_text(None)
    ('98.00 ± 0.50', 'not computed yet')
    """
    return NOT_YET if not numbers else str(Value(numbers["mean"], numbers["std"]))


# ---- the paper's tables ---------------------------------------------------------------------------


def _table(name: str, table: Table, results: Path) -> str:
    found = _read(results / "paper" / f"{name}.json")
    rows = {tuple(str(row[head]) for head in table.heads): row for row in found.get("rows", [])}
    head = [*table.heads]
    for column in table.columns:
        title = column.capitalize()
        head += [f"{title}: the paper", f"{title}: ours"] if table.compared else [title]
    head += ["Epochs", "Seeds", "Wall time"]
    within_reach = _planned_for(name)
    lines = [
        _line(line, rows.get(line.labels), table, NOT_YET if _runs_of(line) in within_reach else NOT_PLANNED)
        for line in table.lines
    ]
    width = found.get("width", 1.0)
    narrow = f" Ours has {width:g} of the paper's width." if width != 1 else ""
    which = "after the last epoch" if table.select == "last" else "in the first epoch with the best validation accuracy"
    narrow += "".join(f" {note}" for note in found.get("other rates", []))
    source = f"[{name}](../results/paper/{name}.md)" if found else f"`{name}`"
    text = f"## {table.title}\n\n{markdown_table(head, lines)}\n\nAccuracy in percent, {which}.{narrow} From {source}."
    return f"{text}\n\n![{table.title}](../results/paper/{name}.png)" if found else text


def _runs_of(line: Line) -> tuple[str, str]:
    return line.cell.preset, line.cell.method


def _planned_for(name: str) -> set[tuple[str, str]]:
    """Presets and methods that the queue runs for a table."""
    parts = [part for part in load_queue().parts if name in {each.name for each in part.show}]
    return {(run.arguments[1], run.experiment.method.name) for part in parts for run in planned(part)}


def _line(line: Line, row: Numbers | None, table: Table, missing: str) -> list[str]:
    cells = [*line.labels]
    missing = NOT_MEASURED if row and row["seeds"] else missing
    for column in table.columns:
        paper, ours = line.paper[column], row[column]["ours"] if row else None
        cells += ["not given" if paper is None else str(paper)] if table.compared else []
        cells.append(value_text(ours) if ours else missing)
    if row is None or not row["seeds"]:
        return [*cells, "", "", ""]
    last, epochs = min(row["last epochs"]), row["epochs"]
    budget = str(epochs) if last == epochs else f"{last} of {epochs}"
    return [*cells, budget, ", ".join(map(str, row["seeds"])), duration(row["seconds"])]


# ---- figures --------------------------------------------------------------------------------------


def _figure(name: str, title: str, results: Path) -> str:
    found = _read(results / "paper" / f"{name}.json")
    if not found:
        return f"### {title}\n\n{NOT_YET.capitalize()}."
    picture = f"[![{title}](../results/paper/{name}.png)](../results/paper/{name}.md)"
    describe = {"figure-moons": _toy, "figure-snelson": _toy, "figure-continual": _continual, "figure-curves": _curves}
    text = describe[name](found) if name in describe else ""
    return f"### {title}\n\n{picture}\n\n{text}".strip()


def _toy(found: Numbers) -> str:
    seconds = sum(found["seconds"].values())
    seeds = ", ".join(found["seeds"])
    return (
        f"The paper has this figure without numbers. Ours: {found['last epoch']} of {found['epochs']} epochs, seeds "
        f"{seeds}, {duration(seconds)}."
    )


def _continual(found: Numbers) -> str:
    rows = []
    for each in found["variants"].values():
        seeds = _seeds(each)
        for policy, values in each.get("after the last task", {}).items():
            forgetting = value_text(values["Forgetting since learned"])
            rows.append([each["variant"], policy, value_text(values["Mean"]), forgetting, str(each["epochs per task"])])
            rows[-1].append(seeds)
        if not each["seeds"]:
            rows.append([each["variant"], "", NOT_YET, "", "", ""])
    for theirs in found["authors"]:
        variant = f"The authors' code, {'posterior as' if theirs['prior'] else 'without'} prior"
        rows.append([variant, "shared", f"{theirs['mean']:.2f}", "", str(theirs["epochs"]), "1"])
    head = ["Variant", "BatchNorm", "Mean accuracy after 5 tasks", "Forgetting", "Epochs per task", "Seeds"]
    note = f"\n\n{NOTE}" if MARK in str(rows) else ""
    return f"{markdown_table(head, rows)}\n\nThe paper has this figure without numbers.{note}"


def _seeds(each: Numbers) -> str:
    return ", ".join(f"{seed}{MARK if seed in each.get('earlier', []) else ''}" for seed in each["seeds"])


def _curves(found: Numbers) -> str:
    rows = []
    for name, title in DATASETS.items():
        each = found["data"].get(name, {})
        epochs = each.get("test", {}).get("epochs", [])
        if not epochs:
            rows.append([title, "", NOT_YET, "", "", ""])
            continue
        ours = Value.of([curve[-1] for curve in each["test"]["ours"]])
        theirs = Value(each["test"]["authors mean"][-1], each["test"]["authors std"][-1])
        rows.append([title, str(epochs[-1]), str(ours), str(theirs), str(each["schedule"]), _seeds(each)])
    head = ["Data", "Epoch", "Test accuracy: ours", "the authors'", "Schedule", "Seeds"]
    note = f"\n\n{NOTE}" if MARK in str(rows) else ""
    whole = "".join(f"\n\n{sentence}" for sentence in in_full(found["data"]))
    return f"{markdown_table(head, rows)}{note}{whole}{_stand_in(found.get('stand-in'))}"


def _stand_in(found: Numbers | None) -> str:
    if found is None:
        return ""
    test = found["test"]
    theirs = Value(test["authors mean"][-1], test["authors std"][-1])
    return (
        f"\n\nOn {DATASETS[found['data']]}, a schedule of {found['schedule']} epochs (seed {found['seed']}) stands in "
        f"for the {EPOCHS} that have not been run to their end here: {test['ours'][-1]:.2f} % on test data after its "
        f"last epoch, the authors' runs {theirs} % after theirs."
    )


# ---- beyond the paper -----------------------------------------------------------------------------


def _schedules(results: Path) -> str:
    found = _read(results / "paper" / "table-schedules.json")
    rows = []
    for length in LENGTHS:
        row = [str(length)]
        for column in COLUMNS:
            runs = found.get("columns", {}).get(column, {}).get(str(length), [])
            row += [str(Value.of([run["test"] for run in runs])) if runs else NOT_YET]
            row += [", ".join(str(run["seed"]) for run in runs)]
        rows.append(row)
    head = ["Epochs", *(text for title in COLUMNS.values() for text in (title, "Seeds"))]
    sentence = found.get("answer", f"Whether 50 epochs reach the paper's accuracy: {NOT_YET}.")
    if best := found.get("best settings"):
        sentence += f" Best settings: {settings_text(best)}, chosen on validation data at a quarter of the width."
    picture = "[![Schedules](../results/paper/table-schedules.png)](../results/paper/table-schedules.md)"
    link = f"[More](../results/paper/table-schedules.md).\n\n{picture}" if found else ""
    return f"### MNIST against the length of the schedule\n\n{markdown_table(head, rows)}\n\n{sentence} {link}".rstrip()


def _stream(results: Path) -> str:
    found = _read(results / "paper" / "figure-stream.json")
    rows = []
    for each in found.get("variants", {}).values():
        for policy, values in each.get("accuracy", {}).items():
            cells = [value_text(values.get(title)) for title in ("Last 5 tasks", "Older tasks")]
            tasks = str(len(each["when learned"][0]))
            rows.append([each["variant"], policy, *cells, tasks, _seeds(each)])
        if not each["seeds"]:
            rows.append([each["variant"], "", NOT_YET, "", "", ""])
    rows += [[f"{method}, published", "", f"{accuracy:.2f}", "", "100", ""] for method, accuracy in STREAM.items()]
    head = ["Variant", "BatchNorm", "Newest five tasks", "All older tasks", "Tasks", "Seeds"]
    note = f"\n\n{NOTE}" if MARK in str(rows) else ""
    picture = "[![A stream of tasks](../results/paper/figure-stream.png)](../results/paper/figure-stream.md)"
    return f"### A stream of permuted MNIST tasks\n\n{picture}\n\n{markdown_table(head, rows)}{note}"


def _frontier(results: Path) -> str:
    """The two files of the benchmark, which say in words what their numbers say."""
    folder = results / "benchmarks"
    found = _read(folder / "frontier.json")
    title = "### What bytes and microseconds buy on MNIST"
    if not found.get("cells"):
        return f"{title}\n\n{NOT_YET.capitalize()}."
    told = ("- Up to ", "- BayesBiNN, posterior mean", f"- {SO_FAR}")
    sentences = [
        line
        for name in ("frontier.md", "posterior-worth.md")
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
        if line.startswith(told)
    ]
    sentences = list(dict.fromkeys(sentences))  # both say what is missing
    picture = "[![The frontier](../results/benchmarks/frontier.png)](../results/benchmarks/frontier.md)"
    worth = "[Is the posterior worth its samples?](../results/benchmarks/posterior-worth.md)"
    begun = "Among the networks measured so far:\n\n" if any(SO_FAR in each for each in sentences) else ""
    return f"{title}\n\n{picture}\n\n{begun}" + "\n".join(sentences) + f"\n\n{worth}"


# ---- what it takes --------------------------------------------------------------------------------


def _costs(results: Path) -> str:
    curves = _read(results / "paper" / "figure-curves.json").get("data", {})
    sentences = []
    for preset, title in DATASETS.items():
        cost = cost_of(preset)
        each = curves.get(preset, {})
        epochs = len(each.get("test", {}).get("epochs", [])) * len(each.get("seeds", []))
        here = "a time that is not measured yet"
        if epochs:
            here = f"{duration(cost.epochs * each['seconds'] / epochs)} {_where(results, preset, each['seeds'])}"
        flops, moved = f"{cost.flops:.1e}", cost.bytes_moved / 1e12
        sentences.append(
            f"- {title}: one seed of {cost.epochs} epochs takes {flops} floating-point operations and moves at least "
            f"{moved:.0f} TB through the optimizer: {here}, and on paper "
            f"{duration(cost.gpu_seconds)} on {GPU}; a row of Table 2 is {SEEDS} seeds."
        )
    note = (
        f"On paper: the operations at {100 * GPU_SHARE:.0f} % of the GPU's float32 peak, plus the bytes at its full "
        "memory bandwidth. A run here is that of figure-curves, its time per epoch times the epochs; other work on the "
        "same machine slowed some of them."
    )
    return "\n".join(["## What a full run takes", "", *sentences, "", note])


def _where(results: Path, preset: str, seeds: list[int]) -> str:
    """The machine of the recorded runs behind a data set's curves."""
    runs = (results / "runs" / f"{preset}-bayesbinn-e{EPOCHS}-s{seed}" / "record.json" for seed in seeds)
    machines = [_read(run).get("machine") for run in runs]
    named = {f"with {each['threads']} threads of an {each['processor']}" for each in machines if each}
    return " and ".join(sorted(named)).replace("1 threads", "1 thread") or "on the machine of the figure"
