"""A trained network from a run's folder, to evaluate, predict with or pack.

The data are not needed, unless a run with a certainty lacks BatchNorm statistics of the weights that predict.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesbinn.data import Dataset, Part, Parts
from bayesbinn.data.card import FILE_NAME as CARD
from bayesbinn.data.card import DataCard, known_card
from bayesbinn.errors import BayesbinnError, InvalidInput
from bayesbinn.experiments.config import Experiment
from bayesbinn.posterior import BernoulliPosterior, LogitScale
from bayesbinn.prediction.batchnorm import BatchNormStatistics
from bayesbinn.runs.best_epoch import BestNetwork, best_epoch
from bayesbinn.runs.build import build_model, make_optimizers
from bayesbinn.runs.data import card_of, load_data
from bayesbinn.runs.folder import load_config
from bayesbinn.runs.stream import stream_for
from bayesbinn.train import calibration as run_calibration
from bayesbinn.train import residuals as run_residuals
from bayesbinn.train import statistics
from bayesbinn.train.calibration import SAMPLES, Which
from bayesbinn.train.checkpoints import read_checkpoint, resuming
from bayesbinn.train.folder import RunFolder


@dataclass(frozen=True)
class Trained:
    """A network with its weights, and what the run knows about its data."""

    folder: Path
    experiment: Experiment
    card: DataCard
    """For a stream, the card of the task learned last."""
    model: nn.Module
    posterior: BernoulliPosterior | None
    """Not calibrated; None for full precision."""
    calibration: LogitScale | None
    """What the run has stored for these weights; None if nothing."""
    epoch: str
    """Which epoch's network this is, in words."""
    tasks_learned: int | None = None
    """Only for a stream."""
    residuals: run_residuals.Residuals | None = None
    """For regression, the errors of these weights; None if the run has not measured them."""
    statistics: BatchNormStatistics | None = None
    """BatchNorm statistics of the posterior's first samples, if the run has stored them."""

    def load_data(self, data_dir: Path | None = None) -> Dataset:
        """The data of the run (for a stream, of the task learned last); raises if they have changed."""
        if self.tasks_learned is None:
            dataset = load_data(self.experiment, data_dir)
            self.card.refuse_other(card_of(self.experiment, dataset), self.folder)
            return dataset
        dataset = stream_for(self.experiment, data_dir)[self.tasks_learned - 1]
        self.card.refuse_other(card_of(self.experiment, dataset), self.folder)
        return dataset

    def parts(self, data_dir: Path | None = None) -> Parts:
        """Its data, split as in training."""
        return self.load_data(data_dir).split(self.experiment.data.validation, self.experiment.split_seed)

    def find_calibration(self, data_dir: Path | None = None) -> tuple[LogitScale, tuple[str, ...]]:
        """The calibration to predict with, and notes about it for the user.

        Runs that were interrupted or come from older versions have not stored one; then the data are needed.
        """
        if self.calibration is not None:
            return self.calibration, ()
        if self.card.task != "classification" or self.card.validation_rows == 0:
            return run_calibration.NONE, ()
        validation = self.parts(data_dir).validation
        assert validation is not None
        note = f"{self.folder} has no calibration for these weights; fitted it on the data. Resume the run to store it"
        of_samples = self.sample_statistics(SAMPLES, data_dir=data_dir)
        return run_calibration.fitted(self.model, self.posterior, validation, statistics=of_samples), (note,)

    @property
    def certainty(self) -> float | None:
        """The experiment's, if it has one."""
        found: float | None = self.experiment.method.settings.get("certainty")
        return found

    @property
    def has_spread_samples(self) -> bool:
        """Whether samples of the posterior need BatchNorm statistics of their own."""
        if self.posterior is None or self.tasks_learned is not None:
            return False
        return statistics.needed(self.model, self.certainty) and not self.posterior.saturated

    def sample_statistics(
        self, samples: int, seed: int = 0, data_dir: Path | None = None
    ) -> BatchNormStatistics | None:
        """BatchNorm statistics of each sample to predict with; None if all samples share the model's.

        Those that the run has not stored are taken from its training data.
        """
        stored, posterior = self.statistics, self.posterior
        if posterior is None or samples == 0 or not self.has_spread_samples:
            return None
        if stored is not None and samples <= stored.samples and seed == stored.seed:
            return stored
        have, remedy = "has stored no BatchNorm statistics of these samples", f"resuming it stores {SAMPLES} of seed 0"
        if stored is not None:
            have, remedy = f"has BatchNorm statistics for {stored.samples} samples of seed {stored.seed}", ""
        part = self._training_part(f"{have}; {samples} samples of seed {seed} need", remedy, data_dir)
        return statistics.of_samples(self.model, posterior, part, samples, seed)

    def settled(self, data_dir: Path | None) -> Trained:
        """With BatchNorm statistics for the mode, if the run was stopped within an epoch, before it estimated them."""
        if statistics.needed(self.model, self.certainty):
            why, remedy = "was stopped within an epoch; its BatchNorm needs", "resume it to the end of an epoch"
            statistics.settle(self.model, self._training_part(why, remedy, data_dir))
        return self

    def _training_part(self, why: str, remedy: str, data_dir: Path | None) -> Part:
        try:
            return self.parts(data_dir).train
        except BayesbinnError as error:
            instead = f" ({remedy})" if remedy else ""
            raise InvalidInput(f"{self.folder} {why} the training data{instead}: {error}") from None


def load_network(
    folder: Path, which: Which = "last", data_dir: Path | None = None, *, to_predict: bool = True
) -> Trained:
    """The network of a run, after its last epoch or after the one with the best validation accuracy.

    Two kinds of runs need the data for this: those from older versions, which stored nothing about their data, and
    those with a certainty that were stopped within an epoch, unless the network is not meant `to_predict`.
    """
    experiment = load_config(folder)
    path = folder / "checkpoint.pt"
    state = read_checkpoint(path)
    if experiment.continual is not None:
        return _learned(folder, experiment, state, which, data_dir)
    with resuming(path):
        rows: list[dict[str, Any]] = [] if state is None else state["rows"]
    if state is None or not rows:
        raise InvalidInput(f"{folder}: no epoch is finished yet; train first")
    known = known_card(folder, state)
    if known is not None and not (folder / CARD).exists():
        # A folder that is read-only, or that another process writes to, can still be used to predict.
        with suppress(BayesbinnError, OSError), RunFolder.locked(folder, patient=False) as writable:
            writable.keep(CARD, known.to_json().encode())
    card = known or card_of(experiment, load_data(experiment, data_dir))
    best = _best(folder, state, rows) if which == "best" else None
    model, posterior = _restored(path, experiment, card, state)
    if best is not None:
        with resuming(path):
            model.load_state_dict(best.model)
            posterior = best.posterior
    number = rows[-1]["epoch"] if best is None else best.epoch
    epoch = f"{which}, {number} of {experiment.training.epochs}"
    if best is None and state["totals"]["batches"]:
        epoch += f" and {state['totals']['batches']} batches"
        unfinished = Trained(folder, experiment, card, model, posterior, None, epoch)
        return unfinished.settled(data_dir) if to_predict else unfinished
    of_samples = statistics.stored(folder, which, posterior)
    trained = Trained(folder, experiment, card, model, posterior, None, epoch, statistics=of_samples)
    if of_samples is None and trained.has_spread_samples:
        return trained  # what older versions stored was measured with the mode's statistics
    return replace(
        trained,
        calibration=run_calibration.stored(folder, which, model, posterior),
        residuals=run_residuals.stored(folder, which, model, posterior),
    )


def _best(folder: Path, state: dict[str, Any], rows: list[dict[str, Any]]) -> BestNetwork:
    row, found = best_epoch(rows), state.get("best")
    if row is None:
        raise InvalidInput(f"{folder}: no epoch was evaluated on validation data, so none is best; use --epoch last")
    if found is None or found["epoch"] != row["epoch"]:
        raise InvalidInput(
            f"{folder}: the weights of epoch {row['epoch']}, the best, were not stored (older versions stored only "
            "the last); use --epoch last"
        )
    return BestNetwork(**found)


def _learned(
    folder: Path, experiment: Experiment, state: dict[str, Any] | None, which: Which, data_dir: Path | None
) -> Trained:
    path = folder / "checkpoint.pt"
    with resuming(path):
        learned = 0 if state is None else len(state["record"]["finished"])
    if state is None or not learned:
        raise InvalidInput(f"{folder}: no task is learned yet; train first")
    if which == "best":
        raise InvalidInput(f"{folder}: a stream of tasks keeps only the weights of its last epoch; use --epoch last")
    if state.get("card"):
        card = DataCard.from_json(state["card"], str(path))
    else:
        card = card_of(experiment, stream_for(experiment, data_dir)[learned - 1])
    model, posterior = _restored(path, experiment, card, state)
    calibration = None
    if not state["totals"]["batches"] and state["epoch"] == 1:
        calibration = run_calibration.stored(folder, "last", model, posterior)
    return Trained(folder, experiment, card, model, posterior, calibration, f"last, after {learned} tasks", learned)


def _restored(
    path: Path, experiment: Experiment, card: DataCard, state: dict[str, Any]
) -> tuple[nn.Module, BernoulliPosterior | None]:
    with torch.random.fork_rng([]):  # loading must not change the program's random stream
        model = build_model(experiment, card)
    optimizer, _ = make_optimizers(experiment, model, card)
    with resuming(path):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    model.eval()
    return model, optimizer.posterior() if optimizer.binary else None


def load_trained(
    folder: Path, data_dir: Path | None = None
) -> tuple[Experiment, Dataset, nn.Module, BernoulliPosterior | None]:
    """A run's network with its weights, its data and its posterior, not calibrated (None for full precision).

    With a certainty, samples of the posterior need BatchNorm statistics too: `load_network` has them.
    For a stream of tasks: the current network, and the data of the task learned last.
    """
    trained = load_network(folder, data_dir=data_dir)
    return trained.experiment, trained.load_data(data_dir), trained.model, trained.posterior
