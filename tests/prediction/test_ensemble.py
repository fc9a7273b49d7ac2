"""The networks of a posterior: prediction, calibration, packing and task streams all use the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bayesbinn.binary import split_parameters
from bayesbinn.continual.evaluation import Networks
from bayesbinn.data import Part
from bayesbinn.data.normalise import Normaliser
from bayesbinn.errors import InvalidInput
from bayesbinn.packing.packer import pack
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.prediction.batchnorm import recalibrate
from bayesbinn.prediction.ensemble import Ensemble
from bayesbinn.prediction.functional import evaluating
from bayesbinn.prediction.logit_scale import calibrate
from bayesbinn.prediction.predicting import predict
from bayesbinn.runtime import load

pytestmark = pytest.mark.usefixtures("one_thread")
SEED = 3


def network() -> tuple[nn.Sequential, BernoulliPosterior]:
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    return model, BernoulliPosterior({name: 0.5 * torch.randn(p.shape) for name, p in split_parameters(model)[0]})


def by_hand(model: nn.Sequential, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits of one network, computed only from its two matrices and the statistics of its BatchNorm."""
    norm = model[1]
    hidden = x @ weights["0.weight"].T
    hidden = (hidden - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    return hidden.relu() @ weights["3.weight"].T


@pytest.mark.parametrize("samples", [0, 1, 5])
def test_every_caller_uses_the_same_networks(samples: int, tmp_path: Path) -> None:
    model, posterior = network()
    x = torch.randn(40, 6)
    drawn = [posterior.draw(SEED, index) for index in range(samples)] or [posterior.mode()]
    expected = torch.stack([by_hand(model, weights, x) for weights in drawn]).detach()
    probabilities = expected.softmax(-1).mean(0)
    y = probabilities.argmax(1)

    ensemble = Ensemble(model, posterior, samples, SEED)
    assert len(ensemble) == len(drawn)
    with evaluating(model):
        found = torch.cat([outputs for _, outputs in ensemble.outputs(x)])
    torch.testing.assert_close(found, expected)

    torch.testing.assert_close(predict(model, posterior, x, samples, seed=SEED).probabilities, probabilities)
    pack(model, tmp_path / "model.safetensors", posterior, samples, SEED)
    torch.testing.assert_close(torch.from_numpy(load(tmp_path / "model.safetensors").outputs(x.numpy())), expected)
    part = Part(x, y, Normaliser(torch.zeros(6), torch.ones(6)))
    assert Networks(model, posterior, samples, SEED).accuracy(part, "shared") == 100
    assert Networks(model, posterior, samples, SEED + 1).accuracy(part, "shared") < 100 or samples == 0


def test_a_calibration_is_fitted_to_the_networks_of_its_seed() -> None:
    model, posterior = network()
    x, y = torch.randn(200, 6), torch.randint(0, 3, (200,))
    one, same, other = (calibrate(model, posterior, x, y, samples=4, seed=seed).logit_scale for seed in (1, 1, 2))
    assert one == same
    assert one.mode == other.mode
    assert one.mean != other.mean


def test_statistics_belong_to_the_network_that_they_were_measured_with() -> None:
    model, posterior = network()
    statistics = recalibrate(model, posterior, [torch.randn(30, 6)], samples=2, seed=SEED)
    ensemble = Ensemble(model, posterior, 2, SEED, statistics)
    for index in range(2):
        tensors = ensemble.tensors(index)
        assert torch.equal(tensors["0.weight"], posterior.draw(SEED, index)["0.weight"])
        assert torch.equal(tensors["1.running_mean"], statistics.tensors["1.running_mean"][index])
    with pytest.raises(InvalidInput, match="recalibrate"):
        Ensemble(model, posterior, 0, SEED, statistics)


def test_without_a_posterior_it_is_the_model_itself() -> None:
    model, _ = network()
    ensemble = Ensemble(model, None)
    assert len(ensemble) == 1 and ensemble.tensors(0) == {} and ensemble.calibration() == (1.0, ())


@pytest.mark.parametrize("samples", [-1, 2])
def test_samples_that_cannot_be_drawn_are_refused(samples: int) -> None:
    model, posterior = network()
    with pytest.raises(InvalidInput, match=f"samples={samples}"):
        Ensemble(model, posterior if samples < 0 else None, samples)
