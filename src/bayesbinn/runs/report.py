"""The results of a run, in a few lines."""

from __future__ import annotations

import json
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
    return result | _best_row(rows) | _stored_scores(folder, rows[-1]["epoch"])


def _best_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    best = best_epoch(rows)
    return {} if best is None else {f"best validation (epoch {best['epoch']})": _accuracies(best)}


def _stored_scores(folder: Path, epoch: int) -> dict[str, Any]:
    """Scores by class on the test part, as the run wrote them after its last epoch."""
    try:
        scores: dict[str, Any] = json.loads((folder / "scores.json").read_text())
        known = scores.pop("epoch") == epoch
        return {f"{key} (test, calibrated)" if "majority" not in key else key: scores[key] for key in scores if known}
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
