"""Biases and gains that reach a binary method through ``model.parameters()`` do not become binary unnoticed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.errors import InvalidInput
from bayesbinn.experiments import load_experiment
from bayesbinn.methods import METHODS, BinaryOptimizer
from bayesbinn.models import synthetic_mlp
from bayesbinn.runs.build import make_optimizers

BINARY = [name for name, method in METHODS.items() if method.optimizer.binary]
SETTINGS: dict[str, dict[str, Any]] = {"bayesbinn": {"lr": 1e-2, "temperature": 1e-10}}
REMEDY = r"pass the first list of bb\.split_parameters\(model\)"


def make(method: str, params: Any) -> BinaryOptimizer:
    return METHODS[method].create(params, train_set_size=60, seed=0, **SETTINGS.get(method, {}))


def normalized() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3, bias=False))


def biased() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("method", BINARY)
@pytest.mark.parametrize("given", [nn.Module.parameters, nn.Module.named_parameters])
def test_gains_are_refused_and_the_model_is_left_as_it_was(method: str, given: Callable[[nn.Module], Any]) -> None:
    model = normalized()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InvalidInput, match=rf"'1(\.weight)?' of shape \(8,\).* all 1: the gain .*{REMEDY}") as caught:
        make(method, given(model))
    assert "\n" not in str(caught.value)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("method", BINARY)
@pytest.mark.parametrize("given", [nn.Module.parameters, nn.Module.named_parameters])
def test_biases_get_a_warning(method: str, given: Callable[[nn.Module], Any]) -> None:
    with pytest.warns(UserWarning, match=rf"2 parameters of one dimension binary, such as '(1|0\.bias)'.*{REMEDY}"):
        make(method, given(biased()))


def test_the_classes_say_so_themselves() -> None:
    with pytest.raises(InvalidInput, match="BayesBiNN got '1'"):
        bb.BayesBiNN(normalized().parameters(), lr=1e-2, train_set_size=60, temperature=1e-10)
    with pytest.warns(UserWarning, match="STEAdam makes 2 parameters"):
        bb.STEAdam(biased().parameters())


@pytest.mark.parametrize("order", [1, -1])
def test_a_group_of_biases_gets_a_warning(order: int) -> None:
    model = biased()
    groups = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias], "lr": 0.1}]
    with pytest.warns(UserWarning, match="STEAdam makes a parameter of one dimension binary"):
        bb.STEAdam(groups[::order])


@pytest.mark.parametrize("method", BINARY)
def test_what_was_asked_for_is_not_questioned(method: str) -> None:
    """Warnings are errors here."""
    make(method, bb.split_parameters(biased(), biases=True)[0])
    make(method, [p for _, p in bb.split_parameters(biased(), biases=True)[0]])
    make(method, bb.split_parameters(normalized(), lambda name, parameter: True)[0])
    make(method, bb.split_parameters(normalized())[0])
    make(method, [("vector", nn.Parameter(torch.ones(5)))])
    assert make(method, bb.split_parameters(biased(), biases=True)[0]).param_groups[0]["params"][1].dim() == 1


def test_the_last_split_counts() -> None:
    model = biased()
    bb.split_parameters(model, biases=True)
    bb.split_parameters(model)
    with pytest.warns(UserWarning, match="2 parameters of one dimension"):
        bb.STEAdam(model.parameters())


@pytest.mark.parametrize("method", [name for name in METHODS if name not in BINARY])
def test_full_precision_takes_every_parameter(method: str) -> None:
    make(method, normalized().parameters())


@pytest.mark.parametrize("preset", ["moons", "snelson"])
def test_the_synthetic_presets_have_binary_biases_without_a_warning(preset: str) -> None:
    experiment = load_experiment(preset)
    dataset = bb.data.load("moons")
    optimizer, real_optimizer = make_optimizers(experiment, synthetic_mlp(2), dataset)
    assert real_optimizer is None
    assert [p.dim() for p in optimizer.param_groups[0]["params"]] == [2, 1] * 3


# ---- training ------------------------------------------------------------------------------------


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(1)


def by_fit(model: nn.Module, binary: Any, real: Any) -> None:
    optimizer = bb.BayesBiNN(binary, lr=1e-2, train_set_size=60, temperature=1e-10, seed=0)
    real_optimizer = torch.optim.Adam([p for _, p in real], lr=0.05) if real else None
    bb.train.fit(model, optimizer, *data(), epochs=3, batch_size=20, real_optimizer=real_optimizer)


def by_hand(model: nn.Module, binary: Any, real: Any) -> None:
    optimizer = bb.STEAdam(binary)
    real_optimizer = torch.optim.Adam([p for _, p in real], lr=0.05) if real else None
    x, y = data()
    for _ in range(5):
        if real_optimizer is not None:
            real_optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if real_optimizer is not None:
            real_optimizer.step()


@pytest.mark.parametrize("train", [by_fit, by_hand])
def test_training_stops_before_it_starts_and_the_remedy_works(train: Callable[..., None]) -> None:
    model = normalized()
    with pytest.raises(InvalidInput, match=REMEDY):
        train(model, model.parameters(), None)
    train(model, *bb.split_parameters(model))
    gain = model[1].weight.detach()
    assert bool(((gain != 1) & (gain > 0.5) & (gain < 1.5)).all())
    assert bb.check_binary(model) == 56

    model = biased()
    with pytest.warns(UserWarning, match=REMEDY):
        train(model, model.parameters(), None)
    assert bool((model[0].bias.abs() == 1).all())
    model = biased()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, *bb.split_parameters(model))
    assert not bool((model[0].bias.abs() == 1).any())
