"""The training loop: what it counts, what it sets, and that only its arguments matter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn.errors import InvalidInput
from bayesbinn.train.loop import (
    Epoch,
    Totals,
    correct_predictions,
    cosine,
    fit,
    flips,
    set_learning_rates,
    train_batches,
)

# The paper's setting: a weight follows the running mean of its gradients.
SATURATED = {"temperature": 1e-10, "initial_strength": 10.0}


def problem(count: int = 65) -> tuple[Tensor, Tensor]:
    """Points of two classes on either side of a plane whose normal is binary."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    return x, (x @ torch.tensor([1.0, -1, 1, 1, -1, -1]) > 0).long()


def network(affine: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(6, 32, bias=False), nn.BatchNorm1d(32, affine=affine), nn.ReLU()),
        *(nn.Linear(32, 2, bias=False), nn.BatchNorm1d(2, affine=False)),
    )


def optimizer_of(model: nn.Module, **settings: Any) -> bb.BinaryOptimizer:
    settings = {"lr": 1e-2, "temperature": 0.5, "initial_strength": 1.0, **settings}
    return bb.BayesBiNN(bb.split_parameters(model)[0], train_set_size=65, seed=3, **settings)


def test_totals_weight_batches_by_size() -> None:
    totals = Totals(loss=30.0, correct=15, seen=20, batches=2)
    assert (totals.mean_loss, totals.accuracy) == (1.5, 75.0)
    assert (Totals().mean_loss, Totals().accuracy) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("output", "targets", "right"),
    [
        ([[2.0, 1.0], [0.0, 1.0], [3.0, 4.0]], torch.tensor([0, 1, 0]), 2),
        ([[2.0], [-1.0], [-3.0]], torch.tensor([1, 0, 1]), 2),
        ([2.0, -1.0, -3.0], torch.tensor([1, 0, 1]), 2),
        ([[2.0], [-1.0], [-3.0]], torch.tensor([[2.0], [-1.0], [-3.0]]), 0),
    ],
    ids=["classes", "one logit", "one logit, flat", "regression"],
)
def test_correct_predictions(output: Any, targets: Tensor, right: int) -> None:
    assert correct_predictions(torch.tensor(output), targets) == right


def test_rates_are_factors_on_the_initial_ones() -> None:
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.2}])
    for factor in (1.0, 0.5, 0.5, 0.25):
        set_learning_rates([optimizer], factor)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1 * factor, 0.2 * factor])


def test_cosine_is_symmetric_about_one_half_and_ends_above_zero() -> None:
    first = (1 + math.cos(math.pi / 6)) / 2
    assert [cosine(e, 3) for e in (1, 2, 3)] == pytest.approx([first, 0.5, 1 - first])
    assert cosine(1, 1) == pytest.approx(0.5)


def test_fit_for_one_epoch_trains() -> None:
    x, y = problem()
    model = network()
    optimizer = optimizer_of(model, **SATURATED)
    before = optimizer.posterior().natural["0.weight"].clone()
    (epoch,) = fit(model, optimizer, x, y, epochs=1, batch_size=16)
    assert epoch.lr == pytest.approx(0.5e-2)
    assert not torch.equal(optimizer.posterior().natural["0.weight"], before)


def test_flips_counts_signs() -> None:
    before, after = [torch.tensor([1.0, -1.0, 1.0, -1.0])], [torch.tensor([1.0, 1.0, -1.0, -1.0])]
    assert flips(before, after) == 0.5
    assert flips(before, before) == 0.0


def test_fit_learns_and_reports_every_epoch() -> None:
    x, y = problem()
    model, told = network(), []
    optimizer = optimizer_of(model, **SATURATED)
    history = fit(model, optimizer, x, y, epochs=20, batch_size=16, on_epoch=told.append)
    assert told == history and [epoch.number for epoch in history] == list(range(1, 21))
    assert all(isinstance(epoch, Epoch) for epoch in history)
    assert history[-1].train_accuracy > 90 and history[-1].train_loss < history[0].train_loss
    rates = [epoch.lr for epoch in history]
    assert rates == sorted(rates, reverse=True) and rates[-1] > 0
    assert (rates[9] + rates[10]) / 2 == pytest.approx(0.5e-2)
    assert history[0].flip_ratio > 0
    bb.check_binary(model)


def test_fit_depends_only_on_its_seed() -> None:
    x, y = problem()

    def weights(seed: int, between: Callable[[], Any] = lambda: None) -> Tensor:
        model = network()
        optimizer = optimizer_of(model)
        between()
        fit(model, optimizer, x, y, epochs=3, batch_size=16, seed=seed)
        return optimizer.posterior().natural["0.weight"]

    assert torch.equal(weights(0), weights(0, between=lambda: torch.rand(7)))
    assert not torch.equal(weights(0), weights(1))


def test_a_last_batch_of_one_is_left_out() -> None:
    x, y = problem(65)
    seen: list[int] = []
    model = network()
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    fit(model, optimizer_of(model), x, y, epochs=1, batch_size=16)
    assert seen == [16, 16, 16, 16]


@pytest.mark.parametrize(("inputs", "targets"), [(5, 4), (1, 1), (0, 0)])
def test_fit_rejects_what_it_cannot_train_on(inputs: int, targets: int) -> None:
    model = network()
    with pytest.raises(InvalidInput, match=f"{inputs} inputs and {targets} targets"):
        fit(model, optimizer_of(model), torch.zeros(inputs, 6), torch.zeros(targets).long(), epochs=1, batch_size=2)


def test_the_callbacks_see_every_batch_before_and_after() -> None:
    x, y = problem(48)
    model, totals, log = network(), Totals(), []
    train_batches(
        model,
        optimizer_of(model),
        zip(x.split(16), y.split(16), strict=True),
        totals,
        before_batch=lambda: log.append(("before", totals.batches)),
        after_batch=lambda: log.append(("after", totals.batches)),
    )
    assert log == [("before", 0), ("after", 1), ("before", 1), ("after", 2), ("before", 2), ("after", 3)]
    assert (totals.seen, totals.batches) == (48, 3) and model.training


def test_real_parameters_take_the_mean_gradient_over_the_samples() -> None:
    """Every sample of a saturated posterior is the mode: four of them must take the same step as one."""
    x, y = problem(32)
    gains = []
    for samples in (1, 4):
        model = network(affine=True)
        optimizer = optimizer_of(model, temperature=1e-10, initial_strength=20.0, mc_samples=samples)
        real = torch.optim.SGD([p for _, p in bb.split_parameters(model)[1]], lr=0.5)
        train_batches(model, optimizer, [(x, y)], Totals(), real_optimizer=real, mc_samples=samples)
        gains.append(model[1].weight.detach().clone())
    assert not torch.equal(gains[0], torch.ones(32))
    torch.testing.assert_close(gains[1], gains[0])


def test_another_loss_and_a_single_output() -> None:
    x, y = problem()
    model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 1, bias=False))

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output.flatten(), targets.float())

    history = fit(model, optimizer_of(model, **SATURATED), x, y, epochs=20, batch_size=16, loss=loss)
    assert history[-1].train_accuracy > 70
