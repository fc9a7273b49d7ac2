"""Tables with the command line's defaults, beside scikit-learn's MLPClassifier with its own.

    python benchmarks/tables_command.py [--out DIR] [--quick] [--only NAME ...]

Every split is a file: the rows in a random order, of which `bayesbinn train FILE --label y` keeps a fifth for testing.
Ours is trained and calibrated as that command and `bayesbinn predict` do it, without any further setting. The
MLPClassifier stands behind a StandardScaler and gets all training rows; ours keeps a tenth of them for validation.
Both see the same test rows. Finished cells are kept in DIR/tables.json, so that a stopped run goes on where it was.

A row holds if ours is within 1 point of accuracy or within 2 standard errors of the paired difference, and its NLL
is at most 0.03 higher; unequal classes are judged by balanced accuracy. --quick takes 2 splits of the small tables and
1 of the large ones, and writes nothing unless --out says where.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification, make_hastie_10_2
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesbinn import data
from bayesbinn.runs.evaluate import predict_file
from bayesbinn.runs.open import open_any, prepare

Array = npt.NDArray[Any]
Scores = dict[str, float]

POINTS, NLL_MARGIN, SMALL = 1.0, 0.03, 2000


@dataclass(frozen=True)
class Table:
    """A table by name; `unequal` ones are judged by balanced accuracy."""

    title: str
    make: Callable[[], tuple[Array, Array]]
    unequal: bool = False


def rare_class() -> tuple[Array, Array]:
    """99 rows of one class for 1 of the other."""
    x, y = make_classification(10_000, 10, n_informative=6, weights=[0.99], flip_y=0, class_sep=1.5, random_state=0)
    return x, y


TABLES = {
    "wine": Table("wine", lambda: load_wine(return_X_y=True)),
    "breast-cancer": Table("breast cancer", lambda: load_breast_cancer(return_X_y=True)),
    "digits": Table("digits, 64 columns", lambda: load_digits(return_X_y=True)),
    "hastie": Table("hastie, 12,000 rows", lambda: make_hastie_10_2(12_000, random_state=0)),
    "classification": Table(
        "make_classification, 20,000 rows, 20 columns, 4 classes",
        lambda: make_classification(20_000, 20, n_informative=10, n_classes=4, random_state=0),
    ),
    "rare-class": Table("99:1, 10,000 rows, balanced accuracy", rare_class, unequal=True),
}


def write_split(table: Table, split: int, folder: Path) -> Path:
    """The table as a file, its rows in the order of this split."""
    x, y = table.make()
    order = np.random.default_rng(split).permutation(len(y))
    names = np.unique(y)
    path = folder / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(x.shape[1])), "y"])
        for row in order:
            writer.writerow([*map(repr, x[row].tolist()), f"class {np.searchsorted(names, y[row])}"])
    return path


def score(probabilities: Array, targets: Array) -> Scores:
    classes = probabilities.argmax(1)
    likely = np.clip(probabilities[np.arange(len(targets)), targets], 1e-12, 1)
    return {
        "accuracy": 100 * float((classes == targets).mean()),
        "balanced": 100 * float(balanced_accuracy_score(targets, classes)),
        "nll": float(-np.log(likely).mean()),
    }


def ours(path: Path, dataset: data.Dataset, folder: Path, changes: list[str]) -> tuple[Scores, str]:
    """What `bayesbinn train` and `bayesbinn predict` give for the test rows, and the settings that were chosen."""
    chosen = prepare(str(path), None, None, None, "y", changes, None)
    run = open_any(chosen.experiment, folder / "run", None)
    run.train()
    inputs, out = folder / "test.csv", folder / "predictions.json"
    with inputs.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(dataset.features)
        writer.writerows(dataset.test_inputs.tolist())
    predict_file(folder / "run", inputs, out, 0, None)
    rows = json.loads(out.read_text())
    probabilities = np.array([[row[f"p({name})"] for name in dataset.classes] for row in rows])
    assert dataset.test_targets is not None
    return score(probabilities, dataset.test_targets.numpy()), settings_of(chosen.experiment.model_dump())


def settings_of(experiment: dict[str, Any]) -> str:
    """What was chosen, as text: a cell measured with other settings is measured again."""
    return json.dumps({key: experiment[key] for key in ("model", "training", "method")}, sort_keys=True)


def theirs(dataset: data.Dataset, split: int) -> Scores:
    classifier = make_pipeline(StandardScaler(), MLPClassifier(random_state=split))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 epochs are their default
        classifier.fit(dataset.train_inputs.numpy(), dataset.train_targets.numpy())
    assert dataset.test_targets is not None
    return score(classifier.predict_proba(dataset.test_inputs.numpy()), dataset.test_targets.numpy())


def measure(name: str, split: int, known: dict[str, Any] | None, changes: list[str]) -> dict[str, Any]:
    """A cell: both on one split. What is known of it is kept if the settings are still those."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = write_split(TABLES[name], split, folder)
        if known is not None:
            chosen = prepare(str(path), None, None, None, "y", changes, None)
            if known["settings"] == settings_of(chosen.experiment.model_dump()):
                return known
        dataset = data.load(path, label="y")
        started = time.perf_counter()
        scores, settings = ours(path, dataset, folder, changes)
        seconds = time.perf_counter() - started
        reference = known["theirs"] if known is not None else theirs(dataset, split)
    return {"ours": scores, "theirs": reference, "seconds": seconds, "settings": settings}


@dataclass(frozen=True)
class Row:
    """The splits of one table, compared pair by pair."""

    title: str
    splits: int
    ours: float
    theirs: float
    error: float
    """The standard error of the mean difference."""
    ours_nll: float
    theirs_nll: float
    seconds: float

    @property
    def holds(self) -> bool:
        behind = self.theirs - self.ours
        return behind <= max(POINTS, 2 * self.error) and self.ours_nll - self.theirs_nll <= NLL_MARGIN


def compare(table: Table, cells: list[dict[str, Any]]) -> Row:
    key = "balanced" if table.unequal else "accuracy"
    mine, reference = ([cell[side][key] for cell in cells] for side in ("ours", "theirs"))
    differences = [a - b for a, b in zip(mine, reference, strict=True)]
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    nll = [mean(cell[side]["nll"] for cell in cells) for side in ("ours", "theirs")]
    seconds = mean(cell["seconds"] for cell in cells)
    return Row(table.title, len(cells), mean(mine), mean(reference), error, *nll, seconds)


def report(rows: list[Row], changes: list[str]) -> str:
    command = " ".join(["bayesbinn train FILE --label y", *(f"--set {change}" for change in changes)])
    lines = [
        "# Tables with the command line's defaults",
        "",
        f"`python benchmarks/tables_command.py`, {platform.processor() or platform.machine()}, torch "
        f"{torch.__version__}, one thread. BayesBiNN as `{command}` chooses it, calibrated on its "
        "validation rows; "
        "scikit-learn's MLPClassifier with its defaults behind a StandardScaler, on the same random splits. "
        f"A row holds if ours is at most {POINTS:g} point or 2 standard errors of the paired difference lower, and its "
        f"NLL at most {NLL_MARGIN:g} higher.",
        "",
        "| table | splits | ours % | MLPClassifier % | difference ± standard error | NLL | theirs | s a run | holds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {row.title} | {row.splits} | {row.ours:.2f} | {row.theirs:.2f} "
        f"| {row.ours - row.theirs:+.2f} ± {row.error:.2f} | {row.ours_nll:.3f} | {row.theirs_nll:.3f} "
        f"| {row.seconds:.1f} | {'yes' if row.holds else 'no'} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for tables.md and tables.json; default results/benchmarks")
    parser.add_argument("--quick", action="store_true", help="few splits, nothing written unless --out is given")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `bayesbinn train`")
    options = parser.parse_args()
    out = options.out or (None if options.quick else Path("results/benchmarks"))
    torch.set_num_threads(1)
    store = None if out is None else out / "tables.json"
    cells: dict[str, Any] = json.loads(store.read_text()) if store is not None and store.is_file() else {}
    for name in options.only:
        small = len(TABLES[name].make()[1]) < SMALL
        splits = (2 if small else 1) if options.quick else (20 if small else 5)
        for split in range(splits):
            key = f"{name}/{split}"
            cells[key] = cell = measure(name, split, cells.get(key), options.set)
            a, b = cell["ours"], cell["theirs"]
            print(
                f"{key:20s} ours {a['accuracy']:6.2f} {a['balanced']:6.2f} {a['nll']:.3f}   "
                f"MLPClassifier {b['accuracy']:6.2f} {b['balanced']:6.2f} {b['nll']:.3f}   {cell['seconds']:.1f} s",
                file=sys.stderr,
                flush=True,
            )
            if store is not None:
                store.parent.mkdir(parents=True, exist_ok=True)
                store.write_text(json.dumps(cells, indent=1) + "\n")
    measured = {name: [cell for key, cell in cells.items() if key.startswith(f"{name}/")] for name in TABLES}
    rows = [compare(TABLES[name], found) for name, found in measured.items() if found]
    text = report(rows, options.set)
    print(text)
    if out is not None:
        (out / "tables.md").write_text(text)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
