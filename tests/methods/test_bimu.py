"""BiMU: its step by hand and by autograd, its bounds, and what it learns."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbinn as bb
from bayesbinn import kernels
from bayesbinn.errors import InvalidInput
from bayesbinn.kernels import reference
from bayesbinn.methods import get_method

AUTHORS = {"lr": 4.9, "max_lr": 0.0023, "gain": 161.3, "curvature": 3.76, "memory_size": 1e5}
RULE = kernels.BiMUSettings(**AUTHORS, samples=1)


def start_at(natural: Tensor, **settings: Any) -> tuple[nn.Parameter, bb.BiMU]:
    weight = nn.Parameter(torch.zeros_like(natural))
    optimizer = bb.BiMU([("w", weight)], seed=3, **settings)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["natural"] = natural
    optimizer.load_state_dict(state)
    return weight, optimizer


def test_the_defaults_are_the_authors() -> None:
    assert get_method("bimu").defaults == {
        **AUTHORS,
        "temperature": 1.0,
        "initial_strength": 0.1,
        "mc_samples": 5,
        "independent_noise": False,
        "seed": None,
    }


# ---- one step --------------------------------------------------------------------------------------


def test_one_step_by_hand() -> None:
    """λ = ½·log 3, so tanh λ = ½ and 1 − tanh²λ = ¾; η = 2, η_max = ½, a = 3, k = 4, N = 10, g = ±1 from S = 2."""
    rule = kernels.BiMUSettings(lr=2.0, max_lr=0.5, gain=3.0, curvature=4.0, memory_size=10, samples=2)
    start = math.log(3) / 2  # c = 3
    natural = torch.tensor([start, start, 0.0])
    new = reference.bimu_step(natural, torch.tensor([2.0, -2.0, 0.0]), rule)
    toward = start - (2 * 3 * 1 + start * 3 / 10) / (3 + 2 * 3 * 0.5 + 2 * 3 + 2)
    away = start - (2 * 3 * -1 + start * 3 / 10) / (3 - 2 * 3 * 0.5 + 2 * 3 + 2)
    torch.testing.assert_close(new, torch.tensor([toward, away, 0.0]))


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_step_is_the_formula_with_autograds_gradient(samples: int, temperature: float) -> None:
    """∂ℓ/∂λ through w = tanh((λ + δ)/τ), by autograd on the same noise, in float64."""
    start = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    target = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    weight, optimizer = start_at(start, temperature=temperature, max_lr=0.1)
    natural = start.double().requires_grad_()
    key = kernels.noise_key(3, "train", "w")
    for draw in range(samples):
        with optimizer.sampled_params(train=True):
            (weight - target).square().mean().backward()
        u = kernels.uniform(key, draw, start.numel()).double().view_as(start)
        w = torch.tanh((natural + torch.logit(u) / 2) / temperature)
        ((w - target).square().mean() / samples).backward()
    optimizer.step()

    assert natural.grad is not None
    mean, x = torch.tanh(start.double()), start.double()
    g, c = AUTHORS["gain"] * natural.grad, AUTHORS["curvature"] * (1 - mean**2)
    step = (AUTHORS["lr"] * g + x * c / 1e5) / (c + 2 * g * mean + 2 * g.abs() + 1 / 0.1)
    torch.testing.assert_close(optimizer.posterior().natural["w"].double(), x - step, rtol=1e-5, atol=1e-6)
    assert torch.equal(weight, bb.sign(optimizer.posterior().natural["w"]))


def test_chunks_and_layouts_do_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    size = 2 * (1 << 15) + 77
    natural, total = torch.randn(2, size, generator=generator)
    whole = reference.bimu_step(natural, total, RULE)
    parameter, updated = torch.zeros(size), natural.clone()
    kernels.bimu_update([parameter], [updated], [total], RULE)
    assert torch.equal(updated, whole) and torch.equal(parameter, bb.sign(whole))

    slope, sums = torch.rand(6, 4, generator=generator), [torch.ones(6, 4) for _ in range(2)]
    gradient = torch.randn(4, 6, generator=generator).T
    kernels.accumulate_slope(sums, [slope, slope], [gradient, gradient.to(torch.bfloat16)], 0.5)
    torch.testing.assert_close(sums[0], 1 + 2 * slope * gradient)
    torch.testing.assert_close(sums[1], 1 + 2 * slope * gradient.bfloat16().float())


# ---- bounds ----------------------------------------------------------------------------------------


def test_steps_are_bounded() -> None:
    """By η·η_max·a·|g|; toward 0 also by η/2. The fading adds at most |λ|/N."""
    generator = torch.Generator().manual_seed(0)
    natural = torch.randn(10_000, generator=generator) * 4
    g = torch.randn(10_000, generator=generator) * 10 ** (torch.rand(10_000, generator=generator) * 12 - 6)
    moved = (reference.bimu_step(natural, g, RULE) - natural).abs()
    rest = natural.abs() / RULE.memory_size + 1e-6
    assert bool((moved <= RULE.lr * RULE.max_lr * RULE.gain * g.abs() * 1.0001 + rest).all())
    toward = g * natural > 0
    assert bool((moved[toward] <= RULE.lr / 2 + rest[toward]).all())
    assert float(moved[toward].max()) > 0.95 * RULE.lr / 2, "large gradients reach the bound"


def test_a_certain_weight_flips_slowly_and_an_uncertain_one_does_not() -> None:
    natural = torch.tensor([0.0, 1.0, 2.0])
    g = torch.full((3,), 0.5)
    down = natural - reference.bimu_step(natural, g, RULE)
    up = reference.bimu_step(natural, -g, RULE) - natural
    torch.testing.assert_close(down[0], up[0])
    assert bool((down[1:] < up[1:]).all())
    assert down[2] < down[1] < down[0]


def test_without_a_loss_the_posterior_fades_towards_fair_coins() -> None:
    """With η_max large, by exactly 1/N per step."""
    start = torch.tensor([-2.0, -0.5, 0.5, 3.0])
    weight, optimizer = start_at(start, max_lr=1e9, memory_size=10.0)
    for _ in range(7):
        with optimizer.sampled_params(train=True):
            (weight * 0).sum().backward()
        optimizer.step()
    torch.testing.assert_close(optimizer.posterior().natural["w"], start * 0.9**7, rtol=1e-4, atol=0)


# ---- settings and learning -------------------------------------------------------------------------


def test_bad_settings_get_one_line() -> None:
    weight = nn.Parameter(torch.zeros(3))
    for key, value in {
        "max_lr": 0,
        "gain": 0,
        "curvature": -1,
        "memory_size": 0,
        "temperature": 0,
        "initial_strength": 0,
        "mc_samples": 0,
    }.items():
        with pytest.raises(InvalidInput, match=f"{key}={value}") as caught:
            bb.BiMU([("w", weight)], **{key: value})  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_a_group_added_between_two_samples_waits_for_the_next_step() -> None:
    weight, optimizer = start_at(torch.randn(4))
    other = nn.Parameter(torch.zeros(4))
    with optimizer.sampled_params(train=True):
        weight.sum().backward()
    optimizer.add_param_group({"params": [("v", other)]})
    before = optimizer.posterior().natural["w"].clone()
    with optimizer.sampled_params(train=True):
        weight.sum().backward()
    optimizer.step()
    assert optimizer.state[weight]["step"] == 1 and optimizer.state[other]["step"] == 0
    assert bool((optimizer.posterior().natural["w"] < before).all())


def blobs(count: int) -> tuple[Tensor, Tensor]:
    """Two Gaussian blobs in ten dimensions, at opposite ends of a diagonal."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (count,), generator=generator)
    diagonal = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0])
    return diagonal * (2 * y - 1).unsqueeze(1) + torch.randn(count, 10, generator=generator), y


def test_two_blobs_are_learned_one_example_at_a_time() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.Tanh(), nn.Linear(20, 2, bias=False))
    optimizer = bb.BiMU(bb.split_parameters(model)[0], seed=0)
    x, y = blobs(400)
    for index in range(300):

        def closure(row: slice = slice(index, index + 1)) -> Tensor:
            loss = F.cross_entropy(model(x[row]) / 4, y[row])
            loss.backward()
            return loss

        optimizer.step(closure)
    with torch.no_grad():
        assert float((model(x[300:]).argmax(1) == y[300:]).float().mean()) >= 0.95
    strengths = torch.cat([value.abs().flatten() for value in optimizer.posterior().natural.values()])
    assert 0.1 < float(strengths.median()) < 5, "it learned, and the weights can still change"
