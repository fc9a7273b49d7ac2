"""What the commands do between parsing and printing."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesbinn import data as data_sets
from bayesbinn import metrics
from bayesbinn.data.card import DataCard, read_card
from bayesbinn.data.own.given import given_targets
from bayesbinn.errors import InvalidFile, InvalidInput, csv_safe
from bayesbinn.experiments.config import load_experiment
from bayesbinn.files import write_whole
from bayesbinn.models.side_by_side import SideBySide, is_side_by_side
from bayesbinn.packing.sizes import Summary
from bayesbinn.packing.sizes import summary as summarise_model
from bayesbinn.posterior import LogitScale
from bayesbinn.prediction.predicting import Prediction, predict
from bayesbinn.runs.best_epoch import best_epoch as best_epoch
from bayesbinn.runs.build import build_model
from bayesbinn.runs.data import card_of, load_data
from bayesbinn.runs.folder import load_config, load_run
from bayesbinn.runs.report import _best_row
from bayesbinn.runs.scores import MAX_CLASSES, class_scores, classification_scores, regression_scores
from bayesbinn.runs.trained import Trained, load_network
from bayesbinn.train.calibration import Which
from bayesbinn.train.residuals import MIN_ROWS, total_deviation

EVALUATION_BATCH = 1000
DEFAULT_SAMPLES = 10


def evaluate_run(
    folder: Path, samples: int | None, fit_scale: bool, data_dir: Path | None, epoch: Which = "last"
) -> dict[str, Any]:
    """Scores on the test part, for the mode and for the mean; `samples` as for `predict_file`."""
    trained = load_network(folder, epoch, data_dir)
    card, parts = trained.card, trained.parts(data_dir)
    if parts.test is None:
        raise InvalidInput(f"{folder}: {card.name} has no test targets")
    scores: dict[str, Any] = {"run": str(folder), "epoch": trained.epoch, "test examples": len(parts.test)}
    calibration, notes = _calibration(trained, fit_scale, data_dir)
    scores |= {"note": "; ".join(notes)} if notes else {}
    posterior = trained.posterior
    scores |= _described(calibration, card, posterior is not None)
    x, y = parts.test.whole()
    names = {0: "mode" if posterior is not None else "weights"}
    if count := samples_worth_drawing(trained, samples):
        names[count] = f"mean of {count}"
    for count, name in names.items():
        prediction = predicted(trained, x, count, calibration, data_dir)
        if card.task == "regression":
            scores[name] = regression_scores(prediction, y, card.target_std)
            scores[name] |= _coverage(trained, prediction, y, count)
            continue
        scores[name] = classification_scores(prediction, y)
        by_class = class_scores(prediction.probabilities, y, card.classes)
        if "recall" in by_class:
            scores[f"recall ({name})"] = by_class["recall"]
        scores["majority accuracy"] = by_class["majority accuracy"]
    if trained.tasks_learned is None:
        scores |= _best_row(load_run(folder)[1])
    return scores


def samples_worth_drawing(trained: Trained, samples: int | None) -> int:
    """0 without a posterior, or if every sample would be the mode; warns if the user asked for samples.

    Networks side by side are several already, so samples of them are only drawn on request.
    """
    if trained.posterior is None:
        return 0
    if samples is not None:
        trained.posterior.warn_if_saturated(samples)
    usual = 0 if is_side_by_side(trained.model) else DEFAULT_SAMPLES
    return 0 if trained.posterior.saturated else usual if samples is None else samples


def networks_averaged(trained: Trained, samples: int) -> int:
    """How many networks a prediction is the mean of; 0 if it is that of a single one."""
    model = getattr(trained.model, "module", trained.model)
    side_by_side = model.networks if isinstance(model, SideBySide) else 1
    averaged = side_by_side * max(samples, 1)
    return averaged if averaged > 1 else 0


def _coverage(trained: Trained, prediction: Prediction, y: Tensor, samples: int) -> dict[str, float]:
    """The percentage of targets within two standard deviations: 95 if errors are normal and std is correct."""
    std, _ = deviations(trained, prediction, samples)
    if std is None:
        return {}
    errors = (prediction.mean - y).flatten().abs() * trained.card.target_std
    return {"within 2 std": 100 * float((errors <= 2 * std).float().mean())}


def deviations(trained: Trained, prediction: Prediction, samples: int) -> tuple[Tensor | None, Tensor | None]:
    """The standard deviation of predicted quantities and the spread of the networks, both in the targets' unit.

    The first is None if the run has not measured its error, the second if there is only one network.
    """
    drawn = samples if trained.posterior is not None and not trained.posterior.saturated else 0
    several = networks_averaged(trained, drawn)
    spread = prediction.std.flatten() * trained.card.target_std if several else None
    residual = None if trained.residuals is None else trained.residuals.of(trained.posterior, samples)
    if residual is None:
        return None, spread
    return total_deviation(torch.zeros_like(prediction.mean.flatten()) if spread is None else spread, residual), spread


def _calibration(trained: Trained, wanted: bool, data_dir: Path | None) -> tuple[LogitScale, tuple[str, ...]]:
    """The calibration to predict with, and notes about it for the user."""
    return trained.find_calibration(data_dir) if wanted else (LogitScale(), ())


def _described(calibration: LogitScale, card: DataCard, binary: bool) -> dict[str, Any]:
    if calibration == LogitScale():
        return {}
    factors = {"mode": calibration.mode, "mean": calibration.mean}
    found: dict[str, Any] = {"logit scale": factors if binary else {"weights": calibration.mode}}
    if calibration.mode_shift and card.num_classes <= MAX_CLASSES:
        found["logit shift"] = dict(zip(card.classes, calibration.mode_shift, strict=True))
    return found


def predicted(
    trained: Trained, x: Tensor, samples: int, calibration: LogitScale, data_dir: Path | None = None
) -> Prediction:
    """Predict normalized inputs with a run's network."""
    task = trained.card.task
    return predict(
        trained.model,
        trained.posterior,
        x,
        samples=samples,
        task=task,
        batch_size=EVALUATION_BATCH,
        statistics=trained.sample_statistics(samples, data_dir=data_dir),
        calibration=calibration,
    )


@dataclass(frozen=True)
class Predicted:
    """What `predict_file` did."""

    count: int
    epoch: str
    scores: dict[str, float]
    """Empty if the file has no labels."""
    notes: tuple[str, ...]


def predict_file(
    folder: Path,
    inputs: Path,
    out: Path,
    samples: int | None,
    data_dir: Path | None,
    fit_scale: bool = True,
    epoch: Which = "last",
) -> Predicted:
    """Predict every row of a file; the suffix of the output selects its format. Labels in the file are used to score.

    By default there are 10 samples, or none if all of them would be the mode.
    """
    if out.suffix not in (".csv", ".parquet", ".json"):
        raise InvalidInput(f"--out {out}: must end in .csv, .parquet or .json")
    trained = load_network(folder, epoch, data_dir)
    card = trained.card
    about_columns: list[str] = []
    x, names = data_sets.load_inputs(
        inputs,
        card.input_shape,
        features=card.columns,
        encoding=card.table_encoding,
        notes=about_columns,
        label=card.label,
    )
    x = card.normaliser(_as_stored(x, card, inputs))
    given, about_labels = given_targets(inputs, card, names)
    calibration, notes = _calibration(trained, fit_scale, data_dir)
    used = samples_worth_drawing(trained, samples)
    prediction = predicted(trained, x, used, calibration, data_dir)
    columns: dict[str, list[Any]] = {"input": names}
    if card.task == "regression":
        found, about_std = _regression_columns(trained, prediction, used)
        columns |= found
        notes += about_std
    else:
        columns["class"] = [card.classes[index] for index in prediction.classes.tolist()]
        for index, name in enumerate(card.classes):
            columns[f"p({name})"] = prediction.probabilities[:, index].tolist()
        for key in ("entropy", "aleatoric", "mutual_information"):
            columns[key] = getattr(prediction, key).tolist()
    _write_columns(out, columns)
    scores = {} if given is None else _scores_of(prediction, given, card)
    if scores and Path(trained.experiment.data.name).resolve() == inputs.resolve():
        about_labels = (
            *about_labels,
            f"{inputs}: the run learned from most of these rows, so the scores say little about new ones; "
            "`bayesbinn evaluate` scores the test part",
        )
    return Predicted(len(x), trained.epoch, scores, (*notes, *about_columns, *about_labels))


def _regression_columns(
    trained: Trained, prediction: Prediction, samples: int
) -> tuple[dict[str, list[float]], tuple[str, ...]]:
    """The columns of predicted quantities, and why one of them is missing."""
    card, notes = trained.card, tuple[str, ...]()
    columns = {"mean": (prediction.mean.flatten() * card.target_std + card.target_mean).tolist()}
    std, spread = deviations(trained, prediction, samples)
    if std is not None:
        columns["std"] = std.tolist()
    elif samples == 1:
        notes = ("no column std: one sample has no spread; use --samples 0, or 2 or more",)
    else:
        known = f"{trained.folder} has not measured the error of these weights"
        notes = (f"no column std: {known}; a finished run with at least {MIN_ROWS} validation rows does",)
    return columns | ({} if spread is None else {"spread": spread.tolist()}), notes


def _scores_of(prediction: Prediction, targets: Tensor, card: DataCard) -> dict[str, float]:
    if card.task == "regression":
        return {"RMSE": regression_scores(prediction, targets, card.target_std)["RMSE"]}
    p = prediction.probabilities
    return {"accuracy": 100 * metrics.accuracy(p, targets), "NLL": metrics.nll(p, targets)}


def _as_stored(x: Tensor, card: DataCard, path: Path) -> Tensor:
    """Inputs in the type of the training data, which distinguishes pixels from 0 to 255 from other numbers."""
    kind = card.input_dtype
    if kind == torch.uint8 and x.dtype != kind and not bool(((x >= 0) & (x <= 255) & (x == x.round())).all()):
        raise InvalidInput(f"{path}: the network was trained on pixels and needs whole numbers from 0 to 255")
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
    """The same columns with names and text that no spreadsheet reads as formulas."""
    return {
        csv_safe(name): [csv_safe(cell) if isinstance(cell, str) else cell for cell in cells]
        for name, cells in columns.items()
    }


def summarise(source: str, data_dir: Path | None) -> Summary:
    """Summarize the network of a preset, an experiment file or a run."""
    folder = Path(source)
    is_run = (folder / "config.toml").is_file()
    experiment = load_config(folder) if is_run else load_experiment(source)
    card = read_card(folder) if is_run else None
    if card is None:
        card = card_of(experiment, load_data(experiment, data_dir))
    return summarise_model(build_model(experiment, card), card.example())
