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
        own, calibration = self._calibrated("last", epoch, model, posterior)
        self._measure_residuals("last", epoch, model, posterior, own)
        if best is not None:
            other = copy.deepcopy(model)
            other.load_state_dict(best.model)
            same = run_calibration.network_hash(other, best.posterior) == run_calibration.network_hash(model, posterior)
            known = (own, calibration) if same else None
            own, _ = self._calibrated("best", best.epoch, other, best.posterior, known)
            self._measure_residuals("best", best.epoch, other, best.posterior, own)
        if self.parts.test is not None and self.card.task == "classification" and epoch:
            x, y = self.parts.test.whole()
            device = next(model.parameters()).device
            prediction = predict(model, posterior, x.to(device), batch_size=_BATCH, calibration=calibration)
            scores = {"epoch": epoch, **class_scores(prediction.probabilities, y, self.card.classes)}
            self.folder.write(SCORES, json.dumps(scores, indent=1).encode())

    def _calibrated(
        self,
        which: Which,
        epoch: int,
        model: nn.Module,
        posterior: BernoulliPosterior | None,
        known: tuple[BatchNormStatistics | None, LogitScale] | None = None,
    ) -> tuple[BatchNormStatistics | None, LogitScale]:
        """Save a posterior with its samples' statistics and its calibration.

        They are measured unless they are known or the folder has them already.
        """
        path, tell = self.folder.path, self.on_progress
        own, given = known or (None, None)
        if posterior is not None and own is None and statistics.do_not_fit(model, self.certainty):
            own = ranks.decided(lambda: statistics.stored_or_none(path, which, posterior))
            if own is None:
                own = statistics.of_samples(
                    model, posterior, self.parts.train, on_progress=lambda share: self.on_progress(share / 2)
                )
                tell = _second_half(tell)
                if self.folder.writes:
                    # What was measured without these statistics no longer holds.
                    run_calibration.forget(self.folder, which)
                    run_residuals.forget(self.folder, which)
        if own is not None and self.folder.writes:
            statistics.store(self.folder, which, own)
        stored = ranks.decided(lambda: _stored_or_none(path, which, model, posterior))
        if stored is not None:
            return own, stored
        found = given or run_calibration.NONE
        if given is None and self.parts.validation is not None and self.card.task == "classification" and epoch:
            found = run_calibration.fitted(model, posterior, self.parts.validation, tell, own)
        if self.folder.writes:
            run_calibration.store(self.folder, which, epoch, model, posterior, found)
        return own, found

    def _measure_residuals(
        self,
        which: Which,
        epoch: int,
        model: nn.Module,
        posterior: BernoulliPosterior | None,
        own: BatchNormStatistics | None,
    ) -> None:
        """Store the residuals of a regression, unless the folder has them already."""
        if self.parts.validation is None or self.card.task != "regression" or not epoch:
            return
        if ranks.decided(lambda: _stored_residuals_or_none(self.folder.path, which, model, posterior)) is None:
            unit = self.card.target_std
            found = run_residuals.estimated(epoch, model, posterior, self.parts.validation, unit, own)
            if found is not None and self.folder.writes:
                run_residuals.store(self.folder, which, found)


def _second_half(on_progress: Callable[[float], None]) -> Callable[[float], None]:
    return lambda share: on_progress((1 + share) / 2)


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
