"""From rows to fitted networks: the split into parts, the encoding, training, calibration and conformal scores.

Everything here is a function of rows in canonical form and of a seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesbinn.data.own.encoding import learn_encoding
from bayesbinn.data.own.kinds import refuse_slips
from bayesbinn.errors import BayesbinnWarning, InvalidInput
from bayesbinn.experiments.choose import TableChoice, choose_for_table, table_settings
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.encoding import TableEncoding
from bayesbinn.modelfile.graph import Task
from bayesbinn.modelfile.sections import Section
from bayesbinn.packing.side_by_side import file_of
from bayesbinn.prediction.logit_fit import FEWEST_ROWS, LogitFit, fit_logits
from bayesbinn.runtime import unfamiliarity
from bayesbinn.sklearn.canonical import Floats, Parts, Rows, concatenated, split
from bayesbinn.sklearn.sets import conformal_section
from bayesbinn.sklearn.training import FOLDS, Budget, Sample, Trainer, train

CALIBRATION_RULE = "scale and shifts of the logits"
ROWS_TO_CALIBRATE = 200
"""If the calibration part had fewer, all rows calibrate, each with a network that did not learn from it."""
_FEW_DIGITS = 1e-4
"""If a quantity's deviation is this share of its mean, float32 keeps three digits of it."""


Weigh = Callable[[Rows], Floats | None]
"""From training rows to the weight of each class; None: all the same."""
OnEpoch = Callable[[int, int, float], None]
"""Called with the epoch, the number of epochs and the loss."""


def unweighted(rows: Rows) -> None:
    """All classes count the same."""


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
    """The shares of rows for validation, calibration and conformal prediction."""
    threads: int
    seed: int
    cross_fit: bool = True
    """Whether calibration may use all rows, each with a network that did not learn from it."""


@dataclass(frozen=True)
class Goal:
    """What is learned: classes, or a quantity that is standardized by `mean` and `std`."""

    outputs: int
    """The number of classes; 0 for a quantity."""
    weight_of_class: Floats | None = None
    mean: float = 0.0
    std: float = 1.0

    @property
    def task(self) -> Task:
        """The name of the task in model files."""
        return "classification" if self.outputs else "regression"

    def sample(self, encoding: TableEncoding, rows: Rows, fold: NDArray[np.int64] | None = None) -> Sample:
        """Encoded rows with their training weights."""
        y = rows.targets if self.outputs else (rows.targets - self.mean) / self.std
        return Sample.of(encoding.encode(rows.columns), y, self.weights(rows), fold)

    def weights(self, rows: Rows) -> Floats:
        """Weights of rows times those of their classes."""
        if self.weight_of_class is None:
            return rows.weights
        weights: Floats = rows.weights * self.weight_of_class[rows.targets]
        return weights


@dataclass
class Fitted:
    """A trained model: the file that predicts, and the trainer that a warm start continues with."""

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
    varies = bool((rows.targets != rows.targets[0]).any())  # rounding may give equal numbers a deviation above 0
    std = float(np.sqrt(share @ (rows.targets - mean) ** 2)) if varies else 0.0
    if 0 < std < _FEW_DIGITS * abs(mean):
        warnings.warn(
            f"y varies little compared with its size (mean {mean:g}, standard deviation {std:g}), and model files "
            "hold float32: subtract its mean to keep its precision",
            BayesbinnWarning,
            stacklevel=2,
        )
    constant = 1e-6 * max(abs(mean), 1e-6)  # so small that networks that do not learn to answer 0 do no harm
    return Goal(0, mean=mean, std=std if varies else constant)


def fit_rows(
    rows: Rows,
    plan: Plan,
    classes: int,
    weigh: Weigh = unweighted,
    before: Fitted | None = None,
    on_epoch: OnEpoch = lambda epoch, epochs, loss: None,
) -> Fitted:
    """Fit networks; with `before` (a warm start), continue to train those."""
    refuse_slips(rows.columns, rows.weights)
    rng = np.random.default_rng(plan.seed)
    cross = classes > 0 and before is None and _cross_fits(plan, rows)
    parts = split(rows, {**plan.shares, "calibration": 0.0} if cross else plan.shares, rng, stratify=classes > 0)
    return fit_parts(parts, plan, classes, weigh, before, on_epoch, rng if cross else None)


def fit_parts(
    parts: Parts,
    plan: Plan,
    classes: int,
    weigh: Weigh = unweighted,
    before: Fitted | None = None,
    on_epoch: OnEpoch = lambda epoch, epochs, loss: None,
    folds: np.random.Generator | None = None,
) -> Fitted:
    """The same for rows that are already split. Conformal rows affect only the file's conformal section.

    With `folds`, a generator that draws them, extra networks leave out one fold of the training rows each, and the rows
    that a network left out calibrate.
    """
    weight_of_class = weigh(parts.training)
    goal = Goal(classes, weight_of_class) if classes else quantity_goal(parts.training)
    if before is not None and before.goal.outputs == classes:
        encoding, goal = before.encoding, replace(before.goal, weight_of_class=weight_of_class)
    else:
        encoding = learned_encoding(parts)
    training = goal.sample(encoding, *((parts.training,) if folds is None else _folded(parts.training, folds)))
    choice = chosen_for(plan, len(training), encoding)
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


def _cross_fits(plan: Plan, rows: Rows) -> bool:
    """Whether the calibration part would be too small, but all rows together are enough."""
    share = plan.shares["calibration"]
    return plan.cross_fit and share > 0 and len(rows) >= FEWEST_ROWS and share * len(rows) < ROWS_TO_CALIBRATE


def _folded(rows: Rows, rng: np.random.Generator) -> tuple[Rows, NDArray[np.int64]]:
    """Split rows into four equal folds; returns the rows fold by fold, and the fold of each."""
    quarter = dict.fromkeys(("validation", "calibration", "conformal"), 1 / FOLDS)
    parts = split(rows, quarter, rng, stratify=True)
    folds = (parts.training, parts.validation, parts.calibration, parts.conformal)
    everything = reduce(concatenated, folds)
    return everything, np.repeat(np.arange(FOLDS), [len(each) for each in folds])


def learned_encoding(parts: Parts) -> TableEncoding:
    """Learn the encoding from the training rows; if validation or calibration rows do not fit it, from all of these.

    A column may hold numbers in all training rows and a word in one of the others; then all of them decide its kind.
    Conformal rows have no influence, so that they are as new to the model as any future row. Mistakes were rejected
    before the rows were split (`refuse_slips`), so that chance does not decide about them.
    """
    encoding = learn_encoding(parts.training.columns, parts.training.weights, refuse=False)
    held_out = [part for part in (parts.validation, parts.calibration) if len(part)]
    try:
        for part in held_out:
            encoding.encode(part.columns)
    except InvalidInput:
        everything = parts.training
        for part in held_out:
            everything = concatenated(everything, part)
        return learn_encoding(everything.columns, everything.weights, refuse=False)
    return encoding


def chosen_for(plan: Plan, rows: int, encoding: TableEncoding) -> TableChoice:
    """What suits the data's size, except where the user asked for something else."""
    chosen = choose_for_table(rows, encoding.width, len(encoding.columns))
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
    asked = plan.settings or {}
    settings = {**table_settings(plan.method, len(training), steps, goal.task, asked), **asked}
    return Trainer.new(
        sizes,
        choice.networks,
        choice.copies,
        plan.method,
        settings,
        training.effective_size(),
        plan.seed,
        0 if training.fold is None else FOLDS,
    )


# ---- after training ------------------------------------------------------------------------------------


def finished(trainer: Trainer, training: Sample, parts: Parts, encoding: TableEncoding, goal: Goal) -> ModelFile:
    """The networks as a model file, calibrated, with scores for prediction sets and statistics of the codes."""
    trainer.settle(training)
    held_out, outputs = _for_calibration(trainer, training, parts, encoding, goal)
    networks = trainer.network.first(trainer.kept)
    affine = networks.affine()
    rows = parts.calibration if training.fold is None else parts.training
    numbers: dict[str, Any] = {"rows": 0.0 if held_out is None else float(rows.weights.sum())}
    scale, residual = 1.0, None
    if goal.outputs:
        fit = (
            LogitFit(1.0)
            if outputs is None
            else fit_logits(outputs, _targets(held_out), _weights(held_out), centre=1.0)
        )
        scale = fit.scale
        numbers |= {"scale": scale, "shift": fit.shift}
        affine[-1] = _with_shift(*affine[-1], fit.shift, trainer.kept)
    else:
        residual = _residual(trainer, training, held_out, outputs) * goal.std
        last, shift = affine[-1]
        affine[-1] = last * goal.std, shift * goal.std + goal.mean
    file = file_of(networks, affine, goal.task)
    graph = replace(file.graph, logit_scale=float(scale))
    file = ModelFile(graph, file.tensors, residual=residual, encoding=encoding)
    file.sections["calibration"] = Section(CALIBRATION_RULE if goal.outputs else "residual", numbers)
    file.sections["conformal"] = conformal_section(file, encoding, parts.conformal)
    weights = training.weights.numpy().astype(np.float64)
    file.sections["unfamiliarity"] = unfamiliarity.learn(training.x.numpy(), weights)
    return file


def _for_calibration(
    trainer: Trainer, training: Sample, parts: Parts, encoding: TableEncoding, goal: Goal
) -> tuple[Sample | None, Tensor | None]:
    """Rows, and outputs of networks that did not learn from them; None if there are none."""
    if training.fold is not None:
        return training, trainer.outputs_for_new_rows(training)
    if not len(parts.calibration):
        return None, None
    held_out = goal.sample(encoding, parts.calibration)
    return held_out, trainer.outputs(held_out)


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
    held_out: Sample | None,
    outputs: Tensor | None,
) -> float:
    """The standard deviation of what the networks' mean leaves unexplained, on held-out rows where there are any."""
    sample = training if held_out is None else held_out
    found = trainer.outputs(training) if outputs is None else outputs
    errors = (found.mean(dim=0).squeeze(1) - sample.y).double()
    spread = found.squeeze(2).double().var(dim=0, correction=1) if len(found) > 1 else torch.zeros_like(errors)
    weights = sample.weights.double() / float(sample.weights.sum())
    # What the networks' disagreement already explains is not counted twice.
    rest = float(weights @ (errors.square() - spread))
    return float(np.sqrt(max(rest, 1e-6 * float(weights @ errors.square()), 1e-12)))
