"""The calibration that a run keeps with its weights, so that predicting and packing need no data.

A posterior carries its own. That of a full-precision network has a place in ``calibration.json``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from bayesbinn.calibration import calibrate
from bayesbinn.data import Part
from bayesbinn.posterior import BernoulliPosterior, LogitScale

SAMPLES = 10
"""Posterior samples behind the calibration of the mean."""
BATCH = 1000


def fitted(model: nn.Module, posterior: BernoulliPosterior, validation: Part) -> BernoulliPosterior:
    """The posterior with the calibration that suits the validation part of a classification."""
    x, y = validation.whole()
    device = next(model.parameters()).device
    return calibrate(model, posterior, x.to(device), y.to(device), samples=SAMPLES, batch_size=BATCH)


def is_calibrated(posterior: BernoulliPosterior) -> bool:
    """Whether `fitted` has been here."""
    return posterior.logit_scale != LogitScale()


def plain(posterior: BernoulliPosterior) -> BernoulliPosterior:
    """The same distribution without calibration."""
    return BernoulliPosterior(posterior.natural)


def stored(path: Path, posterior: BernoulliPosterior) -> BernoulliPosterior | None:
    """The calibrated posterior in a file; None if there is none, or if it is of other weights."""
    if not path.exists():
        return None
    found = BernoulliPosterior.load(path)
    ours, theirs = posterior.natural, found.natural
    same = ours.keys() == theirs.keys() and all(torch.equal(ours[name].cpu(), theirs[name]) for name in ours)
    return found if same and is_calibrated(found) else None
