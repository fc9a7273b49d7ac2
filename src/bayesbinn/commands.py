"""What the commands do between parsing and printing."""

from __future__ import annotations

import ast
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesbinn import data as data_sets
from bayesbinn import distributed, metrics
from bayesbinn.calibration import calibrate
from bayesbinn.continual import Learner, load_record, open_run
from bayesbinn.errors import InvalidFile, InvalidInput
from bayesbinn.experiments.choose import choose_for_file
from bayesbinn.experiments.config import Experiment, load_experiment, preset_names
from bayesbinn.experiments.schedules import Cosine
from bayesbinn.files import write_whole
from bayesbinn.methods import ranks
from bayesbinn.plain_text import csv_safe
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction import Prediction, predict
from bayesbinn.runs import Run, build_model, load_run, load_trained
from bayesbinn.sizes import Summary
from bayesbinn.sizes import summary as summarise_model

EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Chosen:
    """An experiment to run, where to keep it, and what was decided on the user's behalf."""

    experiment: Experiment
    folder: Path
    notes: tuple[str, ...]


def prepare(
    source: str,
    method: str | None,
    seed: int | None,
    epochs: int | None,
    label: str | None,
    changes: list[str],
    data_dir: Path | None,
) -> Chosen:
    """Turn the arguments of `train` into an experiment."""
    overrides: dict[str, Any] = dict(_parse_change(change) for change in changes)
    if seed is not None:
        overrides["training.seed"] = seed
    if epochs is not None:
        overrides["training.epochs"] = epochs
    notes: tuple[str, ...] = ()
    if source in preset_names() or source.endswith(".toml"):
        if label is not None:
            raise InvalidInput(f"--label is for your own table, and {source} is an experiment; leave it out")
        experiment = load_experiment(source, method=method, overrides=overrides)
        notes = schedule_notes(experiment)
        name = Path(source).stem
    elif Path(source).exists():
        experiment, notes = choose_for_file(source, label, method or "bayesbinn", overrides)
        name = Path(source).stem
    elif Path(source).suffix or len(Path(source).parts) > 1:
        raise InvalidInput(f"{source}: there is no such file or folder; presets: {', '.join(preset_names())}")
    else:
        experiment = load_experiment(source)  # raises with the nearest preset
        name = source
    folder = Path("runs") / f"{name}-{experiment.method.name}-{experiment.training.seed}"
    return Chosen(experiment, folder, notes)


def schedule_notes(experiment: Experiment) -> tuple[str, ...]:
    """What the user should know of a schedule that is not its preset's own, to the letter."""
    schedule = experiment.method.schedule
    if isinstance(schedule, Cosine) and schedule.end == "above_zero":
        return (f"learning rate: {schedule.describe()} (--set method.schedule.end=authors: 0 in the last epoch)",)
    return ()


def _parse_change(change: str) -> tuple[str, Any]:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise InvalidInput(f"--set {change}: it must be key=value, such as --set lr=0.01")
    if text.lower() in ("true", "false"):
        return key, text.lower() == "true"
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return key, text


def open_any(experiment: Experiment, folder: Path, data_dir: Path | None) -> Run | Learner:
    """A run of one task, or of a stream of tasks; both are trained by `train`."""
    world = ranks.world()
    ranks.decided(lambda: distributed.check(experiment, world))
    return (Run.open if experiment.continual is None else open_run)(experiment, folder, data_dir)


def report(folder: Path) -> dict[str, Any]:
    """The last epoch, and the first epoch with the best validation accuracy, of a run; of a stream, its metrics."""
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
    best = best_epoch(rows)
    if best is not None:
        result[f"best validation (epoch {best['epoch']})"] = _accuracies(best)
    return result


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


def best_epoch(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first epoch with the highest validation accuracy, as the paper selects."""
    scored = [row for row in rows if row.get("validation_accuracy") is not None]
    return max(scored, key=lambda row: row["validation_accuracy"]) if scored else None


def _accuracies(row: dict[str, Any]) -> dict[str, float]:
    names = {"train_loss": "loss", "train_accuracy": "train", "validation_accuracy": "validation"}
    names |= {"test_accuracy": "test", "test_accuracy_mean": "test (mean)"}
    return {name: row[key] for key, name in names.items() if row.get(key) is not None}


def evaluate_run(folder: Path, samples: int, fit_scale: bool, data_dir: Path | None) -> dict[str, Any]:
    """Scores on the test part, by the mode and by the mean."""
    experiment, dataset, model, posterior = load_trained(folder, data_dir)
    parts = dataset.split(experiment.data.validation, experiment.training.seed)
    if parts.test is None:
        raise InvalidInput(f"{folder}: {dataset.name} has no test targets")
    scores: dict[str, Any] = {"run": str(folder), "test examples": len(parts.test)}
    if posterior is not None and fit_scale and dataset.task == "classification" and parts.validation is not None:
        posterior = _calibrated(model, posterior, parts.validation, samples)
        scores["logit scale"] = {"mode": posterior.logit_scale.mode, "mean": posterior.logit_scale.mean}
    x, y = parts.test.whole()
    names = {0: "mode" if posterior is not None else "weights"}
    if posterior is not None and samples:
        names[samples] = f"mean of {samples}"
    for count, name in names.items():
        prediction = predict(model, posterior, x, samples=count, task=dataset.task, batch_size=EVALUATION_BATCH)
        if dataset.task == "classification":
            scores[name] = _scores(prediction, y)
        else:
            scores[name] = _errors(prediction, y, dataset.target_std)
    return scores


def _calibrated(
    model: nn.Module, posterior: BernoulliPosterior, validation: data_sets.Part, samples: int
) -> BernoulliPosterior:
    """With the logit scale that suits the validation part: these networks' logits have unit variance."""
    x, y = validation.whole()
    return calibrate(model, posterior, x, y, samples=max(samples, 1), batch_size=EVALUATION_BATCH)


def _scores(prediction: Prediction, targets: Tensor) -> dict[str, float]:
    p = prediction.probabilities
    return {
        "accuracy": 100 * metrics.accuracy(p, targets),
        "NLL": metrics.nll(p, targets),
        "Brier": metrics.brier(p, targets),
        "ECE": metrics.ece(p, targets),
    }


def _errors(prediction: Prediction, targets: Tensor, unit: float) -> dict[str, float]:
    """Of regression: RMSE in the unit of the targets, and the share of their variance that is explained."""
    squares = (prediction.mean.view_as(targets) - targets).square().mean()
    variance = (targets - targets.mean()).square().mean()
    return {"RMSE": float(squares.sqrt()) * unit, "R²": float(1 - squares / variance)}


def predict_file(
    folder: Path, inputs: Path, out: Path, samples: int, data_dir: Path | None, fit_scale: bool = True
) -> int:
    """Predict every row of a file; the output's suffix decides its form."""
    if out.suffix not in (".csv", ".parquet", ".json"):
        raise InvalidInput(f"--out {out}: .csv, .parquet or .json is allowed")
    experiment, dataset, model, posterior = load_trained(folder, data_dir)
    x, names = data_sets.load_inputs(inputs, dataset.input_shape, features=dataset.features)
    x = dataset.normaliser(_as_stored(x, dataset, inputs))
    validation = dataset.split(experiment.data.validation, experiment.training.seed).validation
    if posterior is None:
        samples = 0
    elif fit_scale and validation is not None and dataset.task == "classification":
        posterior = _calibrated(model, posterior, validation, samples)
    prediction = predict(model, posterior, x, samples=samples, task=dataset.task, batch_size=EVALUATION_BATCH)
    columns: dict[str, list[Any]] = {"input": names}
    if dataset.task == "regression":
        scale, shift = dataset.target_std, dataset.target_mean
        columns["mean"] = (prediction.mean.flatten() * scale + shift).tolist()
        columns["std"] = (prediction.std.flatten() * scale).tolist()
    else:
        columns["class"] = [dataset.classes[index] for index in prediction.classes.tolist()]
        for index, name in enumerate(dataset.classes):
            columns[f"p({name})"] = prediction.probabilities[:, index].tolist()
        for key in ("entropy", "aleatoric", "mutual_information"):
            columns[key] = getattr(prediction, key).tolist()
    _write_columns(out, columns)
    return len(x)


def _as_stored(x: Tensor, dataset: data_sets.Dataset, path: Path) -> Tensor:
    """Inputs in the type of the training data, which tells pixels of 0 to 255 from other numbers."""
    kind = dataset.train_inputs.dtype
    if kind == torch.uint8 and x.dtype != kind and not bool(((x >= 0) & (x <= 255) & (x == x.round())).all()):
        raise InvalidInput(f"{path}: the network was trained on pixels: whole numbers from 0 to 255 are needed")
    return x.to(kind)


def _write_columns(out: Path, columns: dict[str, list[Any]]) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"{out}: could not be written ({error.strerror or error})") from None
    content = io.BytesIO()
    if out.suffix == ".json":
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        content.write(json.dumps(rows, indent=1).encode())
    else:
        import pyarrow as pa
        from pyarrow import csv, parquet

        if out.suffix == ".csv":
            csv.write_csv(pa.table(_spreadsheet_safe(columns)), content)
        else:
            parquet.write_table(pa.table(columns), content)
    write_whole(out, content.getbuffer())


def _spreadsheet_safe(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The same columns with names and text that no spreadsheet takes for formulas."""
    return {
        csv_safe(name): [csv_safe(cell) if isinstance(cell, str) else cell for cell in cells]
        for name, cells in columns.items()
    }


def summarise(source: str, data_dir: Path | None) -> Summary:
    """The network of a preset, an experiment's file or a run."""
    folder = Path(source)
    experiment = load_run(folder)[0] if (folder / "config.toml").is_file() else load_experiment(source)
    dataset = data_sets.load(
        experiment.data.name, data_dir=data_dir, label=experiment.data.label, task=experiment.data.task
    )
    model = build_model(experiment, dataset)
    example = dataset.normaliser(dataset.test_inputs[:2])
    return summarise_model(model, example)


def posterior_of(folder: Path) -> BernoulliPosterior:
    """The posterior that a run saved."""
    return BernoulliPosterior.load(folder / "posterior.safetensors")
