"""The calibration that a run stores with its weights, so that predicting and packing need no data.

A posterior's file includes its calibration. ``calibration.json`` holds those of all networks, including full
precision, each with the hash of the network it was fitted to: a point mass may keep its λ while BatchNorm and real
weights still change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from bayesbinn.binary import canonical_name
from bayesbinn.data import Part
from bayesbinn.errors import BayesbinnError, InvalidFile
from bayesbinn.posterior import BernoulliPosterior, LogitScale
from bayesbinn.prediction.batchnorm import BatchNormStatistics
from bayesbinn.prediction.logit_scale import calibrate
from bayesbinn.train.folder import RunFolder

Which = Literal["last", "best"]
Entry = TypeVar("Entry")
POSTERIORS: dict[Which, str] = {"last": "posterior.safetensors", "best": "best.safetensors"}
FILE_NAME = "calibration.json"
NONE = LogitScale()
SAMPLES = 10
"""Number of posterior samples used to calibrate the mean."""
BATCH = 1000


def fitted(
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    validation: Part,
    on_progress: Callable[[float], None] = lambda share: None,
    statistics: BatchNormStatistics | None = None,
) -> LogitScale:
    """Fit the calibration of a classifier on the validation part; `statistics` are those of the samples."""
    x, y = validation.whole()
    device = next(model.parameters()).device
    found = calibrate(
        model,
        posterior,
        x.to(device),
        y.to(device),
        samples=SAMPLES,
        batch_size=BATCH,
        statistics=statistics,
        on_progress=on_progress,
    )
    return found if isinstance(found, LogitScale) else found.logit_scale


def network_hash(model: nn.Module, posterior: BernoulliPosterior | None) -> str:
    """SHA-256 of λ, the buffers and the real weights: everything that predictions depend on.

    Binary weights are left out: λ determines them, and the model holds whichever sample was drawn last.
    """
    natural = {} if posterior is None else posterior.natural
    state = {canonical_name(name): value for name, value in model.state_dict().items()}
    digest = hashlib.sha256()
    for kind, tensors in (("natural", natural), ("state", state)):
        for name in sorted(tensors):
            if kind == "natural" or name not in natural:
                _add(digest, f"{kind} {name}", tensors[name])
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Tensor) -> None:
    here = value.detach().cpu().contiguous()
    digest.update(f"{name} {here.dtype} {tuple(here.shape)}\n".encode())
    digest.update(here.view(-1).view(torch.uint8).numpy().data)


def stored(folder: Path, which: Which, model: nn.Module, posterior: BernoulliPosterior | None) -> LogitScale | None:
    """What the run has stored for exactly this network; None if nothing."""
    found = _read(folder / FILE_NAME).get(which)
    if found is None or found.network != network_hash(model, posterior):
        return None
    if posterior is None:
        return found.calibration
    path = folder / POSTERIORS[which]
    same = path.exists() and BernoulliPosterior.load(path).logit_scale == found.calibration
    return found.calibration if same else None


def store(
    folder: RunFolder,
    which: Which,
    epoch: int,
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    calibration: LogitScale,
) -> None:
    """Store a calibration, and the posterior if there is one."""
    if posterior is not None:
        posterior.with_logit_scale(calibration).save(folder.writable(POSTERIORS[which]))
    if calibration != NONE:
        try:
            known = _read(folder.path / FILE_NAME)
        except BayesbinnError:
            known = {}  # a damaged file is replaced
        known[which] = _Kept(epoch, network_hash(model, posterior), calibration)
        write_sealed(folder, FILE_NAME, {name: kept.to_dict() for name, kept in known.items()})


@dataclass(frozen=True)
class _Kept:
    epoch: int
    network: str
    """Its hash; empty in files from older versions, whose calibrations are fitted again."""
    calibration: LogitScale

    def to_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "network": self.network, "logit_scale": self.calibration.to_dict()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> _Kept:
        scale = LogitScale.from_dict(values["logit_scale"])
        return _Kept(int(values["epoch"]), str(values.get("network", "")), scale)


def _read(path: Path) -> dict[Which, _Kept]:
    """The entries for the last and the best network."""
    return read_sealed(path, _Kept.from_dict)


# ---- small files with a checksum ---------------------------------------------------------------------------


def write_sealed(folder: RunFolder, name: str, content: dict[Which, dict[str, Any]]) -> None:
    """Write JSON, with the SHA-256 of the rest under ``sha256``."""
    folder.write(name, json.dumps({**content, "sha256": _checksum(content)}, indent=1).encode())


def forget_sealed(folder: RunFolder, name: str, which: Which) -> None:
    """Remove the entry for the last or the best network, because it no longer holds."""
    try:
        known = read_sealed(folder.path / name, lambda values: values)
    except BayesbinnError:
        return  # a damaged file is replaced later
    if known.pop(which, None) is not None:
        write_sealed(folder, name, known)


def read_sealed(path: Path, parse: Callable[[dict[str, Any]], Entry]) -> dict[Which, Entry]:
    """The entries of a file that `write_sealed` wrote; empty if there is no file. A damaged file raises `InvalidFile`.

    Files from older versions have no checksum. Their network hashes are dropped, so that nothing relies on them.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
        checksum = content.pop("sha256", None)
        if checksum is None:
            for entry in content.values():
                entry.pop("network", None)
        elif checksum != _checksum(content):
            raise ValueError("its checksum does not match")
        return {which: parse(content[which]) for which in POSTERIORS if which in content}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidFile(f"{path}: damaged ({reason}); resume the run to rewrite it") from None


def _checksum(content: Mapping[Which, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
