"""How good a network is on a part of its data; data-parallel ranks measure a share each."""

from __future__ import annotations

import math

import torch
from torch import nn

from bayesbinn import ranks
from bayesbinn.data import Part
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction.predicting import predict
from bayesbinn.train.data_parallel import own_batches
from bayesbinn.train.loop import correct_predictions

TEST_BATCH = 1000


@torch.no_grad()
def accuracy(model: nn.Module, part: Part) -> float:
    """The accuracy of the model's current weights, in percent."""
    model.eval()
    own = own_batches(part, TEST_BATCH)
    (correct,) = ranks.summed([sum(correct_predictions(model(x), y) for x, y in own)])
    return 100 * correct / len(part)


@torch.no_grad()
def rmse(model: nn.Module, part: Part, unit: float) -> float:
    """The RMSE of the model's current weights; `unit` is the targets' standard deviation."""
    model.eval()
    own = own_batches(part, TEST_BATCH)
    (squares,) = ranks.summed([sum(float((model(x) - y).double().square().sum()) for x, y in own)])
    return unit * math.sqrt(squares / len(part))


def accuracy_of_the_mean(
    model: nn.Module, posterior: BernoulliPosterior, part: Part, samples: int, seed: int
) -> float | None:
    """The accuracy of the mean over posterior samples, in percent; None for a point mass, which is one network."""
    if any(bool(torch.isinf(value).any()) for value in posterior.natural.values()):
        return None
    if posterior.saturated:
        return accuracy(model, part)
    right = 0
    for x, y in own_batches(part, TEST_BATCH):
        right += int((predict(model, posterior, x, samples=samples, seed=seed).classes == y).sum())
    (correct,) = ranks.summed([right])
    return 100 * correct / len(part)
