"""The Bayesian learning rule against exact answers: fixed points, enumerated gradients and the limit of small τ.

Each element has its own noise, so one tensor holds many independent replicas of a weight.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from torch import Tensor, nn
from torch.nn import functional as F

from bayesbinn import BayesBiNN, BernoulliPosterior

EPS = 1e-10
SATURATION = 13 * math.log(2)  # from here on tanh = 1 in float32
LARGEST_NOISE = 12 * math.log(2)  # |δ| at u = 2⁻²⁴ and at 1 − 2⁻²⁴


def slope(x: float) -> float:
    """v(x): 1 − tanh²x as float32 rounds it."""
    return math.cosh(x) ** -2 if abs(x) < SATURATION else 0.0


def expected_scale(natural: float, temperature: float) -> float:
    """E[s(λ)]: the density of δ is ½·sech²δ, the integrand sech²((λ + δ)/τ) with its peak at δ = −λ."""
    low = max(-LARGEST_NOISE, -natural - SATURATION * temperature)
    high = min(LARGEST_NOISE, -natural + SATURATION * temperature)
    mean_slope = quad(
        lambda delta: 0.5 * math.cosh(delta) ** -2 * math.cosh((natural + delta) / temperature) ** -2,
        low,
        max(low, high),  # empty where no noise reaches the bend
        epsabs=0,
        epsrel=1e-9,
        limit=200,
    )[0]
    return (mean_slope + EPS) / (temperature * (slope(natural) + EPS))


def fixed_point(weighted_slope: float, prior: float, temperature: float) -> float:
    """The root of λ = λ₀ − N·c·E[s(λ)] closest to λ₀ − N·c."""
    guess = prior - weighted_slope
    return brentq(
        lambda x: x - prior + weighted_slope * expected_scale(x, temperature), guess - 0.5, guess + 0.5, xtol=1e-9
    )


# ---- the fixed point of a linear loss ----------------------------------------------------------

# N·c and λ₀. The noise of s grows as cosh²λ, so that larger |λ| needs more samples in a step.
LINEAR = [
    #  N·c   λ₀   samples
    (-0.5, 0.0, 20),
    (1.0, 0.0, 60),
    (-2.0, 0.0, 700),
    (3.0, 0.0, 5000),
    (-3.0, -2.0, 500),
    (2.0, 3.0, 250),
    (-1.5, 0.5, 400),
]


@pytest.fixture(scope="module")
def averages() -> list[np.ndarray]:
    """Time averages of λ, one per replica, for every line of LINEAR.

    A row of a parameter is a replica, its columns are the Monte-Carlo samples of a step: they
    share λ, and the mean of their updates is the update with the mean of their s⊙g. Half of the
    replicas start 0.3 above λ₀ − N·c and half below, so that the effect of the start cancels.
    """
    replicas, lr, burn_in, steps, size = 16, 0.1, 40, 60, 50
    offset = torch.tensor([[0.3], [-0.3]]).repeat(replicas // 2, 1)
    weights, priors, starts = {}, {}, {}
    for i, (weighted_slope, prior, samples) in enumerate(LINEAR):
        weights[str(i)] = nn.Parameter(torch.zeros(replicas, samples))
        priors[str(i)] = torch.full((replicas, samples), prior)
        starts[str(i)] = priors[str(i)] - weighted_slope + offset
    optimizer = BayesBiNN(
        list(weights.items()),
        lr=lr,
        train_set_size=size,
        temperature=0.1,
        prior=BernoulliPosterior(priors),
        init=BernoulliPosterior(starts),
        seed=1,
    )
    sums = [np.zeros(replicas) for _ in LINEAR]
    for step in range(burn_in + steps):
        with optimizer.sampled_params(train=True):
            sum(case[0] / size * weights[str(i)].sum() for i, case in enumerate(LINEAR)).backward()
        optimizer.step()
        for i, total in enumerate(sums):
            natural = optimizer.state[weights[str(i)]]["natural"]
            natural.copy_(natural.mean(dim=1, keepdim=True).expand_as(natural))
            if step >= burn_in:
                total += natural[:, 0].double().numpy() / steps
    return sums


@pytest.mark.parametrize("case", range(len(LINEAR)))
def test_linear_loss_settles_at_the_root(case: int, averages: list[np.ndarray]) -> None:
    weighted_slope, prior, _ = LINEAR[case]
    root = fixed_point(weighted_slope, prior, temperature=0.1)
    assert root == pytest.approx(prior - weighted_slope, rel=0.02)
    # Replicas are independent, whatever the autocorrelation within each: no correction is needed.
    error = averages[case].std(ddof=1) / math.sqrt(len(averages[case]))
    assert error < 0.02 * abs(root)
    assert abs(averages[case].mean() - root) < 3 * error


@pytest.mark.parametrize(("weighted_slope", "prior"), [(-0.5, 0.0), (0.75, 0.25)])
def test_linear_loss_settles_at_the_root_with_one_sample_per_step(weighted_slope: float, prior: float) -> None:
    """The plain loop: one sample, one backward, one step, on 400 replicas of the weight."""
    root, replicas = fixed_point(weighted_slope, prior, temperature=0.1), 400
    weight = nn.Parameter(torch.zeros(replicas))
    optimizer = BayesBiNN(
        [("w", weight)],
        lr=0.02,
        train_set_size=1000,
        temperature=0.1,
        prior=BernoulliPosterior({"w": torch.full((replicas,), prior)}),
        seed=2,
    )
    average, burn_in, steps = torch.zeros(replicas, dtype=torch.float64), 300, 250
    for step in range(burn_in + steps):
        with optimizer.sampled_params(train=True):
            (weighted_slope / 1000 * weight).sum().backward()
        optimizer.step()
        if step >= burn_in:
            average += optimizer.state[weight]["natural"].double() / steps
    error = float(average.std()) / math.sqrt(replicas)
    assert error < 0.02 * abs(root)
    assert abs(float(average.mean()) - root) < 3 * error


@pytest.mark.parametrize("natural", [0.5, 1.0, 3.0])
def test_expected_scale_has_closed_forms(natural: float) -> None:
    """The integral behind the roots: at τ = 1 it is 2·coth²λ·(λ·coth λ − 1); far out, πτ/sin(πτ)."""
    coth = 1 / math.tanh(natural)
    assert expected_scale(natural, 1.0) == pytest.approx(2 * coth**2 * (natural * coth - 1), rel=1e-5)
    assert expected_scale(8.0 - natural, 0.1) == pytest.approx(0.1 * math.pi / math.sin(0.1 * math.pi), rel=1e-3)


def test_at_temperature_one_the_root_is_far_off() -> None:
    """−N·c = 1, λ₀ = 0: the answer is λ = 1, but the relaxation's only root is 12.2.

    There the rare samples with δ < −3 decide: s reaches 1e7 with a probability of 1e-7. So the
    mean is taken over every value that the 23 bits of noise can have.
    """
    u = (np.arange(2**23) + 0.5) / 2**23
    delta = 0.5 * np.log(u / (1 - u))
    delta = delta[delta < -0.0]  # what follows looks at λ ≥ 9.02, where v(λ + δ) = 0 for δ ≥ 0

    def scale(natural: float) -> float:
        x = natural + delta[: np.searchsorted(delta, SATURATION - natural)]
        return ((np.cosh(x) ** -2).sum() / 2**23 + EPS) / EPS

    assert brentq(lambda x: x - scale(x), 9.02, 20.0, xtol=1e-3) == pytest.approx(12.2, abs=0.05)
    # Below the cutoff at 9.01, E[s(λ)] exceeds λ everywhere, so there is no root.
    assert all(expected_scale(x, 1.0) > x for x in np.arange(0.0, 9.01, 0.05))
    # The relaxation's bias depends on τ: at 0.1 the root is 1.006.
    assert fixed_point(-1.0, 0.0, temperature=0.1) == pytest.approx(1.006, abs=1e-3)


def test_one_step_climbs_at_temperature_one_and_falls_back_at_a_tenth() -> None:
    """The optimizer itself, three times as far as the right answer: −N·c = 1 and λ = 3."""
    replicas = 100_000
    for temperature, mean_scale in ((1.0, 4.0700), (0.1, 1.0164)):
        weight = nn.Parameter(torch.zeros(replicas))
        start = BernoulliPosterior({"w": torch.full((replicas,), 3.0)})
        optimizer = BayesBiNN([("w", weight)], lr=0.5, train_set_size=1, temperature=temperature, init=start, seed=0)
        with optimizer.sampled_params(train=True):
            (-weight).sum().backward()
        optimizer.step()
        # λ' = ½·λ + ½·s
        scale = 2 * optimizer.posterior().natural["w"].double() - 3
        error = float(scale.std()) / math.sqrt(replicas)
        assert error < 0.1
        assert abs(float(scale.mean()) - expected_scale(3.0, temperature)) < 3 * error
        assert expected_scale(3.0, temperature) == pytest.approx(mean_scale, rel=1e-3)


def test_saturated_weights_rest_at_another_fixed_point() -> None:
    """Beyond |λ| = 9.33 no noise reaches the bend of tanh at τ = 0.1 and ε makes s = 1/τ: λ = λ₀ − N·c/τ is stable.

    If the learning rate is so large that the noise of s throws λ that far, the weight stays there.
    """
    assert expected_scale(20.0, 0.1) == pytest.approx(10.0)
    weight = nn.Parameter(torch.zeros(1000))
    start = BernoulliPosterior({"w": torch.full((1000,), 15.0)})
    optimizer = BayesBiNN([("w", weight)], lr=0.5, train_set_size=1, temperature=0.1, init=start, seed=0)
    for _ in range(30):
        with optimizer.sampled_params(train=True):
            (-2 * weight).sum().backward()
        optimizer.step()
    torch.testing.assert_close(optimizer.posterior().natural["w"], torch.full((1000,), 20.0), rtol=1e-5, atol=0.0)


# ---- the gradient against all 1,024 networks -----------------------------------------------------

TEMPERATURES = (0.5, 0.2, 0.1, 0.05)


class Quadratic:
    """ℓ(w) = ½·wᵀAw + bᵀw of ten weights under q with natural parameters λ."""

    def __init__(self) -> None:
        generator = np.random.default_rng(4)
        a = generator.normal(size=(10, 10))
        self.a = (a + a.T) / 2
        self.b = generator.normal(size=10)
        self.natural = generator.uniform(-1.2, 1.2, size=10).astype(np.float32).astype(float)

    def loss(self, w: Tensor) -> Tensor:
        """One loss per row of w."""
        a, b = torch.tensor(self.a, dtype=w.dtype), torch.tensor(self.b, dtype=w.dtype)
        return 0.5 * (w @ a * w).sum(-1) + w @ b

    def exact_gradient(self) -> np.ndarray:
        """∇μ E_q[ℓ] = Σ_w ℓ(w)·∂q(w)/∂μ over all networks, with q(w) = Π (1 + w_j·μ_j)/2."""
        networks = 1 - 2 * ((np.arange(1024)[:, None] >> np.arange(10)) & 1).astype(float)  # [1024, 10]
        losses = self.loss(torch.tensor(networks)).numpy()
        factors = (1 + networks * np.tanh(self.natural)) / 2
        probability = factors.prod(axis=1)
        assert probability.sum() == pytest.approx(1)
        return (losses * probability) @ (networks / 2 / factors)

    def relaxed_gradient(self, temperature: float) -> np.ndarray:
        """E[s⊙g] without sampling: weights are independent, so one-dimensional integrals suffice."""

        def mean(function: str, natural: float) -> float:
            # y = (λ + δ)/τ; the density of δ is ½·sech²δ. sech²y/τ·½·sech²δ·τ/v(λ) is the weight of s.
            def integrand(y: float) -> float:
                density = 0.5 * math.cosh(temperature * y - natural) ** -2
                value = math.tanh(y) if "w" in function else 1.0
                return value * density * (math.cosh(y) ** -2 / slope(natural) if "s" in function else temperature)

            far = SATURATION if "s" in function else (abs(natural) + 18) / temperature
            edges = [-far, -8.0, 0.0, 8.0, far]
            return sum(quad(integrand, *piece, epsabs=1e-11, limit=200)[0] for piece in itertools.pairwise(edges))

        w = np.array([mean("w", x) for x in self.natural])
        s = np.array([mean("s", x) for x in self.natural])
        sw = np.array([mean("sw", x) for x in self.natural])
        diagonal = np.diag(self.a)
        return s * (self.a @ w - diagonal * w + self.b) + diagonal * sw

    def sampled_gradient(self, temperature: float, rows: int) -> Tensor:
        """s⊙g of many samples, as the optimizer computes it: with α = N = 1 and κ = 0, λ' = λ − s⊙g."""
        natural = torch.tensor(self.natural, dtype=torch.float32).repeat(rows, 1)
        weight = nn.Parameter(torch.zeros(rows, 10))
        optimizer = BayesBiNN(
            [("w", weight)],
            lr=1.0,
            train_set_size=1,
            temperature=temperature,
            kl_weight=0.0,
            init=BernoulliPosterior({"w": natural}),
            seed=3,
        )
        with optimizer.sampled_params(train=True):
            self.loss(weight).sum().backward()
        optimizer.step()
        return (natural.double() - optimizer.posterior().natural["w"].double()).view(rows, 10)


def test_relaxed_gradient_approaches_the_exact_one() -> None:
    target = Quadratic()
    exact = target.exact_gradient()
    norm = float(np.linalg.norm(exact))
    distances = []
    for temperature in TEMPERATURES:
        samples = target.sampled_gradient(temperature, rows=200_000)
        estimate = samples.mean(0).numpy()
        errors = samples.std(0).numpy() / math.sqrt(len(samples))
        error = float(np.linalg.norm(errors))
        assert error <= 0.05 * norm

        # The samples agree with the relaxation's own expectation, component by component ...
        assert np.abs((estimate - target.relaxed_gradient(temperature)) / errors).max() < 4
        # ... which differs from the exact gradient by the bias of the relaxation.
        distances.append(float(np.linalg.norm(estimate - exact)))
        if temperature == 0.05:
            assert distances[-1] <= 3 * error
        if temperature == 0.5:
            assert distances[-1] > 6 * error
    assert distances == sorted(distances, reverse=True)


def test_bias_of_the_relaxation_falls_with_the_temperature() -> None:
    """The same without sampling: the bias at least halves with τ."""
    target = Quadratic()
    exact = target.exact_gradient()
    temperatures = (0.4, 0.2, 0.1, 0.05, 0.025)
    biases = [float(np.linalg.norm(target.relaxed_gradient(t) - exact)) for t in temperatures]
    for coarse, fine in itertools.pairwise(biases):
        assert fine < 0.55 * coarse
    assert biases[-1] < 0.02 * np.linalg.norm(exact)


# ---- the limit of small temperatures -----------------------------------------------------------


def test_at_tiny_temperature_the_rule_is_a_running_mean_of_gradients() -> None:
    """τ = 1e-10, λ = ±10: r ← (1 − α)·r − α·g and w = sign(r), with r = τλ/N."""
    torch.manual_seed(0)
    x = torch.randn(64, 12)
    y = (x @ torch.randn(12, 3)).argmax(dim=1)
    model = nn.Sequential(
        nn.Linear(12, 10, bias=False),
        nn.BatchNorm1d(10, affine=False),
        nn.ReLU(),
        nn.Linear(10, 3, bias=False),
        nn.BatchNorm1d(3, affine=False),
    )
    size, temperature, lr = 1000, 1e-10, 0.02
    binary = [(name, p) for name, p in model.named_parameters() if p.ndim == 2]
    optimizer = BayesBiNN(binary, lr=lr, train_set_size=size, temperature=temperature, seed=0)
    natural = torch.cat([optimizer.state[p]["natural"].flatten() for _, p in binary])
    assert set(natural.tolist()) == {-10.0, 10.0}

    r = natural.double() * temperature / size
    cases = inside = flips = 0
    before = torch.sign(natural)
    for _ in range(1000):
        batch = torch.randperm(64)[:16]
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x[batch]), y[batch]).backward()
        gradient = torch.cat([p.grad.flatten() for _, p in binary]).double()
        optimizer.step()

        r = (1 - lr) * r - lr * gradient
        natural = torch.cat([optimizer.state[p]["natural"].flatten() for _, p in binary])
        weight = torch.cat([p.detach().flatten() for _, p in binary])
        outside = natural.abs() > 20
        assert torch.equal(weight[outside].double(), torch.sign(r)[outside])
        torch.testing.assert_close(
            natural.double() * temperature / size, r, rtol=1e-4, atol=1e-6 * float(r.abs().max())
        )
        cases, inside = cases + len(r), inside + int((~outside).sum())
        flips, before = flips + int((weight != before).sum()), weight
    assert cases == 150_000
    assert inside < 0.001 * cases
    assert flips > 500  # weights moved: the comparison was about something
