"""BatchNorm's statistics for the weights that predict, if training uses others.

With a `certainty`, weights in training are real numbers between −1 and 1. The mode and the samples of the posterior
have weights of −1 and +1, so that every unit's sum has another mean and a larger variance. The wider the layers, the
less the running statistics collected in training fit. So a run re-estimates them from rows of its training part: for
the mode in the model itself, and for the first samples of the posterior in a file next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesbinn.data import Part
from bayesbinn.errors import BayesbinnError, InvalidFile
from bayesbinn.models.side_by_side import is_side_by_side
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction.batchnorm import BatchNormStatistics, layers_with_statistics, recalibrate
from bayesbinn.prediction.functional import unwrapped
from bayesbinn.train.calibration import SAMPLES, Which
from bayesbinn.train.folder import RunFolder

FILES: dict[Which, str] = {"last": "statistics.safetensors", "best": "best-statistics.safetensors"}
ROWS = 10_000
"""Training rows that statistics are taken from."""
BATCH = 500


def needed(model: nn.Module, certainty: float | None) -> bool:
    """Whether the statistics collected in training belong to weights other than those that predict.

    Networks side by side have a `settle` of their own.
    """
    return certainty is not None and not is_side_by_side(model) and bool(layers_with_statistics(unwrapped(model)))


def rows_of(part: Part) -> Tensor:
    """The rows that statistics are taken from, in random order: the data may be sorted or periodic. Always the same."""
    return torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[:ROWS]


def settle(model: nn.Module, part: Part) -> None:
    """Set the running statistics to those of the model's weights as they are."""
    recalibrate(model, None, _batches(part, model))


def of_samples(
    model: nn.Module,
    posterior: BernoulliPosterior,
    part: Part,
    samples: int = SAMPLES,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda share: None,
) -> BatchNormStatistics:
    """The statistics of each of the first samples of a seed. `on_progress` gets the share of the rows seen so far."""
    return recalibrate(model, posterior, _batches(part, model, on_progress), samples, seed=seed)


def _batches(
    part: Part, model: nn.Module, on_progress: Callable[[float], None] = lambda share: None
) -> Iterator[Tensor]:
    rows, device = rows_of(part), next(model.parameters()).device
    batches = rows.tensor_split(max(1, len(rows) // BATCH))
    for number, batch in enumerate(batches, 1):
        yield part.gather(batch).to(device)
        on_progress(number / len(batches))


def store(folder: RunFolder, which: Which, statistics: BatchNormStatistics) -> None:
    """Store them with the posterior of the last or the best epoch."""
    statistics.save(folder.writable(FILES[which]))


def stored(folder: Path, which: Which, posterior: BernoulliPosterior | None) -> BatchNormStatistics | None:
    """What the run has stored for exactly this posterior; None if nothing."""
    path = folder / FILES[which]
    if posterior is None or not path.exists():
        return None
    try:
        found = BatchNormStatistics.load(path)
    except InvalidFile as error:
        raise InvalidFile(f"{error}; resuming the run rewrites it") from error
    return found if found.belongs_to(posterior) else None


def stored_or_none(folder: Path, which: Which, posterior: BernoulliPosterior) -> BatchNormStatistics | None:
    """None for a damaged file, which is then replaced."""
    try:
        return stored(folder, which, posterior)
    except BayesbinnError:
        return None
