"""The calibration that a run keeps with its weights, so that predicting and packing need no data.

A posterior's file carries its own. That of a full-precision network is in ``calibration.json``, by epoch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from bayesbinn.calibration import calibrate
from bayesbinn.data import Part
from bayesbinn.errors import BayesbinnError, InvalidFile
from bayesbinn.files import write_whole
from bayesbinn.posterior import BernoulliPosterior, LogitScale

Which = Literal["last", "best"]
POSTERIORS: dict[Which, str] = {"last": "posterior.safetensors", "best": "best.safetensors"}
FILE_NAME = "calibration.json"
NONE = LogitScale()
SAMPLES = 10
"""Posterior samples behind the calibration of the mean."""
BATCH = 1000


def fitted(model: nn.Module, posterior: BernoulliPosterior | None, validation: Part) -> LogitScale:
    """The calibration that suits the validation part of a classification."""
    x, y = validation.whole()
    device = next(model.parameters()).device
    found = calibrate(model, posterior, x.to(device), y.to(device), samples=SAMPLES, batch_size=BATCH)
    return found if isinstance(found, LogitScale) else found.logit_scale


def stored(folder: Path, which: Which, epoch: int, posterior: BernoulliPosterior | None) -> LogitScale | None:
    """What a run has kept for these weights, of full precision for those of this epoch; None if it has nothing."""
    if posterior is None:
        found = _read(folder / FILE_NAME).get(which)
        return found[1] if found is not None and found[0] == epoch else None
    path = folder / POSTERIORS[which]
    if not path.exists():
        return None
    saved = BernoulliPosterior.load(path)
    ours, theirs = posterior.natural, saved.natural
    same = ours.keys() == theirs.keys() and all(torch.equal(ours[name].cpu(), theirs[name]) for name in ours)
    return saved.logit_scale if same and saved.logit_scale != NONE else None


def store(
    folder: Path, which: Which, epoch: int, posterior: BernoulliPosterior | None, calibration: LogitScale
) -> None:
    """Keep a calibration, with the posterior where there is one."""
    if posterior is not None:
        posterior.with_logit_scale(calibration).save(folder / POSTERIORS[which])
    elif calibration != NONE:
        path = folder / FILE_NAME
        try:
            known = _read(path)
        except BayesbinnError:
            known = {}  # a damaged file is written anew
        known[which] = epoch, calibration
        content = {name: {"epoch": at, "logit_scale": scale.to_dict()} for name, (at, scale) in known.items()}
        write_whole(path, json.dumps(content, indent=1).encode())


def _read(path: Path) -> dict[Which, tuple[int, LogitScale]]:
    """Epoch and calibration, of the last network and of the best."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
        return {
            which: (int(content[which]["epoch"]), LogitScale.from_dict(content[which]["logit_scale"]))
            for which in POSTERIORS
            if which in content
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidFile(f"{path}: damaged ({reason}); resuming the run writes it anew") from None
