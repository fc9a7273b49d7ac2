"""How good a network is on a part of its data; data-parallel ranks measure a share each."""

from __future__ import annotations

import math

import torch
from torch import nn

from bayesbinn import ranks
from bayesbinn.data import Part
from bayesbinn.methods.lookup import looking_up_without_gradients
from bayesbinn.models.side_by_side import SideBySide, is_side_by_side, together
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction.batchnorm import BatchNormStatistics
from bayesbinn.prediction.predicting import predict
from bayesbinn.train import statistics
from bayesbinn.train.data_parallel import own_batches
from bayesbinn.train.loop import correct_predictions

TEST_BATCH = 1000


def settle(model: nn.Module, part: Part, certainty: float | None) -> None:
    """Re-estimate BatchNorm's statistics for the weights that predict, if those collected in training do not fit.

    Other networks keep what BatchNorm collected in training, as the authors do.
    """
    if isinstance(model, SideBySide):
        rows = statistics.rows_of(part).sort().values
        model.settle(part.gather(rows).to(next(model.parameters()).device))
    elif statistics.needed(model, certainty):
        statistics.settle(model, part)


@torch.no_grad()
def accuracy(model: nn.Module, part: Part) -> float:
    """The accuracy of the model's current weights, in percent."""
    model.eval()
    own = own_batches(part, TEST_BATCH)
    with looking_up_without_gradients(model.parameters()):
        (correct,) = ranks.summed([sum(correct_predictions(model(x), y) for x, y in own)])
    return 100 * correct / len(part)


@torch.no_grad()
def rmse(model: nn.Module, part: Part, unit: float) -> float:
    """The RMSE of the model's current weights; `unit` is the targets' standard deviation."""
    model.eval()
    own = own_batches(part, TEST_BATCH)
    predicted = (lambda x: together(model(x))) if is_side_by_side(model) else model
    (squares,) = ranks.summed([sum(float((predicted(x) - y).double().square().sum()) for x, y in own)])
    return unit * math.sqrt(squares / len(part))


def accuracy_of_the_mean(
    model: nn.Module,
    posterior: BernoulliPosterior,
    part: Part,
    samples: int,
    seed: int,
    sample_statistics: BatchNormStatistics | None = None,
) -> float | None:
    """The accuracy of the mean over posterior samples, in percent; None for a point mass, which is one network.

    `sample_statistics`: BatchNorm statistics of each sample; None: the model's for all of them.
    """
    if any(bool(torch.isinf(value).any()) for value in posterior.natural.values()):
        return None
    if posterior.saturated:
        return accuracy(model, part)
    right = 0
    for x, y in own_batches(part, TEST_BATCH):
        found = predict(model, posterior, x, samples=samples, seed=seed, statistics=sample_statistics)
        right += int((found.classes == y).sum())
    (correct,) = ranks.summed([right])
    return 100 * correct / len(part)
