"""What a run writes next to its checkpoint, so that predicting, packing and reporting do not need the data."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from bayesbinn import ranks
from bayesbinn.data import Parts
from bayesbinn.data.card import DataCard
from bayesbinn.errors import BayesbinnError
from bayesbinn.posterior import BernoulliPosterior, LogitScale
from bayesbinn.prediction.batchnorm import BatchNormStatistics
from bayesbinn.prediction.predicting import predict
from bayesbinn.runs.best_epoch import BestNetwork
from bayesbinn.runs.scores import class_scores
from bayesbinn.train import calibration as run_calibration
from bayesbinn.train import residuals as run_residuals
from bayesbinn.train import statistics
from bayesbinn.train.calibration import Which
from bayesbinn.train.folder import RunFolder

SCORES = "scores.json"
_BATCH = 1000


@dataclass(frozen=True)
class ResultWriter:
    """Writes to a run's folder. All ranks call it, because a rank that waits for long would consider rank 0 lost,
    but only rank 0 writes."""

    folder: RunFolder
    card: DataCard
    parts: Parts
    on_progress: Callable[[float], None] = lambda share: None
    """Called with the share of a calibration that is done; it may raise."""
    certainty: float | None = None
    """The optimizer's. With one, samples get BatchNorm statistics of their own."""

    def write(
        self, epoch: int, model: nn.Module, posterior: BernoulliPosterior | None, best: BestNetwork | None
    ) -> None:
        """Write the calibrated posteriors after the last and the best epoch, and the last epoch's scores by class."""
        of_samples = self._sample_statistics("last", model, posterior)
        calibration = self._calibrated("last", epoch, model, posterior, of_samples)
        self._measure_residuals("last", epoch, model, posterior, of_samples)
        if best is not None:
            other = copy.deepcopy(model)
            other.load_state_dict(best.model)
            same = run_calibration.network_hash(other, best.posterior) == run_calibration.network_hash(model, posterior)
            of_samples = self._sample_statistics("best", other, best.posterior, of_samples if same else None)
            self._calibrated("best", best.epoch, other, best.posterior, of_samples, calibration if same else None)
            self._measure_residuals("best", best.epoch, other, best.posterior, of_samples)
        if self.parts.test is not None and self.card.task == "classification" and epoch:
            x, y = self.parts.test.whole()
            device = next(model.parameters()).device
            prediction = predict(model, posterior, x.to(device), batch_size=_BATCH, calibration=calibration)
            scores = {"epoch": epoch, **class_scores(prediction.probabilities, y, self.card.classes)}
            self.folder.write(SCORES, json.dumps(scores, indent=1).encode())

    def _sample_statistics(
        self,
        which: Which,
        model: nn.Module,
        posterior: BernoulliPosterior | None,
        known: BatchNormStatistics | None = None,
    ) -> BatchNormStatistics | None:
        """Store BatchNorm's statistics of the posterior's samples, if it needs them and the folder lacks them.

        They are measured unless they are known.
        """
        if posterior is None or not statistics.needed(model, self.certainty):
            return None
        path = self.folder.path
        stored = ranks.decided(lambda: statistics.stored_or_none(path, which, posterior))
        if stored is not None:
            return stored
        found = known or statistics.of_samples(model, posterior, self.parts.train, on_progress=self._first_half)
        if self.folder.writes:
            # What was measured without these statistics no longer holds.
            for name in (run_calibration.FILE_NAME, run_residuals.FILE_NAME):
                run_calibration.forget_sealed(self.folder, name, which)
            statistics.store(self.folder, which, found)
        return found

    def _calibrated(
        self,
        which: Which,
        epoch: int,
        model: nn.Module,
        posterior: BernoulliPosterior | None,
        of_samples: BatchNormStatistics | None,
        found: LogitScale | None = None,
    ) -> LogitScale:
        """Save a posterior with its calibration, which is fitted unless it is given or the folder has it already."""
        known = ranks.decided(lambda: _stored_or_none(self.folder.path, which, model, posterior))
        if known is not None:
            return known
        if found is None:
            found = run_calibration.NONE
            if self.parts.validation is not None and self.card.task == "classification" and epoch:
                tell = self.on_progress if of_samples is None else self._second_half
                found = run_calibration.fitted(model, posterior, self.parts.validation, tell, of_samples)
        if self.folder.writes:
            run_calibration.store(self.folder, which, epoch, model, posterior, found)
        return found

    def _first_half(self, share: float) -> None:
        self.on_progress(share / 2)

    def _second_half(self, share: float) -> None:
        self.on_progress((1 + share) / 2)

    def _measure_residuals(
        self,
        which: Which,
        epoch: int,
        model: nn.Module,
        posterior: BernoulliPosterior | None,
        of_samples: BatchNormStatistics | None,
    ) -> None:
        """Store the residuals of a regression, unless the folder has them already."""
        if self.parts.validation is None or self.card.task != "regression" or not epoch:
            return
        if ranks.decided(lambda: _stored_residuals_or_none(self.folder.path, which, model, posterior)) is None:
            unit = self.card.target_std
            found = run_residuals.estimated(epoch, model, posterior, self.parts.validation, unit, of_samples)
            if found is not None and self.folder.writes:
                run_residuals.store(self.folder, which, found)


def _stored_or_none(
    folder: Path, which: Which, model: nn.Module, posterior: BernoulliPosterior | None
) -> LogitScale | None:
    """None for a damaged file, which is then replaced."""
    try:
        return run_calibration.stored(folder, which, model, posterior)
    except BayesbinnError:
        return None


def _stored_residuals_or_none(
    folder: Path, which: Which, model: nn.Module, posterior: BernoulliPosterior | None
) -> run_residuals.Residuals | None:
    """None for a damaged file, which is then replaced."""
    try:
        return run_residuals.stored(folder, which, model, posterior)
    except BayesbinnError:
        return None
