"""From rows to fitted networks: the split into parts, the encoding, training, calibration and what sets are made of.

Everything here is a function of rows in canonical form and of a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbinn.data.own.encoding import learn_encoding
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments.choose import TableChoice, choose_for_table, method_settings
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.graph import Task
from bayesbinn.modelfile.sections import Section
from bayesbinn.prediction.logit_fit import LogitFit, fit_logits
from bayesbinn.runtime import unfamiliarity
from bayesbinn.runtime.conformal import class_scores
from bayesbinn.runtime.model import Model
from bayesbinn.sklearn.canonical import Floats, Parts, Rows, concatenated, split
from bayesbinn.sklearn.training import Budget, Sample, Trainer, train

CONFORMAL_RULE = "split conformal"
CALIBRATION_RULE = "scale and shifts of the logits"
MAX_SCORES = 1000
"""Scores that a file keeps: more would hardly change a threshold."""


@dataclass(frozen=True)
class Plan:
    """What a user asked for; None leaves the choice to the data's size."""

    method: str
    settings: dict[str, Any] | None
    hidden: tuple[int, ...] | None
    networks: int | None
    epochs: int | None
    batch_size: int | None
    patience: int | None
    shares: dict[str, float]
    """Of the rows for validation, calibration and conformal prediction."""
    threads: int
    seed: int


@dataclass(frozen=True)
class Goal:
    """What is learned: classes, or a quantity that is standardised by `mean` and `std`."""

    outputs: int
    """Classes; 0 is a quantity."""
    weight_of_class: Floats | None = None
    mean: float = 0.0
    std: float = 1.0

    @property
    def task(self) -> Task:
        """As model files call it."""
        return "classification" if self.outputs else "regression"

    def sample(self, encoding: TableEncoding, rows: Rows) -> Sample:
        """Encoded rows with the weights that count in training."""
        y = rows.targets if self.outputs else (rows.targets - self.mean) / self.std
        return Sample.of(encoding.encode(rows.columns), y, self.weights(rows))

    def weights(self, rows: Rows) -> Floats:
        """Weights of rows times those of their classes."""
        if self.weight_of_class is None:
            return rows.weights
        weights: Floats = rows.weights * self.weight_of_class[rows.targets]
        return weights


@dataclass
class Fitted:
    """A trained model: the file that predicts, and the trainer that a warm start goes on with."""

    file: ModelFile
    encoding: TableEncoding
    goal: Goal
    choice: TableChoice
    trainer: Trainer
    epochs: int


def quantity_goal(rows: Rows) -> Goal:
    """The weighted mean and standard deviation of a quantity, as the unit to learn it in."""
    share = rows.weights / rows.weights.sum()
    mean = float(share @ rows.targets)
    std = float(np.sqrt(share @ (rows.targets - mean) ** 2))
    return Goal(0, mean=mean, std=std if std > 0 else 1.0)


def fit_rows(
    rows: Rows,
    plan: Plan,
    classes: int,
    weight_of_class: Floats | None = None,
    before: Fitted | None = None,
    on_epoch: Callable[[int, int, float], None] = lambda epoch, epochs, loss: None,
) -> Fitted:
    """Fit networks; with `before`, a warm start, go on training those."""
    rng = np.random.default_rng(plan.seed)
    parts = split(rows, plan.shares, rng, stratify=classes > 0)
    goal = Goal(classes, weight_of_class) if classes else quantity_goal(parts.training)
    encoding = learned_encoding(parts)
    if before is not None and before.goal.outputs == classes:
        encoding, goal = before.encoding, replace(before.goal, weight_of_class=weight_of_class)
    training = goal.sample(encoding, parts.training)
    choice = chosen_for(plan, len(parts.training), encoding.width)
    trainer = started(plan, choice, encoding.width, goal, training, before)
    budget = Budget(choice.epochs, choice.batch_size, plan.patience)
    epochs = train(
        trainer,
        training,
        goal.sample(encoding, parts.validation) if len(parts.validation) else training.rows(torch.arange(0)),
        budget,
        lambda epoch, loss: on_epoch(epoch, choice.epochs, loss),
    )
    file = finished(trainer, training, parts, encoding, goal)
    return Fitted(file, encoding, goal, choice, trainer, epochs)


def learned_encoding(parts: Parts) -> TableEncoding:
    """The encoding of the training rows, if the held-out rows fit it.

    A column may hold numbers in all training rows and a word in one of the others. Then all rows say what it holds.
    """
    encoding = learn_encoding(parts.training.columns, parts.training.weights)
    held_out = [part for part in (parts.validation, parts.calibration, parts.conformal) if len(part)]
    try:
        for part in held_out:
            encoding.encode(part.columns)
    except InvalidInput:
        everything = parts.training
        for part in held_out:
            everything = concatenated(everything, part)
        return learn_encoding(everything.columns, everything.weights)
    return encoding


def chosen_for(plan: Plan, rows: int, width: int) -> TableChoice:
    """What suits the data's size, where the user did not ask for anything else."""
    chosen = choose_for_table(rows, width)
    asked = {name: getattr(plan, name) for name in ("hidden", "networks", "epochs", "batch_size")}
    return replace(chosen, **{name: value for name, value in asked.items() if value is not None})


def started(
    plan: Plan, choice: TableChoice, width: int, goal: Goal, training: Sample, before: Fitted | None
) -> Trainer:
    """New networks, or those of `before` if they have the same shape and method."""
    sizes = (width, *choice.hidden, goal.outputs or 1)
    if before is not None and before.trainer.network.sizes == sizes and before.trainer.method == plan.method:
        return before.trainer
    steps = choice.epochs * -(-len(training) // choice.batch_size)
    settings = {**method_settings(plan.method, steps), **(plan.settings or {})}
    return Trainer.new(
        sizes, choice.networks, choice.copies, plan.method, settings, training.effective_size(), plan.seed
    )


# ---- after training ------------------------------------------------------------------------------------


def finished(trainer: Trainer, training: Sample, parts: Parts, encoding: TableEncoding, goal: Goal) -> ModelFile:
    """The networks as a model file, calibrated, with scores for prediction sets and statistics of the codes."""
    folded = trainer.folded(training)
    held_out = goal.sample(encoding, parts.calibration) if len(parts.calibration) else None
    outputs = None if held_out is None else trainer.outputs(held_out, folded)
    numbers: dict[str, Any] = {"rows": float(parts.calibration.weights.sum())}
    scale, residual = 1.0, None
    if goal.outputs:
        fit = (
            LogitFit(1.0)
            if outputs is None
            else fit_logits(outputs, _targets(held_out), _weights(held_out), centre=1.0)
        )
        scale = fit.scale
        numbers |= {"scale": scale, "shift": fit.shift}
        folded[-1] = _with_shift(*folded[-1], fit.shift, trainer.network.networks)
    else:
        residual = _residual(trainer, training, folded, held_out, outputs) * goal.std
        last, shift = folded[-1]
        folded[-1] = last * goal.std, shift * goal.std + goal.mean
    file = trainer.network.packed(folded, goal.task)
    graph = replace(file.graph, logit_scale=float(scale))
    file = ModelFile(graph, file.tensors, residual=residual, encoding=encoding)
    file.sections["calibration"] = Section(CALIBRATION_RULE if goal.outputs else "residual", numbers)
    conformal = encoding.encode(parts.conformal.columns) if len(parts.conformal) else training.x.numpy()[:0]
    file.sections["conformal"] = conformal_section(file, conformal, parts.conformal)
    weights = training.weights.numpy().astype(np.float64)
    file.sections["unfamiliarity"] = unfamiliarity.learn(training.x.numpy(), weights, conformal)
    return file


def _targets(sample: Sample | None) -> Tensor:
    assert sample is not None
    return sample.y


def _weights(sample: Sample | None) -> Tensor | None:
    assert sample is not None
    return None if sample.equal else sample.weights


def _with_shift(scale: Tensor, shift: Tensor, added: tuple[float, ...], networks: int) -> tuple[Tensor, Tensor]:
    """The last layer with the calibration's shifts, the same for every network."""
    return (scale, shift + torch.tensor(added).repeat(networks)) if added else (scale, shift)


def _residual(
    trainer: Trainer,
    training: Sample,
    folded: list[tuple[Tensor, Tensor]],
    held_out: Sample | None,
    outputs: Tensor | None,
) -> float:
    """The standard deviation of what the networks' mean leaves unexplained, on held-out rows where there are any."""
    sample = training if held_out is None else held_out
    found = trainer.outputs(training, folded) if outputs is None else outputs
    errors = (found.mean(dim=0).squeeze(1) - sample.y).double()
    spread = found.squeeze(2).double().var(dim=0, correction=1) if len(found) > 1 else torch.zeros_like(errors)
    weights = sample.weights.double() / float(sample.weights.sum())
    # What the networks' disagreement explains already is not counted twice.
    rest = float(weights @ (errors.square() - spread))
    return float(np.sqrt(max(rest, 1e-6 * float(weights @ errors.square()), 1e-12)))


def conformal_section(file: ModelFile, codes: NDArray[np.float32], rows: Rows) -> Section:
    """Ascending scores of rows that served nothing else, and how often each counts."""
    scores, counts = np.zeros(0), np.zeros(0)
    if len(rows):
        model = Model(file, threads=1)
        if file.graph.task == "classification":
            scores = class_scores(model.predict_proba(codes))[np.arange(len(rows)), rows.targets]
        else:
            mean, std = mean_and_std(model, codes)
            scores = np.abs(rows.targets - mean) / std
        counts = rows.weights * (rows.weights.sum() / (rows.weights**2).sum())
        if bool((rows.weights == np.rint(rows.weights)).all()):
            counts = rows.weights  # whole numbers say how often a row was there
        order = np.argsort(scores, kind="stable")
        scores, counts = scores[order], counts[order]
    tensors = {"scores": scores.astype(np.float32), "counts": counts.astype(np.float32)}
    return Section(CONFORMAL_RULE, {}, tensors)


def mean_and_std(model: Model, codes: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Of a quantity: the networks' mean, and the deviation of their answers and of what they leave unexplained."""
    found = model.regression(codes)
    mean, spread = found.mean[:, 0].astype(np.float64), found.std[:, 0].astype(np.float64)
    return mean, np.sqrt(spread**2 + (model.residual or 0.0) ** 2)
