"""The native kernels give the same bits as the torch reference; noise and elementary functions are correct."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesbinn import kernels
from bayesbinn.kernels import elementary, native, noise, reference
from bayesbinn.kernels.dispatch import KERNELS, Kernel
from bayesbinn.methods import METHODS

# The native kernels without the dispatch around them.
compiled = SimpleNamespace(**{name: kernel.native for name, kernel in KERNELS.items()})
needs_native = pytest.mark.skipif(not native.available, reason=f"no native kernels: {native.reason}")

SIZES = [0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 1000, 100_003]
TEMPERATURES = [1e-10, 1e-2, 1.0, 1.7]
SPECIAL = [0.0, -0.0, 1e-30, -1e-30, 9.0109, -9.0109, 10.0, -10.0, 1e30, -1e30, math.inf, -math.inf]
LARGEST = float(torch.finfo(torch.float32).max)
KEY, DRAW = 0x0123456789ABCDEF, (1 << 40) + 5


def values(size: int, seed: int, scale: float = 1.0, shifted: bool = False) -> Tensor:
    """Random numbers; `shifted`: a view that is not aligned to vectors."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(size + shifted, generator=generator) * scale
    return drawn[1:] if shifted else drawn


def naturals(size: int, seed: int = 0, shifted: bool = False) -> Tensor:
    """λ of all kinds, in runs of 128: uncertain; certain; certain, but v(λ) > 0; far away; and special values."""
    natural = values(size, seed, 4.0, shifted)
    turn = torch.arange(size) // 128 % 4
    side = reference.sign(natural)
    natural[turn == 1] += 10 * side[turn == 1]
    natural[turn == 2] = 8.7 * side[turn == 2]
    natural[turn == 3] *= 1e30
    natural[(turn == 3) & (torch.arange(size) % 3 == 0)] *= math.inf
    special = torch.tensor(SPECIAL)[:size]
    natural[: special.numel()] = special
    return natural


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.view(torch.int32), b.view(torch.int32)))


@pytest.fixture(autouse=True)
def _reference_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread for the reference, whose many small operations would wait for each other; two for the kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many threads the kernels use."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    return int(request.param)


# ---- noise and elementary functions ------------------------------------------------------------


def test_philox_known_answers() -> None:
    """The vectors published with Random123."""
    ones = 0xFFFFFFFF
    for word, key, expected in (
        (0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (ones, (1 << 64) - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ):
        counter = torch.tensor([word])
        assert [int(w) for w in noise.philox(counter, counter, counter, counter, key)] == expected


@needs_native
def test_native_philox_known_answers() -> None:
    largest = (1 << 64) - 1
    assert native._native.random_bits(0, 0, 0)[0::8] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    # Counter 2⁶⁴ − 1 is number 7 of block 2⁶¹ − 1.
    words = native._native.random_bits(largest, largest, (1 << 61) - 1)
    assert words[7::8] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@needs_native
@pytest.mark.parametrize("first", [0, 32, (1 << 34) - 32, 1 << 34, 1 << 40])
def test_native_random_bits(first: int) -> None:
    expected = noise.random_bits(KEY, DRAW, 32, first=first).tolist()
    assert native._native.random_bits(KEY, DRAW, first // 32) == expected


# All of tanh's range below its saturation, both signs.
GRID = torch.linspace(-9.01, 9.01, 200_001)


def test_tanh_accuracy() -> None:
    assert float((elementary.tanh(GRID).double() - torch.tanh(GRID.double())).abs().max()) < 2e-7
    beyond = torch.tensor([9.0110, 10.0, 1e30, math.inf])
    assert elementary.tanh(beyond).tolist() == [1.0] * 4
    assert elementary.tanh(-beyond).tolist() == [-1.0] * 4
    assert math.copysign(1, float(elementary.tanh(torch.tensor([-0.0])))) == -1


def test_sech2_accuracy() -> None:
    exact = 1 / torch.cosh(GRID.double()) ** 2
    assert float(((elementary.sech2(GRID).double() - exact).abs() / exact).max()) < 3e-6
    assert elementary.sech2(torch.tensor([9.0110, -9.0110, 1e30, math.inf])).tolist() == [0.0] * 4


def test_half_logit_accuracy() -> None:
    u = (torch.arange(1 << 23, dtype=torch.float32)[::31] + 0.5) * 2.0**-23
    exact = 0.5 * torch.log(u.double() / (1 - u.double()))
    assert float((elementary.half_logit(u).double() - exact).abs().max()) < 1e-6
    ends = elementary.half_logit(torch.tensor([2.0**-24, 1 - 2.0**-24]))
    assert float(ends.abs().max()) <= elementary.MAX_LOGISTIC * (1 + 1e-6)


# ---- native against reference -----------------------------------------------------------------------


@needs_native
def test_the_chosen_instruction_set_is_in_use() -> None:
    assert native.isa() in ("portable", "avx2", "avx512", "neon")
    assert native.isa() == os.environ.get("BAYESBINN_ISA", native.isa())


def in_layouts(build: Callable[[int, bool], tuple[list[Tensor], list[Tensor]]]) -> None:
    """Compare what `build(size, shifted)` returns, tensors worked on by native and by reference, in all layouts."""
    for size in SIZES:
        for shifted in (False, True):
            actual, expected = build(size, shifted)
            for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
                assert same_bits(a, e), f"size {size}, shifted {shifted}: output {index} differs"


def filled(size: int, shifted: bool) -> Tensor:
    """A parameter whose old content must not matter."""
    return values(size, 99, shifted=shifted)


@needs_native
class TestSameAsReference:
    """Bit for bit, on every size, alignment and kind of λ."""

    @pytest.mark.parametrize("temperature", TEMPERATURES)
    def test_relaxed_sample(self, temperature: float, threads: int) -> None:
        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            p, natural = filled(size, shifted), naturals(size, shifted=shifted)
            compiled.write_relaxed_sample([p], [natural], [KEY], DRAW, temperature)
            return [p], [reference.relaxed_sample(natural, KEY, DRAW, 0, temperature)]

        in_layouts(build)

    def test_hard_sample(self, threads: int) -> None:
        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            p, natural = filled(size, shifted), naturals(size, shifted=shifted)
            compiled.write_hard_sample([p], [natural], [KEY], DRAW)
            return [p], [reference.hard_sample(natural, KEY, DRAW, 0)]

        in_layouts(build)

    def test_sign_and_tanh(self, threads: int) -> None:
        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            hard, soft, source = filled(size, shifted), filled(size, shifted), naturals(size, shifted=shifted)
            compiled.write_sign([hard], [source])
            compiled.write_tanh([soft], [source], 0.7)
            return [hard, soft], [reference.sign(source), reference.tanh(source * 0.7)]

        in_layouts(build)

    @pytest.mark.parametrize("beta", [1.0, 1.3, 1e4])
    def test_pmf_weights_and_sign(self, beta: float, threads: int) -> None:
        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            soft, hard = filled(size, shifted), filled(size, shifted)
            logits = values(2 * size, 3, shifted=shifted).view(2, size)
            logits[:, : size // 3] = 0.25  # equal logits: the sign of zero
            compiled.write_pmf_weights([soft], [logits], beta)
            compiled.write_pmf_sign([hard], [logits])
            difference = logits[1] - logits[0]
            return [soft, hard], [reference.tanh(difference * (beta / 2)), reference.sign(difference)]

        in_layouts(build)

    @pytest.mark.parametrize("temperature", TEMPERATURES)
    def test_accumulate_scaled(self, temperature: float, threads: int) -> None:
        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            total, natural, g = values(size, 1, shifted=shifted), naturals(size, shifted=shifted), values(size, 2)
            expected = total + reference.gradient_scale(natural, KEY, DRAW, 0, temperature, 1e-10) * g
            compiled.accumulate_scaled([total], [natural], [g], [KEY], DRAW, temperature, 1e-10)
            return [total], [expected]

        in_layouts(build)

    @pytest.mark.parametrize("temperature", TEMPERATURES)
    @pytest.mark.parametrize("with_momentum", [False, True])
    @pytest.mark.parametrize("with_prior", [False, True])
    @pytest.mark.parametrize("draw", [DRAW, None])
    @pytest.mark.parametrize("steady", [False, True])
    def test_bayesbinn_update(
        self, temperature: float, with_momentum: bool, with_prior: bool, draw: int | None, steady: bool
    ) -> None:
        rule = reference.RuleSettings(
            0.013, temperature, 1e-10, 60000 / 7, kl_weight=0.3, momentum=0.9, steady=steady, relaxation=0.2
        )

        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            p, natural, g = filled(size, shifted), naturals(size, shifted=shifted), values(size, 2, shifted=shifted)
            momentum = values(size, 4, shifted=shifted) if with_momentum else None
            prior = values(size, 5, shifted=shifted) if with_prior else None
            scaled = g
            if draw is not None:
                scaled = reference.gradient_scale(natural, KEY, draw, 0, temperature, rule.eps) * g
            new, average = reference.natural_gradient_step(natural, scaled, momentum, prior, rule)
            compiled.bayesbinn_update([p], [natural], [g], [momentum], [prior], [KEY], draw, rule)
            if momentum is None or average is None:
                return [p, natural], [reference.sign(new), new]
            return [p, natural, momentum], [reference.sign(new), new, average]

        in_layouts(build)

    @pytest.mark.parametrize("temperature", TEMPERATURES)
    @pytest.mark.parametrize("held", [False, True])
    @pytest.mark.parametrize("with_slope", [False, True])
    def test_training_sample_and_back(self, temperature: float, held: bool, with_slope: bool) -> None:
        """`held` saves writes, but the result is the full sample, and then the full mode again."""

        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            natural = naturals(size, shifted=shifted)
            p = filled(size, shifted)
            if held:
                p.copy_(reference.sign(natural))
            slope = filled(size, shifted) if with_slope else None
            compiled.write_training_sample([p], [natural], [slope], [KEY], DRAW, temperature, held)
            sample = p.clone()
            compiled.restore_mode([p], [natural], temperature)
            found = [sample, p]
            expected = [reference.relaxed_sample(natural, KEY, DRAW, 0, temperature), reference.sign(natural)]
            if slope is not None:
                found.append(slope)
                expected.append(reference.sample_slope(natural, KEY, DRAW, 0, temperature))
            return found, expected

        in_layouts(build)

    @pytest.mark.parametrize("temperature", TEMPERATURES)
    @pytest.mark.parametrize("with_momentum", [False, True])
    @pytest.mark.parametrize("steady", [False, True])
    def test_update_from_slopes(self, temperature: float, with_momentum: bool, steady: bool) -> None:
        """The same bits as the update that draws the noise again."""
        rule = reference.RuleSettings(
            0.013, temperature, 1e-10, 60000 / 7, 0.3, 0.9 if with_momentum else 0.0, steady, 0.2
        )

        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            states = []
            slope = reference.sample_slope(naturals(size, shifted=shifted), KEY, DRAW, 0, temperature)
            for from_slopes in (True, False):
                p, natural, g = filled(size, shifted), naturals(size, shifted=shifted), values(size, 2)
                m, prior = (values(size, 4) if with_momentum else None), values(size, 5)
                if from_slopes:
                    compiled.bayesbinn_update_from_slopes([p], [natural], [g], [slope], [m], [prior], rule)
                else:
                    compiled.bayesbinn_update([p], [natural], [g], [m], [prior], [KEY], DRAW, rule)
                states.append([p, natural, *([] if m is None else [m])])
            return states[0], states[1]

        in_layouts(build)

    @pytest.mark.parametrize("weight_decay", [0.0, 0.01])
    def test_adam(self, weight_decay: float, threads: int) -> None:
        settings = reference.AdamSettings.at_step(3, 1e-3, (0.9, 0.999), 1e-8, weight_decay)

        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            value, g, first = (values(size, seed, shifted=shifted) for seed in (1, 2, 3))
            second = values(size, 4, shifted=shifted).square()
            decayed = g + value * weight_decay if weight_decay else g
            step, *moments = reference.adam_direction(decayed, first, second, settings)
            expected = [value - step, *moments]
            compiled.adam([value], [g], [first], [second], settings)
            return [value, first, second], expected

        in_layouts(build)

    def test_adam_s_moments_become_zero_before_they_become_subnormal(self, threads: int) -> None:
        settings = reference.AdamSettings.at_step(3, 1e-3, (0.9, 0.999), 1e-8, 0.0)
        tiny = torch.finfo(torch.float32).tiny

        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            value, g = values(size, 1, shifted=shifted), torch.zeros(size)
            first, second = (values(size, seed, 2 * tiny, shifted=shifted) for seed in (2, 3))
            second.abs_()
            step, *moments = reference.adam_direction(g, first, second, settings)
            expected = [value - step, *moments]
            compiled.adam([value], [g], [first], [second], settings)
            for moment in (first, second):
                assert not ((moment != 0) & (moment.abs() < tiny)).any()
            assert size < 100 or 0 < first.count_nonzero() < size, "some are large enough to stay"
            return [value, first, second], expected

        in_layouts(build)

    def test_ste_update(self, threads: int) -> None:
        settings = reference.AdamSettings.at_step(1, 0.5, (0.9, 0.999), 1e-8, 1e-4)

        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            p = filled(size, shifted)
            latent, g, first = (values(size, seed, shifted=shifted) for seed in (1, 2, 3))
            second = values(size, 4, shifted=shifted).square()
            step, *moments = reference.adam_direction(g + latent * 1e-4, first, second, settings)
            new = (latent - step).clamp(-1.25, 1.25)
            compiled.ste_update([p], [latent], [g], [first], [second], 1.25, settings)
            return [p, latent, first, second], [reference.sign(new), new, *moments]

        in_layouts(build)

    def test_bop_update(self, threads: int) -> None:
        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            weight = reference.sign(values(size, 1, shifted=shifted))
            average, g = (values(size, seed, 1e-3, shifted=shifted) for seed in (2, 3))
            expected = reference.bop_step(weight, average, g, 1e-2, 1e-4)
            compiled.bop_update([weight], [average], [g], 1e-2, 1e-4)
            return [weight, average], list(expected)

        in_layouts(build)

    @pytest.mark.parametrize("beta", [1.0, 1.7, 300.0])
    def test_pmf_update(self, beta: float, threads: int) -> None:
        settings = reference.AdamSettings.at_step(2, 1e-2, (0.9, 0.999), 1e-8, 1e-3)

        def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
            p, g = filled(size, shifted), values(size, 1, shifted=shifted)
            logits, firsts = (values(2 * size, seed, 0.1, shifted).view(2, size) for seed in (2, 3))
            seconds = values(2 * size, 4, 0.1, shifted).square().view(2, size)
            weight = reference.tanh((logits[1] - logits[0]) * (beta / 2))
            rows = []
            for row, gradient in enumerate(reference.pmf_logit_gradients(weight, g, beta)):
                decayed = gradient + logits[row] * 1e-3
                step, *moments = reference.adam_direction(decayed, firsts[row], seconds[row], settings)
                rows.append((logits[row] - step, *moments))
            new, *moments = (torch.stack(pair) for pair in zip(*rows, strict=True))
            compiled.pmf_update([p], [logits], [g], [firsts], [seconds], beta, settings)
            return [p, logits, firsts, seconds], [reference.sign(new[1] - new[0]), new, *moments]

        in_layouts(build)

    def test_a_million_in_several_tensors(self) -> None:
        """More elements than threads take at once, with separate keys, and one empty tensor."""
        sizes, keys = [1_000_003, 0, 40_000, 5], [1, 2, 3, (1 << 64) - 1]
        states = [naturals(size, seed) for seed, size in enumerate(sizes)]
        weights = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
        compiled.write_relaxed_sample(weights, states, keys, 3, 1e-2)
        for weight, natural, key in zip(weights, states, keys, strict=True):
            assert same_bits(weight.detach(), reference.relaxed_sample(natural, key, 3, 0, 1e-2))

    def test_a_large_network(self) -> None:
        """Enough elements that the weights are stored past the caches."""
        natural = naturals(1 << 22)
        weight, unaligned = torch.zeros(1 << 22), torch.zeros((1 << 22) + 1)[1:]
        compiled.write_sign([weight, unaligned], [natural, natural])
        assert same_bits(weight, reference.sign(natural))
        assert same_bits(unaligned, reference.sign(natural))
        compiled.write_relaxed_sample([weight], [natural], [KEY], 0, 1e-10)
        piece = slice(1 << 21, (1 << 21) + (1 << 16))
        assert same_bits(weight[piece], reference.relaxed_sample(natural[piece], KEY, 0, 1 << 21, 1e-10))


@needs_native
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_fast_path_changes_nothing(temperature: float) -> None:
    """One uncertain weight puts its block on the slow path; the certain weights next to it do not change."""
    threshold = elementary.MAX_LOGISTIC + elementary.SATURATION * temperature
    for excess in (1.00002, 1.0001, 1.1, 1e10):
        size = 128 * 100
        certain = reference.sign(values(size, 1)) * (max(threshold, elementary.SATURATION) * excess)
        mixed = certain.clone()
        mixed[::128] = 0.5
        rest = torch.arange(size) % 128 != 0
        g = values(size, 2)
        rule = reference.RuleSettings(0.1, temperature, 1e-10, 100.0, 1.0, 0.0)
        results = []
        for natural in (certain, mixed):
            relaxed, hard, total, mode = (torch.zeros(size) for _ in range(4))
            compiled.write_relaxed_sample([relaxed], [natural], [KEY], 1, temperature)
            compiled.write_hard_sample([hard], [natural], [KEY], 1)
            compiled.accumulate_scaled([total], [natural], [g], [KEY], 1, temperature, 1e-10)
            updated = natural.clone()
            compiled.bayesbinn_update([mode], [updated], [g], [None], [None], [KEY], 1, rule)
            results.append([x[rest] for x in (relaxed, hard, total, mode, updated)])
        for short, long in zip(*results, strict=True):
            assert same_bits(short, long)


@needs_native
@pytest.mark.parametrize("temperature", [1e-10, 1e-2])
@pytest.mark.parametrize("every", [1000, 128, 17, 4, 3])
def test_fast_path_with_some_uncertain_weights(every: int, temperature: float, threads: int) -> None:
    """Noise for single elements: a few in a block, as many as are worth it, and more."""
    rule = reference.RuleSettings(0.1, temperature, 1e-10, 100.0, 1.0, 0.0)

    def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
        natural, g = values(size, 1, 4.0, shifted), values(size, 2, shifted=shifted)
        is_certain = torch.arange(size) % every != 5 % every
        natural[is_certain] = 1e5 * reference.sign(natural[is_certain])
        p, total = reference.sign(natural), values(size, 3)
        if shifted:
            p = torch.cat([torch.zeros(1), p])[1:]
        expected_total = total + reference.gradient_scale(natural, KEY, DRAW, 0, temperature, 1e-10) * g
        compiled.accumulate_scaled([total], [natural], [g], [KEY], DRAW, temperature, 1e-10)
        compiled.write_training_sample([p], [natural], [None], [KEY], DRAW, temperature, True)
        sample = p.clone()
        compiled.restore_mode([p], [natural], temperature)
        mode = p.clone()
        scaled = reference.gradient_scale(natural, KEY, DRAW, 0, temperature, 1e-10) * g
        new, _ = reference.natural_gradient_step(natural, scaled, None, None, rule)
        expected = [reference.relaxed_sample(natural, KEY, DRAW, 0, temperature), reference.sign(natural)]
        compiled.bayesbinn_update([p], [natural], [g], [None], [None], [KEY], DRAW, rule)
        return [total, sample, mode, p, natural], [expected_total, *expected, reference.sign(new), new]

    in_layouts(build)


@needs_native
@pytest.mark.parametrize("temperature", [1e-12, 1e-10, 1e-7, 1.1e-7, 1e-5])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_samples_near_zero_at_low_temperatures(share: float, temperature: float, threads: int) -> None:
    """Where λ + δ is far from 0, the kernels need no logarithm for a sample's sign; nearer to it they do."""
    size = 40_000
    delta = reference.logistic_noise(torch.zeros(size), KEY, DRAW, 0)
    distances = torch.tensor([0, 1e-10, 1e-9, 3e-9, 1e-7, 3e-6, 7e-6, 1e-5, 1.4e-5, 1.6e-5, 2e-5, 1e-4])
    natural = -delta + distances[torch.arange(size) % len(distances)] * reference.sign(values(size, 4))
    natural = torch.where(torch.rand(size, generator=torch.Generator().manual_seed(5)) < share, natural, 1e6)
    sample, g, total = reference.sign(natural), values(size, 2), torch.zeros(size)
    compiled.write_training_sample([sample], [natural], [None], [KEY], DRAW, temperature, True)
    expected = reference.relaxed_sample(natural, KEY, DRAW, 0, temperature)
    assert same_bits(sample, expected) and bool((expected.abs() < 1).any())
    compiled.accumulate_scaled([total], [natural], [g], [KEY], DRAW, temperature, 1e-10)
    assert same_bits(total, reference.gradient_scale(natural, KEY, DRAW, 0, temperature, 1e-10) * g)


# Draws in which KEY gives one of the first 32 elements the smallest and the largest possible δ.
EXTREME_DRAWS = [(395740, -1.0), (70683, 1.0)]


@needs_native
@pytest.mark.parametrize(("draw", "side"), EXTREME_DRAWS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_extreme_noise_still_counts(draw: int, side: float, temperature: float) -> None:
    """Just below the threshold of the fast path, the most extreme δ flips or softens a weight."""
    size = 128
    delta = reference.logistic_noise(torch.zeros(size), KEY, draw, 0)
    assert float((delta * side).max()) == pytest.approx(elementary.MAX_LOGISTIC, rel=1e-6)
    natural = torch.full((size,), -side * elementary.MAX_LOGISTIC * 0.9999)
    weight = torch.zeros(size)
    compiled.write_hard_sample([weight], [natural], [KEY], draw)
    assert same_bits(weight, reference.hard_sample(natural, KEY, draw, 0))
    assert int((weight == side).sum()) == 1

    natural = torch.full((size,), -side * (elementary.MAX_LOGISTIC + 0.9 * elementary.SATURATION * temperature))
    compiled.write_relaxed_sample([weight], [natural], [KEY], draw, temperature)
    assert same_bits(weight, reference.relaxed_sample(natural, KEY, draw, 0, temperature))
    total, ones = torch.zeros(size), torch.ones(size)
    compiled.accumulate_scaled([total], [natural], [ones], [KEY], draw, temperature, 1e-10)
    assert same_bits(total, reference.gradient_scale(natural, KEY, draw, 0, temperature, 1e-10))
    if temperature >= 1e-2:  # below, float32 cannot resolve λ as finely
        assert int((weight.abs() < 1).sum()) >= 1


def test_certain_means_certain_for_extreme_noise() -> None:
    """At the threshold of the fast path, MAX_LOGISTIC + SATURATION·τ plus a margin, no δ flips a weight."""
    largest = float(elementary.half_logit(torch.tensor([1 - 2.0**-24])))
    for temperature in (1e-30, *TEMPERATURES, 1e3, 1e20):
        threshold = (elementary.MAX_LOGISTIC + elementary.SATURATION * temperature) * (1 + 1e-5)
        natural = torch.tensor([threshold])
        assert float(elementary.tanh((natural - largest) * (1 / temperature))) == 1.0
        assert float(elementary.sech2((natural - largest) * (1 / temperature))) == 0.0


# ---- finite check, packing, invalid input -----------------------------------------------------------


@needs_native
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_first_beyond(bad: float, threads: int) -> None:
    for size in SIZES[1:]:
        for shifted in (False, True):
            tensors = [values(size, seed, 1e38, shifted).clamp(-3e38, 3e38) for seed in range(3)]
            assert native.first_beyond([torch.empty(0), *tensors], LARGEST) is None
            for place in {0, size // 2, size - 1}:
                spoilt = [tensors[0], tensors[1].clone(), tensors[2].clone()]
                spoilt[1][place] = spoilt[2][place] = bad
                assert native.first_beyond(spoilt, LARGEST) == 1
    assert native.first_beyond([], LARGEST) is None


@pytest.mark.parametrize("limit", [0.0, 1e-3, 2.0, 1e18, LARGEST, math.inf])
@pytest.mark.parametrize("as_given", [True, False], ids=["native", "reference"])
def test_values_beyond_a_limit(limit: float, as_given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not as_given:
        monkeypatch.setattr(native, "available", False)
    at_limit = torch.tensor([0.0, -min(limit, LARGEST)])
    above = torch.nextafter(at_limit, torch.tensor([0.0, -math.inf]))
    assert kernels.first_beyond([at_limit, at_limit], limit) is None
    assert kernels.first_beyond([at_limit, above], limit) == 1
    assert kernels.first_beyond([at_limit, torch.tensor([math.nan])], limit) == 1
    assert kernels.first_beyond([torch.tensor([-5.0], dtype=torch.float16)], 4.0) == 0


@pytest.mark.parametrize("temperature", [1e-20, 1e-10, 1e-2, 0.05, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("eps", [1e-10, 1e-6])
def test_no_scale_is_above_its_bound(temperature: float, eps: float) -> None:
    largest = reference.largest_scale(temperature, eps)
    natural = torch.linspace(-12, 12, 20_001)
    extreme = elementary.half_logit(torch.tensor([2.0**-24, 1 - 2.0**-24]))
    for delta in (extreme[0], extreme[1], -natural, torch.zeros(())):
        noise_at = torch.minimum(torch.maximum(delta, extreme[0]), extreme[1])
        slope = elementary.sech2((natural + noise_at) * (1 / temperature))
        assert float(reference.scale_from_slope(natural, slope, temperature, eps).max()) <= largest * (1 + 1e-5)


# ---- tensors whose memory differs from their values ---------------------------------------------------


def negated(x: Tensor) -> Tensor:
    """The same values with torch's negative bit: memory holds the opposite values."""
    return torch._neg_view(-x)


def imaginary(x: Tensor) -> Tensor:
    """The same values as the imaginary part of a conjugated complex tensor: every other number, and negated."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def transposed(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def expanded(x: Tensor) -> Tensor:
    """One row for all, with a stride of 0."""
    return x[:1].expand_as(x)


@pytest.mark.parametrize("given", [negated, imaginary, transposed, expanded])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_taken_by_value_whatever_their_memory_holds(
    method: str, given: Callable[[Tensor], Tensor]
) -> None:
    results = []
    for form in (given, lambda x: given(x).clone().contiguous().resolve_neg()):
        weight = torch.nn.Parameter(values(35, 1).view(5, 7))
        settings = {"lr": 0.1, **({"temperature": 0.5} if method == "bayesbinn" else {})}
        optimizer = METHODS[method].create([("w", weight)], train_set_size=10, seed=3, **settings)
        for samples in (1, 2):
            for seed in range(samples):
                with optimizer.sampled_params(train=True):
                    torch.nn.functional.linear(torch.ones(1, 7), weight).sum().backward()
                weight.grad = form(values(35, 2 + seed).view(5, 7))
            optimizer.step()
        state = [value for value in optimizer.state[weight].values() if isinstance(value, Tensor)]
        results.append([weight.detach().clone(), *state])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_negative_bit_in_a_parameter_or_a_source_is_seen() -> None:
    source = values(100, 4)
    for tensor in (source, negated(source)):
        written = negated(torch.zeros(100))
        kernels.write_sign([written], [tensor])
        assert torch.equal(written, reference.sign(source))
    assert kernels.first_beyond([negated(source)], 10.0) is None


@pytest.mark.parametrize("as_given", [True, False], ids=["native", "reference"])
def test_bop_takes_the_signs_of_weights_that_are_not_binary(as_given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not as_given:
        monkeypatch.setattr(native, "available", False)
    weight = torch.tensor([0.5, 0.5, -3.0, -3.0, 0.0, math.nan])
    average, gradient = torch.zeros(6), torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    kernels.bop_update([weight], [average], [gradient], 0.5, 0.1)
    assert weight.tolist() == [-1.0, 1.0, -1.0, 1.0, 1.0, -1.0]


@needs_native
def test_first_beyond_of_a_view_ignores_its_neighbors() -> None:
    memory = torch.full((100,), math.nan)
    memory[3:40] = 1.0
    assert native.first_beyond([memory[3:40]], LARGEST) is None


# Example values for the settings of a row; a new setting needs one here.
EXAMPLES: dict[str, Any] = {
    "beta": 1.7,
    "bimu": reference.BiMUSettings(4.9, 0.0023, 161.3, 3.76, 1e5, 3),
    "clip": 1.25,
    "draw": DRAW,
    "eps": 1e-10,
    "held": False,
    "rate": 1e-2,
    "rule": reference.RuleSettings(0.013, 0.5, 1e-10, 60000 / 7, 0.3, 0.9, True, 0.2),
    "scale": 0.7,
    "settings": reference.AdamSettings.at_step(3, 1e-3, (0.9, 0.999), 1e-8, 1e-4),
    "temperature": 0.5,
    "threshold": 1e-4,
}


def example_buffers(kernel: Kernel, size: int, shifted: bool) -> list[Any]:
    per_element = dict(native._native.COLUMNS[kernel.name])
    buffers: list[Any] = []
    for seed, name in enumerate(kernel.buffers):
        if name == "key":
            buffers.append(KEY)
        elif name == "natural":
            buffers.append(naturals(size, shifted=shifted))
        elif per_element[name] == 2:
            buffers.append(values(2 * size, seed, shifted=shifted).abs().view(2, size))
        else:
            buffers.append(values(size, seed, shifted=shifted).abs())
    if kernel.name == "bimu_update":  # λ is finite: no step of BiMU is longer than its denominator allows
        buffers[1].clamp_(-1e30, 1e30)
    if kernel.name == "restore_mode":  # it comes after a sample
        buffers[0].copy_(reference.relaxed_sample(buffers[1], KEY, DRAW, 0, EXAMPLES["temperature"]))
    return buffers


@needs_native
@pytest.mark.parametrize("kernel", [k for k in KERNELS.values() if k.native], ids=lambda k: k.name)
def test_every_row_of_the_table_gives_the_bits_of_its_reference(kernel: Kernel, threads: int) -> None:
    settings = [EXAMPLES[name] for name in kernel.settings]

    def build(size: int, shifted: bool) -> tuple[list[Tensor], list[Tensor]]:
        mine, expected = example_buffers(kernel, size, shifted), example_buffers(kernel, size, shifted)
        assert kernel.native is not None
        kernel.native(*([x] for x in mine), *settings)
        kernel.reference(*expected, *settings)
        return (*([x for x in side if isinstance(x, Tensor)] for side in (mine, expected)),)

    in_layouts(build)


@needs_native
def test_the_table_has_every_compiled_kernel() -> None:
    assert {name for name, kernel in KERNELS.items() if kernel.native} == set(native._native.COLUMNS)


@needs_native
def test_buffers_and_settings_are_matched_by_name() -> None:
    a, b = torch.zeros(3), torch.tensor([1.0, -1.0, 2.0])
    swapped = native.compiled("bop_update", ("parameter", "gradient", "average"), ("threshold", "rate"))
    weights, averages = ([torch.ones(3), torch.ones(3)], [torch.zeros(3), torch.zeros(3)])
    swapped([weights[0]], [b], [averages[0]], 0.3, 0.5)
    compiled.bop_update([weights[1]], [averages[1]], [b], 0.5, 0.3)
    assert weights[0].tolist() == [-1.0, 1.0, -1.0] and torch.equal(weights[0], weights[1])
    assert averages[0].tolist() == [0.5, -0.5, 1.0] and torch.equal(averages[0], averages[1])
    where = [[a.data_ptr()], [b.data_ptr()]]
    for settings, said in (
        ({}, "write_tanh needs the setting scale"),
        ({"scale": 1.0, "shift": 2.0}, "write_tanh takes 1 settings"),
        ({"scale": "large"}, "unusable value of the setting scale"),
    ):
        with pytest.raises(TypeError, match=said):
            native._native.KERNELS["write_tanh"](1, [3], where, **settings)
    rule = reference.RuleSettings(0.1, 1.0, 1e-10, 1.0, 1.0, 0.0)
    fields = rule._asdict()
    reordered = SimpleNamespace(**dict(reversed(fields.items())))
    results = []
    for given in (rule, reordered):
        p, natural = torch.zeros(3), torch.tensor([0.1, -0.2, 0.3])
        compiled.bayesbinn_update([p], [natural], [b], [None], [None], [KEY], 1, given)
        results.append(natural)
    assert same_bits(*results)
    del reordered.fading
    with pytest.raises(AttributeError, match="fading"):
        compiled.bayesbinn_update([a], [b], [b.clone()], [None], [None], [KEY], 1, reordered)


@needs_native
def test_a_build_from_other_sources_is_refused() -> None:
    with pytest.raises(ImportError, match=r"write_sign.*reinstall the package"):
        native.compiled("write_sign", ("parameter", "origin"), ())
    with pytest.raises(ImportError, match=r"write_cube.*reinstall the package"):
        native.compiled("write_cube", ("parameter",), ())


@needs_native
def test_neighboring_memory_does_not_change() -> None:
    for size in SIZES[:-1]:
        memory = torch.full((size + 64,), 7.0)
        compiled.write_relaxed_sample([memory[32 : 32 + size]], [naturals(size)], [KEY], 0, 1.0)
        assert memory[:32].eq(7).all()
        assert memory[32 + size :].eq(7).all()


@needs_native
def test_writes_are_seen_by_autograd() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    compiled.write_sign([weight], [torch.ones(3)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@needs_native
def test_refusals() -> None:
    a, b = torch.zeros(8), torch.ones(9)
    with pytest.raises(ValueError, match="9 elements; 8 are needed"):
        compiled.write_sign([a], [b])
    with pytest.raises(ValueError, match="1 tensors for 2"):
        compiled.write_sign([a, a], [a])
    with pytest.raises(ValueError, match="one key per tensor"):
        compiled.write_hard_sample([a], [a], [], 0)
    with pytest.raises(ValueError, match="overlap"):
        compiled.write_sign([b[1:]], [b[:8]])
    compiled.write_sign([b], [b])  # in place
    assert b.eq(1).all()


@needs_native
def test_usable() -> None:
    plain = torch.zeros(4, 4)
    assert native.usable(plain, torch.nn.Parameter(plain), plain[1:], torch.empty(0))
    for other in (plain.double(), plain.bfloat16(), plain.t(), plain[:, 1:], plain.to("meta"), plain.to_sparse()):
        assert not native.usable(plain, other)


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


SHOW = "from bayesbinn.kernels import native; print(native.available, native.isa(), native.reason)"


@functools.cache
def with_an_unknown_instruction_set() -> str:
    """What SHOW prints, which includes the names of those that there are."""
    return run_python("-c", SHOW, BAYESBINN_ISA="abacus").stdout


CHOSEN = "TestSameAsReference or philox or random_bits or fast_path or extreme or finite or pack or in_use"
SHORT = f"({CHOSEN}) and not (0.01 or 1.7)"
"""Every kernel, at two of the four temperatures."""


@needs_native
@pytest.mark.parametrize("chosen", [SHORT, pytest.param(CHOSEN, marks=pytest.mark.slow)], ids=["short", "complete"])
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "neon"])
def test_every_instruction_set_gives_the_same_bits(isa: str, chosen: str) -> None:
    if isa == native.isa():
        pytest.skip("the other tests already use this one")
    shown = with_an_unknown_instruction_set()
    if isa not in shown.partition(" have ")[2]:
        pytest.skip(shown)
    run = run_python("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", chosen, BAYESBINN_ISA=isa)
    assert run.returncode == 0, run.stdout[-3000:]
    assert "passed" in run.stdout
    assert "skipped" not in run.stdout


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [("BAYESBINN_KERNELS", "torch", "switched off"), ("BAYESBINN_ISA", "abacus", "BAYESBINN_ISA=abacus")],
)
def test_says_why_there_are_no_kernels(variable: str, value: str, reason: str) -> None:
    if variable == "BAYESBINN_ISA" and not native.available:
        pytest.skip(f"no native kernels: {native.reason}")
    known = variable == "BAYESBINN_ISA"
    shown = with_an_unknown_instruction_set() if known else run_python("-c", SHOW, **{variable: value}).stdout
    assert shown.startswith(f"False none {reason}")


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_the_reference_can_be_compiled(backend: str) -> None:
    """As one graph without breaks, for devices that have no native kernels."""
    natural, g = naturals(1000), values(1000, 1)
    rule = reference.RuleSettings(0.013, 1e-2, 1e-10, 100.0, 0.3, 0.9)

    def step(natural: Tensor, g: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        w = reference.relaxed_sample(natural, KEY, 3, 0, rule.temperature)
        s = reference.gradient_scale(natural, KEY, 3, 0, rule.temperature, rule.eps)
        return w, *reference.natural_gradient_step(natural, s * g, momentum, None, rule)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for found, expected in zip(compiled(natural, g, g), step(natural, g, g), strict=True):
        assert found is not None and expected is not None
        assert same_bits(found, expected)
