"""What a regression leaves unexplained: measured on the validation part and stored with the run.

The networks of a posterior predict different values; how much they differ is the spread. It does not say how far a
prediction is from the truth: a saturated posterior is a single network, with a spread of 0 but nonzero errors. The
standard deviation of a prediction is therefore √(spread² + residual²), with the residual that makes it correct on the
validation rows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor, nn

from bayesbinn.data import Part
from bayesbinn.errors import BayesbinnError
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction.batchnorm import BatchNormStatistics
from bayesbinn.prediction.predicting import predict
from bayesbinn.train.calibration import BATCH, SAMPLES, Which, network_hash, read_sealed, write_sealed
from bayesbinn.train.folder import RunFolder

FILE_NAME = "residuals.json"
MIN_ROWS = 10
"""Fewer validation rows give no estimate: it could be off by a quarter or more."""


@dataclass(frozen=True)
class Residuals:
    """Standard deviations in the unit of the targets, for the weights after an epoch."""

    epoch: int
    rows: int
    """Number of validation rows."""
    mode: float
    """For predictions of the mode or a full-precision network."""
    mean: float
    """For the mean of posterior samples."""
    network: str = ""
    """The hash of the network they were measured on; empty in files from older versions."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "network":
                continue
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value!r}")

    def of(self, posterior: BernoulliPosterior | None, samples: int) -> float | None:
        """The residual for this number of samples; None for a single sample, which is neither the mode nor a mean."""
        if samples == 1:
            return None
        return self.mean if samples and posterior is not None and not posterior.saturated else self.mode


def estimated(
    epoch: int,
    model: nn.Module,
    posterior: BernoulliPosterior | None,
    validation: Part,
    unit: float,
    statistics: BatchNormStatistics | None = None,
) -> Residuals | None:
    """Estimate from errors on the validation part; `unit` is the targets' standard deviation. None if too few rows.

    `statistics` are those of the samples.
    """
    if len(validation) < MIN_ROWS:
        return None
    x, y = validation.whole()
    device = next(model.parameters()).device
    x, y = x.to(device), y.to(device)

    def residual(samples: int) -> float:
        own = statistics if samples else None
        found = predict(model, posterior, x, samples=samples, task="regression", batch_size=BATCH, statistics=own)
        left = (found.mean.view_as(y) - y).double().square() - found.std.view_as(y).double().square()
        # n/(n − 2): the variance of the next error, given a variance measured from n errors rather than known.
        return unit * math.sqrt(max(0.0, float(left.mean())) * len(y) / (len(y) - 2))

    mode = residual(0)
    network = network_hash(model, posterior)
    spread_out = posterior is not None and not posterior.saturated
    return Residuals(epoch, len(validation), mode, residual(SAMPLES) if spread_out else mode, network)


def total_deviation(spread: Tensor, residual: float) -> Tensor:
    """The standard deviation of a prediction, from the networks' spread and the error they all share.

    >>> import torch
    >>> total_deviation(torch.tensor([0.0, 3.0]), 4.0)
    tensor([4., 5.])
    """
    return (spread.square() + residual**2).sqrt()


def stored(folder: Path, which: Which, model: nn.Module, posterior: BernoulliPosterior | None) -> Residuals | None:
    """What the run has stored for exactly this network; None if nothing."""
    found = _read(folder / FILE_NAME).get(which)
    return found if found is not None and found.network == network_hash(model, posterior) else None


def store(folder: RunFolder, which: Which, residuals: Residuals) -> None:
    """Store them along with those of the other epoch."""
    try:
        known = _read(folder.path / FILE_NAME)
    except BayesbinnError:
        known = {}  # a damaged file is replaced
    known[which] = residuals
    write_sealed(folder, FILE_NAME, {name: asdict(each) for name, each in known.items()})


def _read(path: Path) -> dict[Which, Residuals]:
    return read_sealed(path, lambda values: Residuals(**values))
