"""What a run leaves beside its checkpoint, so that predicting, packing and reporting can do without the data."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from bayesbinn import run_calibration
from bayesbinn.best_epoch import BestNetwork
from bayesbinn.data import Parts
from bayesbinn.data.card import DataCard
from bayesbinn.errors import BayesbinnError
from bayesbinn.files import write_whole
from bayesbinn.methods import ranks
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction import predict
from bayesbinn.reports import class_scores

LAST, BEST, SCORES = "posterior.safetensors", "best.safetensors", "scores.json"
_BATCH = 1000


@dataclass(frozen=True)
class ResultWriter:
    """Writes into a run's folder. All ranks call it, because those that wait for long would take rank 0 for lost;
    rank 0 alone writes."""

    folder: Path
    card: DataCard
    parts: Parts
    may_write: Callable[[], None]

    def write(
        self, epoch: int, model: nn.Module, posterior: BernoulliPosterior | None, best: BestNetwork | None
    ) -> None:
        """The posteriors after the last and the best epoch, calibrated, and the scores of the last by classes."""
        posterior = self._write_calibrated(LAST, model, posterior)
        if best is not None:
            other = copy.deepcopy(model)
            other.load_state_dict(best.model)
            self._write_calibrated(BEST, other, best.posterior)
        if self.parts.test is not None and self.card.task == "classification" and epoch:
            x, y = self.parts.test.whole()
            device = next(model.parameters()).device
            found = predict(model, posterior, x.to(device), batch_size=_BATCH).probabilities
            scores = {"epoch": epoch, **class_scores(found, y, self.card.classes)}
            self._write(SCORES, lambda path: write_whole(path, json.dumps(scores, indent=1).encode()))

    def _write_calibrated(
        self, name: str, model: nn.Module, posterior: BernoulliPosterior | None
    ) -> BernoulliPosterior | None:
        """Save a posterior with its calibration, unless the file has it already."""
        if posterior is None:
            return None
        raw = posterior
        known = ranks.decided(lambda: _stored_or_none(self.folder / name, raw))
        if known is not None:
            return known
        if self.parts.validation is not None and self.card.task == "classification":
            posterior = run_calibration.fitted(model, posterior, self.parts.validation)
        self._write(name, posterior.save)
        return posterior

    def _write(self, name: str, write: Callable[[Path], None]) -> None:
        if ranks.rank() == 0:
            self.may_write()
            write(self.folder / name)


def _stored_or_none(path: Path, posterior: BernoulliPosterior) -> BernoulliPosterior | None:
    """A damaged file is written anew."""
    try:
        return run_calibration.stored(path, posterior)
    except BayesbinnError:
        return None
