"""The results of a run, in a few lines."""

from __future__ import annotations

import json
from math import inf, sqrt
from pathlib import Path
from typing import Any

from bayesbinn.runs.best_epoch import best_epoch as best_epoch
from bayesbinn.runs.folder import load_run
from bayesbinn.runs.stream import load_record


def report(folder: Path) -> dict[str, Any]:
    """A run's last epoch and its first with the best validation accuracy or RMSE; for a stream, its metrics."""
    experiment, rows = load_run(folder)
    if experiment.continual is not None:
        return _report_stream(folder)
    if not rows:
        return {"run": str(folder), "epochs": 0}
    result: dict[str, Any] = {
        "run": str(folder),
        "method": experiment.method.name,
        "epochs": f"{rows[-1]['epoch']} of {experiment.training.epochs}",
        "seconds": sum(row["seconds"] for row in rows),
        "last epoch": _accuracies(rows[-1]),
    }
    # Of networks side by side, the mode is a mean already.
    spread_out = experiment.method.settings.get("certainty") and experiment.model.name != "table_ensemble"
    what = "test, calibrated, mode" if spread_out else "test, calibrated"
    return result | _best_row(rows) | _stored_scores(folder, rows[-1]["epoch"], what)


MEMORIZED = 15.0
"""Points of accuracy between training and validation rows from which on a table counts as memorized."""


def advice_on(folder: Path) -> str:
    """What to try if the network of a table has memorized its rows; empty otherwise."""
    experiment, rows = load_run(folder)
    if not rows or not experiment.model.name.startswith("table_"):
        return ""
    train, validation = (rows[-1].get(f"{part}_accuracy") for part in ("train", "validation"))
    if train is None or validation is None or train - validation < max(MEMORIZED, 2.5 * _error(folder, validation)):
        return ""
    certainty = experiment.method.settings.get("certainty") or 0.0
    remedies = ["--set certainty=10"] if experiment.method.name == "bayesbinn" and certainty > 10 else []
    remedies += ["fewer --epochs"]
    return (
        f"the network has memorized its rows: {train:.1f} % of the training rows are classified correctly, "
        f"{validation:.1f} % of the validation rows; try {' or '.join(remedies)}, or --epoch best in `evaluate`, "
        "`predict` and `pack`"
    )


def _error(folder: Path, accuracy: float) -> float:
    """The standard error of a validation accuracy, in points."""
    try:
        rows = int(json.loads((folder / "data.json").read_text())["validation_rows"])
    except (OSError, ValueError, KeyError):
        return inf
    return sqrt(accuracy * (100 - accuracy) / rows) if rows else inf


def _best_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    best = best_epoch(rows)
    return {} if best is None else {f"best validation (epoch {best['epoch']})": _accuracies(best)}


def _stored_scores(folder: Path, epoch: int, what: str) -> dict[str, Any]:
    """Scores by class on the test part, as the run wrote them after its last epoch."""
    try:
        scores: dict[str, Any] = json.loads((folder / "scores.json").read_text())
        known = scores.pop("epoch") == epoch
        return {f"{key} ({what})" if "majority" not in key else key: scores[key] for key in scores if known}
    except (OSError, ValueError, AttributeError, KeyError):
        return {}  # written again when the run is resumed


def _report_stream(folder: Path) -> dict[str, Any]:
    experiment, record = load_record(folder)
    result: dict[str, Any] = {
        "run": str(folder),
        "method": experiment.method.name,
        "tasks": f"{len(record.finished)} of {len(record.tasks)}",
        "training seconds": sum(line["seconds"] for line in record.epochs),
        "evaluation seconds": sum(line["evaluation_seconds"] for line in record.finished),
    }
    for policy, found in record.summary().items():
        result[f"BatchNorm {policy}"] = {key: value for key, value in found.items() if value is not None}
    return result | record.end


def _accuracies(row: dict[str, Any]) -> dict[str, float]:
    names = {"train_loss": "loss", "train_accuracy": "train", "validation_accuracy": "validation"}
    names |= {"test_accuracy": "test", "test_accuracy_mean": "test (mean)"}
    names |= {"validation_rmse": "validation RMSE", "test_rmse": "test RMSE"}
    return {name: row[key] for key, name in names.items() if row.get(key) is not None}
