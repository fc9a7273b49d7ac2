"""BayesBiNN with a bounded memory: the step by hand, its fixed point, what it protects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesbinn as bb
from bayesbinn import kernels
from bayesbinn.errors import InvalidInput
from bayesbinn.kernels import reference

LR, N, M, TAU = 0.02, 30, 50.0, 0.7


def weights(*values: float) -> tuple[nn.Parameter, bb.BernoulliPosterior]:
    natural = torch.tensor(values)
    return nn.Parameter(torch.zeros(len(values))), bb.BernoulliPosterior({"w": natural})


def with_memory(parameter: nn.Parameter, start: bb.BernoulliPosterior, **settings: Any) -> bb.BayesBiNN:
    given = {"lr": LR, "train_set_size": N, "temperature": TAU, "memory": M, "seed": 3, **settings}
    return bb.BayesBiNN([("w", parameter)], init=start, **given)


def stepped(optimizer: bb.BayesBiNN, parameter: nn.Parameter, slopes: Tensor, samples: int = 1) -> Tensor:
    for _ in range(samples):
        with optimizer.sampled_params(train=True):
            (parameter * slopes).sum().backward()
    optimizer.step()
    return optimizer.posterior().natural["w"]


@pytest.mark.parametrize("samples", [1, 3])
def test_the_step_is_the_gradient_of_the_stated_objective(samples: int) -> None:
    parameter, start = weights(0.0, 0.4, -1.3, 3.0, -6.0)
    slopes = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0])
    after = stepped(with_memory(parameter, start), parameter, slopes, samples)

    key, expected = kernels.noise_key(3, "train", "w"), torch.zeros(5, dtype=torch.float64)
    for draw in range(samples):
        natural = start.natural["w"].double().requires_grad_()
        noise = reference.logistic_noise(start.natural["w"], key, draw, 0).double()
        (torch.tanh((natural + noise) / TAU) * slopes).sum().backward()
        assert natural.grad is not None
        expected += N * natural.grad / samples
    natural = start.natural["w"].double().requires_grad_()
    # KL(q ‖ fair coins) = λ·tanh λ − log cosh λ, and the penalty on λ, diluted over M examples.
    phi = 0.05
    kl = natural * torch.tanh(natural) - torch.log(torch.cosh(natural)) + phi / 2 * natural**2
    kl.sum().backward()
    assert natural.grad is not None
    expected = start.natural["w"].double() - LR * (expected + N / M * natural.grad)
    assert torch.allclose(after.double(), expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(parameter.detach(), reference.sign(after))


def test_native_kernels_and_their_reference_take_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for backend in ("native", "torch"):
        if backend == "torch":
            monkeypatch.setattr(kernels.native, "available", False)
        torch.manual_seed(1)
        parameter = nn.Parameter(torch.zeros(1000))
        start = bb.BernoulliPosterior({"w": torch.randn(1000)})
        results.append(stepped(with_memory(parameter, start), parameter, torch.randn(1000)))
    assert torch.equal(*results)


def test_it_rests_where_memory_and_evidence_balance() -> None:
    """For a linear loss with slope c the objective is least where −M·c·v(λ) = (v(λ) + φ)·λ."""
    count = 1000
    parameter = nn.Parameter(torch.zeros(count))
    start = bb.BernoulliPosterior({"w": torch.zeros(count)})
    optimizer = with_memory(parameter, start, temperature=0.1, lr=0.02, memory=40.0, train_set_size=20)
    for _ in range(1500):
        natural = stepped(optimizer, parameter, torch.full((count,), -1.0 / 40.0))
    root = 0.9061  # of v = (v + 0.05)·λ: v(0.9061) = 0.4827, and 0.4827/0.5327 = 0.9061
    assert float(natural.mean()) == pytest.approx(root, rel=0.07)


def test_what_is_certain_hardly_moves() -> None:
    parameter, start = weights(0.1, 4.0)
    after = stepped(with_memory(parameter, start, temperature=1.0, lr=1e-3), parameter, torch.tensor([1.0, 1.0]))
    moved = (after - start.natural["w"]).abs()
    assert moved[1] < moved[0] / 20


def test_nothing_saturates_however_long_the_evidence_lasts() -> None:
    plain, bounded = (nn.Parameter(torch.zeros(200)) for _ in range(2))
    start = bb.BernoulliPosterior({"w": torch.zeros(200)})
    settings: dict[str, Any] = {"temperature": 0.5, "lr": 0.01, "train_set_size": 100}
    one = with_memory(plain, start, memory=None, **settings)
    other = with_memory(bounded, start, memory=200.0, **settings)
    slopes = torch.full((200,), -0.01)
    for _task in range(6):
        for _ in range(150):
            grown, kept = stepped(one, plain, slopes), stepped(other, bounded, slopes)
        one.consolidate(nn.Module(), [])
    assert float(grown.median()) > 4, "each posterior became the next prior"
    assert 0.7 < float(kept.median()) < 2, "below −M·c = 2"


def test_a_prior_pulls_in_proportion_to_the_variance() -> None:
    parameter, start = weights(0.5, -1.5)
    with_prior, without = with_memory(parameter, start, kl_weight=0.8), with_memory(parameter, start)
    prior = bb.BernoulliPosterior({"w": torch.tensor([1.0, 1.0])})
    with_prior.set_prior(prior)
    slopes = torch.tensor([0.3, -0.2])
    pulled, free = stepped(with_prior, parameter, slopes), stepped(without, parameter, slopes)
    natural = start.natural["w"]
    expected = -LR * 0.8 * (1 - torch.tanh(natural) ** 2) * (natural - prior.natural["w"])
    assert torch.allclose(pulled - free, expected, atol=1e-6)


def test_a_state_that_is_older_than_the_setting_is_loaded() -> None:
    parameter, start = weights(0.5, -0.5)
    plain = with_memory(parameter, start, memory=None)
    saved = plain.state_dict()
    del saved["param_groups"][0]["memory"]  # as a version without the setting saved it
    plain.load_state_dict(saved)
    stepped(plain, parameter, torch.ones(2))


@pytest.mark.parametrize("memory", [0.0, -1.0, float("nan"), "long"])
def test_an_invalid_memory_is_rejected(memory: Any) -> None:
    parameter, start = weights(0.0)
    with pytest.raises(InvalidInput, match="memory="):
        with_memory(parameter, start, memory=memory)
