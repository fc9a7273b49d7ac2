"""Samples follow the distributions stated in the paper, and their noise is independent wherever it must be.

All seeds are fixed and the noise is the same everywhere, bit for bit: these tests either
always pass or always fail. Bounds in standard errors say how surprising a number would be.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bayesbinn import BayesBiNN, BernoulliPosterior, kernels
from bayesbinn.kernels.noise import philox

SIZE = 40_000  # more than the kernels process in one piece


def optimizer_at(
    naturals: dict[str, Tensor], temperature: float, seed: int = 0
) -> tuple[BayesBiNN, dict[str, torch.nn.Parameter]]:
    weights = {name: torch.nn.Parameter(torch.zeros_like(value)) for name, value in naturals.items()}
    optimizer = BayesBiNN(
        list(weights.items()),
        lr=0.0,  # a step changes only the noise
        train_set_size=1,
        temperature=temperature,
        init=BernoulliPosterior(naturals),
        seed=seed,
    )
    return optimizer, weights


def relaxed_samples(natural: float, temperature: float, size: int = SIZE, seed: int = 0) -> np.ndarray:
    optimizer, weights = optimizer_at({"w": torch.full((size,), natural)}, temperature, seed)
    with optimizer.sampled_params(train=True):
        return weights["w"].detach().double().numpy().copy()


def cdf(x: np.ndarray, natural: float, temperature: float) -> np.ndarray:
    """P(w ≤ x) of w = tanh((λ + δ)/τ): δ ≤ τ·atanh x − λ, and 2δ is a standard logistic variable."""
    return stats.logistic.cdf(2 * (temperature * np.arctanh(x) - natural))


def paper_density(x: np.ndarray, natural: float, temperature: float) -> np.ndarray:
    """The paper's Concrete density of w_r in (0, 1), transformed to w = 2·w_r − 1."""
    r = (1 + x) / 2
    a = math.exp(2 * natural)
    top = temperature * a * r ** (-temperature - 1) * (1 - r) ** (-temperature - 1)
    return top / (a * r**-temperature + (1 - r) ** -temperature) ** 2 / 2


SETTINGS = [(0.0, 1.0), (0.7, 1.0), (-2.5, 1.0), (0.0, 0.5), (1.5, 0.5), (-0.3, 0.1), (1.0, 0.1), (0.2, 2.0)]


# ---- the distribution --------------------------------------------------------------------------


@pytest.mark.parametrize(("natural", "temperature"), SETTINGS)
def test_cdf_is_the_integral_of_the_papers_density(natural: float, temperature: float) -> None:
    x, h = np.linspace(-0.99, 0.99, 199), 1e-5
    slope = (cdf(x + h, natural, temperature) - cdf(x - h, natural, temperature)) / (2 * h)
    np.testing.assert_allclose(slope, paper_density(x, natural, temperature), rtol=1e-4)


@pytest.mark.parametrize(("natural", "temperature"), SETTINGS)
def test_relaxed_samples_follow_the_concrete_density(natural: float, temperature: float) -> None:
    """Kolmogorov–Smirnov inside |w| < 0.999, and the probability of the two tails outside.

    Float32 cannot resolve the tails: for small τ most samples round to ±1 exactly.
    """
    w = relaxed_samples(natural, temperature, seed=SETTINGS.index((natural, temperature)))
    edge = 0.999
    below, above = cdf(np.array([-edge, edge]), natural, temperature)
    for observed, probability in ((w <= -edge, below), (w >= edge, 1 - above)):
        expected = SIZE * probability
        assert abs(observed.sum() - expected) < 4 * math.sqrt(expected * (1 - probability)) + 1
    inside = w[np.abs(w) < edge]
    assert len(inside) > 500
    test = stats.kstest(inside, lambda x: (cdf(x, natural, temperature) - below) / (above - below))
    assert test.pvalue > 1e-3


def test_the_kolmogorov_smirnov_test_sees_a_small_error() -> None:
    """With this many samples, an error of 0.05 in λ or of a tenth in τ is noticed."""
    w = relaxed_samples(0.7, 1.0)
    assert stats.kstest(w, lambda x: cdf(x, 0.7, 1.0)).pvalue > 1e-3
    assert stats.kstest(w, lambda x: cdf(x, 0.75, 1.0)).pvalue < 1e-6
    assert stats.kstest(w, lambda x: cdf(x, 0.7, 1.1)).pvalue < 1e-6


def test_noise_is_a_halved_logistic_variable() -> None:
    u = kernels.uniform(kernels.noise_key(0, "train", "w"), 0, 200_000).double().numpy()
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    delta = np.arctanh(relaxed_samples(0.0, 1.0, 200_000))  # λ = 0 and τ = 1: w = tanh δ
    assert stats.kstest(delta, stats.logistic(scale=0.5).cdf).pvalue > 1e-3
    variance, kurtosis = math.pi**2 / 12, 4.2
    error = math.sqrt(variance / len(delta))
    assert abs(delta.mean()) < 4 * error
    assert abs(delta.var() - variance) < 4 * variance * math.sqrt((kurtosis - 1) / len(delta))


@pytest.mark.parametrize("natural", [-2.0, -0.5, 0.0, 0.1, 1.0, 3.0])
def test_hard_samples_are_plus_one_with_probability_sigma_of_two_lambda(natural: float) -> None:
    naturals = {"w": torch.full((SIZE,), natural)}
    optimizer, weights = optimizer_at(naturals, temperature=0.3)
    with optimizer.sampled_params(train=False):
        evaluated = weights["w"].detach().clone()
    p = 1 / (1 + math.exp(-2 * natural))
    for sample in (evaluated, BernoulliPosterior(naturals).sample(1, seed=0)["w"][0]):
        assert set(sample.tolist()) == {-1.0, 1.0}
        assert abs(int((sample > 0).sum()) - SIZE * p) < 4 * math.sqrt(SIZE * p * (1 - p))


# ---- independence ------------------------------------------------------------------------------
#
# Noise is compared as 2u − 1, uniform on (−1, 1); the model itself shows it at λ = 0 and τ = 1,
# where w = tanh(½·log(u/(1 − u))) = 2u − 1. A correlation over n pairs has standard error 1/√n.


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """In standard errors."""
    return float(np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()) * math.sqrt(len(a)))


def assert_unrelated(streams: dict[str, np.ndarray]) -> None:
    """No correlation of values or of their squares beyond chance over all pairs."""
    pairs = list(combinations(streams, 2))
    bound = stats.norm.isf(1e-3 / (4 * len(pairs)))  # one in a thousand for the largest of all
    for one, other in pairs:
        a, b = streams[one], streams[other]
        assert abs(correlation(a, b)) < bound, (one, other)
        assert abs(correlation(a * a, b * b)) < bound, (one, other)


def model_noise(steps: int, samples: int) -> dict[str, np.ndarray]:
    """What the model saw of two parameters in several samples of several steps."""
    shape = (200, 60)
    optimizer, weights = optimizer_at({"a": torch.zeros(shape), "b": torch.zeros(shape)}, temperature=1.0)
    seen = {}
    for step in range(steps):
        for sample in range(samples):
            with optimizer.sampled_params(train=True):
                for name, weight in weights.items():
                    seen[f"step {step}, sample {sample}, {name}"] = weight.detach().double().numpy().ravel().copy()
                (0 * (weights["a"] + weights["b"])).sum().backward()
        optimizer.step()
    return seen


def test_noise_is_independent_across_parameters_samples_and_steps() -> None:
    streams = model_noise(steps=4, samples=3)
    assert len(streams) == 24
    assert_unrelated(streams)
    # Also shifted against each other: the next draw is not this one shifted by a few elements.
    names = list(streams)
    for shift in (1, 2, 4, 8, 16, 24, 32, 60, 64, 128, 256):
        shifted = [correlation(streams[a][shift:], streams[b][:-shift]) for a, b in combinations(names, 2)]
        assert max(map(abs, shifted)) < 5.2  # 11 × 276 pairs: one in 1,700 by chance


def test_noise_is_independent_across_elements() -> None:
    w = relaxed_samples(0.0, 1.0, 100_000)
    # Words of one Philox counter are 8 elements apart, blocks 32, pieces of the kernels 32,768.
    for lag in [*range(1, 101), 128, 256, 512, 1024, 4096, 16_384, 32_768, 65_536]:
        assert abs(correlation(w[lag:], w[:-lag])) < 4.5
        assert abs(correlation(w[lag:] ** 2, w[:-lag] ** 2)) < 4.5
    # No 23-bit value occurs more often than by chance: n − (expected distinct values) repeats.
    n, m = len(w), 2**23
    repeats, expected = n - len(np.unique(w)), n - m * -math.expm1(n * math.log1p(-1 / m))
    assert abs(repeats - expected) < 5 * math.sqrt(expected)
    # Every bit of the words is a fair coin.
    bits = kernels.random_bits(kernels.noise_key(0, "train", "w"), 0, 100_000).numpy()
    ones = np.array([((bits >> bit) & 1).sum() for bit in range(32)])
    assert np.abs(ones - n / 2).max() < 4 * math.sqrt(n) / 2
    assert int(bits.max()) < 2**32


def test_noise_of_an_element_does_not_depend_on_the_size_or_order_of_what_is_drawn() -> None:
    single, _ = optimizer_at({"b": torch.zeros(1000)}, temperature=1.0)
    together, _ = optimizer_at({"a": torch.zeros(77), "b": torch.zeros(70_000)}, temperature=1.0)
    samples = []
    for optimizer in (single, together):
        with optimizer.sampled_params(train=True):
            samples.append(optimizer.param_groups[-1]["params"][-1].detach()[:1000].clone())
    assert torch.equal(samples[0], samples[1])


def test_noise_is_independent_across_seeds_and_purposes() -> None:
    def stream(seed: int, purpose: str) -> np.ndarray:
        return 2 * kernels.uniform(kernels.noise_key(seed, purpose, "w"), 0, SIZE).double().numpy() - 1

    purposes = ["train", "evaluate", "posterior", "init", "train/0", "train/1"]
    assert_unrelated({f"{seed} {purpose}": stream(seed, purpose) for seed in (0, 1, 2) for purpose in purposes})


def test_evaluation_samples_share_no_noise_with_training_or_with_each_other() -> None:
    """Hard samples of fair coins, the signs of the training noise, and draws from the posterior."""
    optimizer, weights = optimizer_at({"w": torch.zeros(SIZE)}, temperature=1.0)
    seen = {}
    for draw in range(4):
        for train in (True, False):
            with optimizer.sampled_params(train=train):
                seen[f"train={train} {draw}"] = np.sign(weights["w"].detach().double().numpy())
    for draw, sample in enumerate(optimizer.posterior().sample(4, seed=0)["w"]):
        seen[f"posterior {draw}"] = sample.double().numpy()
    for one, other in combinations(seen, 2):
        assert abs(correlation(seen[one], seen[other])) < 4.2, (one, other)


def test_draws_repeat_no_values_beyond_chance() -> None:
    """Draws 0, 1, 2, 4, ... up to the high word of the counter: no two share more 32-bit words than by chance."""
    key, n = kernels.noise_key(0, "train", "w"), 4096
    draws = [0, 3, *(2**power for power in range(48))]
    words = [kernels.random_bits(key, draw, n).numpy() for draw in draws]
    # Any two draws share n²/2³² = 0.0039 words; all 50 together hold 204,800, with 4.9 repeats among them.
    together = np.concatenate(words)
    repeats = len(together) - len(np.unique(together))
    expected = len(together) ** 2 / 2**33
    assert expected == pytest.approx(4.88, abs=0.01)
    assert repeats < expected + 5 * math.sqrt(expected)
    for one, other in combinations(range(len(draws)), 2):
        assert len(np.intersect1d(words[one], words[other])) <= 1, (draws[one], draws[other])
    assert_unrelated({str(draw): word / 2.0**31 - 1 for draw, word in zip(draws, words, strict=True)})


def test_draws_that_differ_in_one_bit_differ_in_half_of_theirs() -> None:
    key, n = kernels.noise_key(0, "train", "w"), 1024
    first = kernels.random_bits(key, 5, n).numpy().astype(np.uint32)
    for power in range(48):
        other = kernels.random_bits(key, 5 ^ (1 << power), n).numpy().astype(np.uint32)
        changed = int(np.unpackbits((first ^ other).view(np.uint8)).sum())
        assert abs(changed - 16 * n) < 4.5 * math.sqrt(32 * n) / 2


# ---- the generator -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # The known answers that the authors of Philox published with their library, Random123.
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: tuple[int, ...], key: int, words: tuple[int, ...]) -> None:
    result = philox(*(torch.tensor([word]) for word in counter), key)
    assert tuple(int(word) for word in result) == words
