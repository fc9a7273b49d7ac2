"""One step of each method against numbers worked out by hand, so that formula and code cannot drift apart.

The numbers in the tables follow from the formulas in the comments next to them, evaluated in
double precision, without the code under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bayesbinn import PMF, BayesBiNN, BernoulliPosterior, Bop, FloatAdam, LRNet, STEAdam, kernels
from bayesbinn.methods.contract import BinaryOptimizer


def parameter(values: Sequence[float]) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float32))


def step_with(optimizer: BinaryOptimizer, weight: Tensor, gradient: Sequence[float]) -> Tensor:
    """One step with a given gradient, that of the linear loss g·w. Returns the weight that the model held."""
    with optimizer.sampled_params(train=True):
        held = weight.detach().clone()
        (torch.tensor(gradient) * weight).sum().backward()
    optimizer.step()
    return held


def close(actual: Tensor, expected: Sequence[float], rtol: float = 5e-6, atol: float = 1e-7) -> None:
    np.testing.assert_allclose(actual.detach().double().numpy(), expected, rtol=rtol, atol=atol)


# ---- BayesBiNN ---------------------------------------------------------------------------------
#
# Four weights named "w", seed 0. The noise of draws 0 and 1 is u = (k + ½)/2²³ with
#
#     k₀ = 7045481  5036902  3731942  6321536     δ₀ =  0.8286932   0.2036610  −0.1106854   0.5589147
#     k₁ = 3202105  3630427   576078   849655     δ₁ = −0.2411255  −0.1352575  −1.3036201  −1.0915038
#
# and δ = ½·log(u/(1 − u)). N = 10, ε = 1e-10 throughout. v(λ) = 1 − tanh²λ below |λ| = 9.0109, else 0.

NOISE = [[7045481, 5036902, 3731942, 6321536], [3202105, 3630427, 576078, 849655]]
PRIOR = [0.25, 0.5, -1.0, -8.0]


def bayesbinn(natural: Sequence[float], **settings: object) -> tuple[BayesBiNN, torch.nn.Parameter]:
    weight = parameter([0.0] * len(natural))
    start = BernoulliPosterior({"w": torch.tensor(natural)})
    optimizer = BayesBiNN([("w", weight)], train_set_size=10, init=start, seed=0, **settings)
    return optimizer, weight


def natural_of(optimizer: BayesBiNN) -> Tensor:
    return optimizer.posterior().natural["w"]


def test_noise_has_the_address_that_the_tables_assume() -> None:
    key = kernels.noise_key(0, "train", "w")
    for draw, row in enumerate(NOISE):
        assert kernels.uniform(key, draw, 4).tolist() == [(k + 0.5) / 2**23 for k in row]


# s = ((1 − w²) + ε) / (τ·(v(λ) + ε)),  λ' = λ − α·(N·s·g + λ).  One line per weight.
ONE_STEP = {
    # τ = 1, α = 0.1. The last weight is saturated: (0 + ε)/(1·(0 + ε)) = 1.
    1.0: (
        0.1,
        #  λ      g      w = tanh(λ + δ)  s          N·s·g      λ'
        [
            (0.5, 0.3, 0.8689296, 0.3114783, 0.9344348, 0.3565565),
            (-1.0, -0.2, -0.6619851, 1.3376430, -2.6752860, -0.6324714),
            (2.0, 0.1, 0.9553133, 1.2367380, 1.2367380, 1.6763260),
            (-10.0, 0.05, -1.0, 1.0, 0.5, -9.05),
        ],
    ),
    # τ = 0.01, α = 0.001. Weights 0 and 1 are where tanh bends: (−0.83 + 0.8286932)/0.01 = −0.13068.
    # Weight 2: w = 1 but v(2) = 0.0706508, so s = 1e-10/(0.01·0.0706508). Weight 3: s = ε/(τ·ε) = 100.
    0.01: (
        0.001,
        [
            (-0.83, 0.3, -0.1299419, 183.0917, 549.2750, -1.378445),
            (-0.2, 0.2, 0.3505752, 91.26512, 182.5302, -0.3823302),
            (2.0, 0.1, 1.0, 1.415412e-07, 1.415412e-07, 1.998),
            (-10.0, 0.05, -1.0, 100.0, 50.0, -10.04),
        ],
    ),
    # τ = 1e-10, α = 0.1: s = 1/τ beyond |λ| = 9.0109. Just below, v(9) = 6.091992e-8 and
    # s = 1e-10/(1e-10·(6.091992e-8 + 1e-10)) = 1.638809e7: six hundred times less.
    1e-10: (
        0.1,
        [
            (10.0, 0.3, 1.0, 1e10, 3e10, -3e9),
            (-10.0, -0.2, -1.0, 1e10, -2e10, 2e9),
            (9.0, 0.1, 1.0, 1.638809e7, 1.638809e7, -1638801.0),
            (-9.02, 0.05, -1.0, 1e10, 5e9, -5e8),
        ],
    ),
}


# A float32 δ near 0.8 is exact to 6e-8, which τ = 0.01 magnifies a hundredfold.
@pytest.mark.parametrize(("temperature", "rtol"), [(1.0, 5e-6), (0.01, 5e-5), (1e-10, 5e-6)])
def test_bayesbinn_step_without_momentum_and_prior(temperature: float, rtol: float) -> None:
    lr, table = ONE_STEP[temperature]
    before, gradient, relaxed, scale, scaled, after = zip(*table, strict=True)
    # The table agrees with itself: λ' = (1 − α)·λ − α·N·s·g.
    for i in range(4):
        assert scaled[i] == pytest.approx(10 * scale[i] * gradient[i], rel=1e-6)
        assert after[i] == pytest.approx((1 - lr) * before[i] - lr * scaled[i], rel=1e-6)

    optimizer, weight = bayesbinn(before, lr=lr, temperature=temperature)
    held = step_with(optimizer, weight, gradient)

    close(held, relaxed, rtol)
    close(natural_of(optimizer), after, rtol)
    assert weight.tolist() == [math.copysign(1, x) for x in after]


# m ← 0.9·m + 0.1·(N·s·g + ½·(λ − λ₀)),  λ ← λ − α·m/(1 − 0.9ᵏ): division by 0.1, then by 0.19.
TWO_STEPS = {
    1.0: {
        "lr": 0.1,
        "start": (0.5, -1.0, 2.0, -10.0),
        "gradients": [(0.3, -0.2, 0.1, 0.05), (-0.1, 0.4, 0.2, -0.3)],
        # weight 0: m = 0.1·(0.9344348 + ½·(0.5 − 0.25)) = 0.1059435, λ = 0.5 − 0.1·1.059435
        "momentum": [(0.1059435, -0.3425286, 0.2736738, -0.05), (-0.01111738, -0.02786498, 1.795547, -0.4425)],
        "natural": [(0.3940565, -0.6574714, 1.726326, -9.95), (0.3999078, -0.6428056, 0.7813015, -9.717105)],
        "relaxed": [(0.8689296, -0.6619851, 0.9553133, -1.0), (0.1517498, -0.6599522, 0.3992078, -1.0)],
    },
    0.01: {
        "lr": 0.001,
        "start": (-0.83, -0.2, 2.0, -10.0),
        "gradients": [(0.3, -0.373, 0.1, 0.05), (-0.1, 0.4, 0.2, -0.3)],
        # weight 1: the first step leads to λ = 0.1407689, where the second noise, −0.1352575, gives
        # w = tanh(0.5511) again inside the bend
        "momentum": [(54.8735, -34.07689, 0.15, 4.9), (49.30471, -0.1449361, 0.284925, -25.69245)],
        "natural": [(-1.378735, 0.1407689, 1.9985, -10.049), (-1.638233, 0.1415317, 1.997, -9.913777)],
        "relaxed": [(-0.1299419, 0.3505752, 1.0, -1.0), (-1.0, 0.5013753, 1.0, -1.0)],
    },
    1e-10: {
        "lr": 0.1,
        "start": (10.0, -10.0, 9.0, -9.02),
        "gradients": [(0.3, -0.2, 0.1, 0.05), (-0.1, 0.4, 0.2, -0.3)],
        # weight 0: m = 3e9, λ = −3e9; then m = 0.9·3e9 + 0.1·(−1e10 − 1.5e9) = 1.55e9 and
        # λ = −3e9 − 0.1·1.55e9/0.19 = −3.815789e9
        "momentum": [(3e9, -2e9, 1638810.0, 5e8), (1.55e9, 2.3e9, 2.001393e9, -2.575e9)],
        "natural": [(-3e9, 2e9, -1638801.0, -5e8), (-3.815789e9, 7.894737e8, -1.055004e9, 8.552631e8)],
        "relaxed": [(1.0, -1.0, 1.0, -1.0), (-1.0, 1.0, -1.0, -1.0)],
    },
}


@pytest.mark.parametrize(("temperature", "rtol"), [(1.0, 5e-6), (0.01, 1e-4), (1e-10, 5e-6)])
def test_bayesbinn_two_steps_with_momentum_and_prior(temperature: float, rtol: float) -> None:
    case = TWO_STEPS[temperature]
    optimizer, weight = bayesbinn(
        case["start"],
        lr=case["lr"],
        temperature=temperature,
        momentum=0.9,
        kl_weight=0.5,
        prior=BernoulliPosterior({"w": torch.tensor(PRIOR)}),
    )
    for k in range(2):
        held = step_with(optimizer, weight, case["gradients"][k])
        close(held, case["relaxed"][k], rtol)
        # β·m and (1 − β)·G nearly cancel in weight 1 at τ = 0.01: hence also an absolute tolerance.
        close(optimizer.state[weight]["momentum"], case["momentum"][k], rtol, atol=5e-3 if temperature == 0.01 else 0)
        close(natural_of(optimizer), case["natural"][k], rtol, atol=1e-6)


def test_bayesbinn_prior_without_momentum_and_momentum_without_prior() -> None:
    # λ = −9.05 = −10 − 0.1·(0.5 − 10) without a prior; −10 − 0.1·(0.5 − 2) = −9.85 with λ₀ = −8.
    # Weights 0 to 2: λ − 0.1·(N·s·g + λ − λ₀) with N·s·g = 0.9344348, −2.675286, 1.236738.
    optimizer, weight = bayesbinn(
        (0.5, -1.0, 2.0, -10.0), lr=0.1, temperature=1.0, prior=BernoulliPosterior({"w": torch.tensor(PRIOR)})
    )
    step_with(optimizer, weight, (0.3, -0.2, 0.1, 0.05))
    close(natural_of(optimizer), (0.3815565, -0.5824714, 1.576326, -9.85))

    # With only momentum, the first step is that without momentum; after the second, a weight with
    # g = 0 and s·g = 0 shows the bias correction: λ: 2 → 1.8, m = 0.2; then m = 0.9·0.2 + 0.1·1.8 =
    # 0.36 and λ = 1.8 − 0.1·0.36/0.19 = 1.6105263.
    optimizer, weight = bayesbinn((0.5, -1.0, 2.0, -10.0), lr=0.1, temperature=1.0, momentum=0.9)
    step_with(optimizer, weight, (0.3, -0.2, 0.0, 0.05))
    close(natural_of(optimizer), (0.3565565, -0.6324714, 1.8, -9.05))
    step_with(optimizer, weight, (0.0, 0.0, 0.0, 0.0))
    close(natural_of(optimizer)[2:3], (1.6105263,))


@pytest.mark.parametrize("way", ["contexts", "closure"])
def test_bayesbinn_averages_two_monte_carlo_samples(way: str) -> None:
    # Loss ½·Σw², so g = w differs between the samples; τ = 1, α = 0.1, N/S = 5.
    #   draw 0: w = 0.8689296  −0.6619851  0.9553133  −1     s = 0.3114783  1.337643   1.236738  1
    #   draw 1: w = 0.2532425  −0.8128110  0.6020649  −1     s = 1.189994   0.8079978  9.023501  1
    #   Σ s·w     = 0.5720098  −1.542249   6.614206   −2
    #   λ' = 0.9·λ − 0.1·5·Σ s·w = 0.45 − 0.2860049 for weight 0
    expected = (0.1639951, -0.1288754, -1.507103, -8.0)
    optimizer, weight = bayesbinn((0.5, -1.0, 2.0, -10.0), lr=0.1, temperature=1.0, mc_samples=2)

    def loss() -> Tensor:
        value = weight.square().sum() / 2
        value.backward()
        return value

    if way == "closure":
        # Mean of ½·(0.7550386 + 0.4382243 + 0.9126234 + 1) and ½·(0.0641317 + 0.6606617 + 0.3624821 + 1)
        assert float(optimizer.step(loss)) == pytest.approx((3.1058863 + 2.0872755) / 4, rel=1e-6)
    else:
        for _ in range(2):
            with optimizer.sampled_params(train=True):
                loss()
        optimizer.step()
    close(natural_of(optimizer), expected)


# ---- Bop ---------------------------------------------------------------------------------------


def test_bop_two_steps_by_hand() -> None:
    # γ = ½, τ = ¼, all numbers exact in binary.  m ← m/2 + g/2;  flip where w·m > ¼.
    #   w₀   g₁     m₁      w₁            g₂    m₂      w₂
    #   +1   0.75   0.375   −1 (flipped)  0.75  0.5625  −1: m now agrees with the weight
    #   +1   0.5    0.25    +1: equal is not above      0.5   0.375   −1
    #   +1  −4     −2       +1: m pushes up already     1    −0.5     +1
    #   −1  −0.75  −0.375   +1 (flipped)  2     0.8125  −1 (flipped back)
    #   −1   4      2       −1            −6   −2       +1 (flipped)
    weight = parameter([0.3, 1.0, 0.7, -0.1, -1.0])
    optimizer = Bop([("w", weight)], lr=0.5, threshold=0.25)
    assert weight.tolist() == [1, 1, 1, -1, -1]

    held = step_with(optimizer, weight, (0.75, 0.5, -4.0, -0.75, 4.0))
    assert held.tolist() == [1, 1, 1, -1, -1]
    assert optimizer.state[weight]["average"].tolist() == [0.375, 0.25, -2.0, -0.375, 2.0]
    assert weight.tolist() == [-1, 1, 1, 1, -1]

    step_with(optimizer, weight, (0.75, 0.5, 1.0, 2.0, -6.0))
    assert optimizer.state[weight]["average"].tolist() == [0.5625, 0.375, -0.5, 0.8125, -2.0]
    assert weight.tolist() == [-1, -1, 1, -1, 1]


def test_bop_flips_alike_in_both_sign_conventions() -> None:
    """Helwegen's w·m > τ and the paper's m' = −m with hysteresis describe the same flips."""
    rate, threshold, steps, size = 0.125, 0.125, 60, 300
    generator = np.random.default_rng(0)
    # Multiples of 2⁻⁴, so that some |m| meet the threshold exactly (in the first step: |g| = 1).
    gradients = np.round(generator.normal(size=(steps, size)) * 16) / 16
    start = np.where(generator.random(size) < 0.5, 1.0, -1.0)

    helwegen, m = start.copy(), np.zeros(size)
    paper, m_flipped = start.copy(), np.zeros(size)
    weight = parameter(list(start))
    optimizer = Bop([("w", weight)], lr=rate, threshold=threshold)
    flips = held_back = 0
    for gradient in gradients:
        m = (1 - rate) * m + rate * gradient
        helwegen = np.where(helwegen * m > threshold, -helwegen, helwegen)

        m_flipped = (1 - rate) * m_flipped - rate * gradient
        # hyst(m', w, γ): the sign of m' where its size exceeds the threshold, the old weight elsewhere.
        hysteresis = np.where(np.abs(m_flipped) > threshold, np.sign(m_flipped), paper)
        flips += int((hysteresis != paper).sum())
        held_back += int(((np.sign(m_flipped) == -paper) & (np.abs(m_flipped) <= threshold)).sum())
        paper = hysteresis

        step_with(optimizer, weight, list(gradient))
        assert np.array_equal(helwegen, paper)
        assert np.array_equal(weight.detach().numpy(), helwegen)
    assert flips > 500
    assert held_back > 500


# ---- PMF ---------------------------------------------------------------------------------------


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=0))
    return e / e.sum(axis=0)


def pmf(logits: Tensor, **settings: object) -> tuple[PMF, torch.nn.Parameter]:
    weight = torch.nn.Parameter(torch.zeros(logits.shape[1:]))
    optimizer = PMF([("w", weight)], seed=0, **settings)
    optimizer.state[weight]["logits"].copy_(logits)
    return optimizer, weight


def test_pmf_two_steps_by_hand() -> None:
    # lr = 0.1, ρ = 2, so β = 1 in the first step and 2 in the second. One line per weight and step:
    #   u = softmax(β·ũ), w = u₊ − u₋, u' = softmax(β·u), a = g·(u'₊ − u'₋)
    #   g₋ = β·(−g − u'₋·a),  g₊ = β·(g − u'₊·a)
    #   weight 0, step 1: ũ = (0.2, 0.6), g = 0.5: w = 0.1973753, u' = (0.4508157, 0.5491843), a = 0.0491843
    #   weight 0, step 2: ũ = (0.3, 0.5), g = 0.5: w = 0.1973753, u' = (0.4025742, 0.5974258), a = 0.0974258
    #   weight 1, step 1: ũ = (−0.3, −1.1), g = 0.25: w = −0.3799490, u' = (0.5938608, 0.4061392), a = −0.0469304
    #   weight 1, step 2: ũ = (−0.2, −1.2), g = −1: w = −0.7615942, u' = (0.8210075, 0.1789925), a = 0.6420150
    # Adam's first step moves each logit by lr, against its gradient.
    optimizer, weight = pmf(torch.tensor([[0.2, -0.3], [0.6, -1.1]]), lr=0.1, beta_growth=2.0)
    state = optimizer.state[weight]

    held = step_with(optimizer, weight, (0.5, 0.25))
    close(held, (0.1973753, -0.3799490))
    close(state["first"] / 0.1, [[-0.5221730, -0.2221299], [0.4729888, 0.2690603]])
    close(state["logits"], [[0.3, -0.2], [0.5, -1.2]])
    assert weight.tolist() == [1, -1]

    held = step_with(optimizer, weight, (0.5, -1.0))
    close(held, (0.1973753, -0.7615942))
    second = [[-1.0784422, 0.9458018], [0.8835906, -2.2298317]]
    close((state["first"] - 0.9 * torch.tensor([[-0.0522173, -0.0222130], [0.0472989, 0.0269060]])) / 0.1, second)
    close(state["logits"], [[0.3961711, -0.2571317], [0.4027769, -1.1341447]])


@pytest.mark.parametrize("growths", [0, 1, 4])
def test_pmf_gradient_is_that_of_the_double_softmax(growths: int) -> None:
    beta = 2.0**growths
    generator = np.random.default_rng(1)
    logits, gradient = generator.normal(size=(2, 500)), generator.normal(size=500)
    optimizer, weight = pmf(torch.tensor(logits), beta_growth=2.0, beta_interval=1)
    for _ in range(growths):
        step_with(optimizer, weight, [0.0] * 500)  # β grows; a gradient of 0 moves nothing

    step_with(optimizer, weight, list(gradient))

    u = softmax(beta * logits)
    u2 = softmax(beta * u)
    g_u = np.stack([-gradient, gradient])  # w = u₊ − u₋
    expected = beta * (g_u - u2 * (g_u * u2).sum(axis=0))
    close(optimizer.state[weight]["first"] / 0.1, expected, rtol=2e-5, atol=1e-5)
    # It is not the true Jacobian, 2β·u₊u₋·(−g, g).
    true = 2 * beta * u[0] * u[1] * g_u
    assert np.abs(true - expected).max() > 0.5


def test_pmf_beta_grows_after_the_first_step_and_then_every_hundred() -> None:
    optimizer, weight = pmf(torch.tensor([[0.0], [0.5]]), beta_growth=1.2)

    def beta() -> float:
        with optimizer.sampled_params(train=True):  # w = tanh(β/4)
            value = 4 * math.atanh(weight.item())
            (0 * weight).sum().backward()
        assert float(optimizer.posterior().natural["w"]) == pytest.approx(value / 4, rel=1e-5)
        return value

    expected = {0: 1.0, 1: 1.2, 2: 1.2, 100: 1.2, 101: 1.44, 200: 1.44, 201: 1.728}
    for steps in range(202):
        value = beta()
        if steps in expected:
            assert value == pytest.approx(expected[steps], rel=1e-5)
        optimizer.step()


def test_pmf_beta_stops_at_its_maximum() -> None:
    optimizer, weight = pmf(torch.tensor([[0.0], [0.5]]), beta_growth=4.0, beta_interval=1, beta_max=10.0)
    for expected in (1.0, 4.0, 10.0, 10.0):
        held = step_with(optimizer, weight, (0.0,))
        assert 4 * math.atanh(float(held)) == pytest.approx(expected, rel=1e-4)


# ---- STE-Adam and full-precision Adam ----------------------------------------------------------


def test_ste_two_steps_by_hand() -> None:
    # lr = 0.1. Step 1 of Adam moves by lr against the gradient; step 2 divides m by 0.19, v by 0.001999:
    #   w_r     g₁    after      g₂    m₂/0.19      v₂/0.001999   after
    #   0.25    0.5   0.15      −0.3   0.07894737   0.16995998    0.15 − 0.1·0.07894737/0.4122621 = 0.1308502
    #  −0.95    2    −1.05 → −1  2     2            4             −1.1 → −1
    #  −0.05   −1     0.05       0.2  −0.36842105   0.51975988    0.05 + 0.1·0.36842105/0.7209437 = 0.1011026
    #   1      −4     1.1 → 1    8     2.3157895    40.012006     1 − 0.1·2.3157895/6.3255044 = 0.9633896
    weight = parameter([0.25, -0.95, -0.05, 1.0])
    optimizer = STEAdam([("w", weight)], lr=0.1)
    held = step_with(optimizer, weight, (0.5, 2.0, -1.0, -4.0))
    assert held.tolist() == [1, -1, -1, 1]
    latent = optimizer.state[weight]["latent"]
    close(latent, (0.15, -1.0, 0.05, 1.0))
    assert latent[1] == -1
    assert latent[3] == 1
    assert weight.tolist() == [1, -1, 1, 1]

    step_with(optimizer, weight, (-0.3, 2.0, 0.2, 8.0))
    close(latent, (0.1308502, -1.0, 0.1011026, 0.9633896))


def target_loss(weight: Tensor, target: Tensor) -> Tensor:
    return (weight - target).square().sum()


def test_ste_is_torch_adam_on_clipped_latent_weights() -> None:
    torch.manual_seed(0)
    start, target = torch.rand(50) * 2 - 1, torch.randn(50)
    weight = torch.nn.Parameter(start.clone())
    optimizer = STEAdam([("w", weight)], lr=0.07)
    latent = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([latent], lr=0.07)
    clipped = 0
    for _ in range(40):
        with optimizer.sampled_params(train=True):
            target_loss(weight, target).backward()
        optimizer.step()

        signs = torch.where(latent >= 0, 1.0, -1.0).requires_grad_()
        target_loss(signs, target).backward()
        latent.grad = signs.grad
        adam.step()
        clipped += int((latent.abs() > 1).sum())
        with torch.no_grad():
            latent.clamp_(-1, 1)
        close(optimizer.state[weight]["latent"], latent.detach().numpy(), atol=2e-6)
        assert torch.equal(weight, torch.where(latent >= 0, 1.0, -1.0))
    assert clipped > 100


def test_float_adam_two_steps_by_hand() -> None:
    # lr = 0.1, weight decay 0.1: g + 0.1·w.
    #   w     g₁   +decay  after  g₂    +decay   m₂/0.19      v₂/0.001999   after
    #   0.25  0.5  0.525   0.15  −0.3  −0.285    0.09868421   0.17837638    0.15 − 0.1·0.09868421/0.4223463 = 0.1266343
    #  −2     0.5  0.3    −2.1    0.4   0.19     0.24210526   0.06303652   −2.1 − 0.1·0.24210526/0.2510707 = −2.1964291
    weight = parameter([0.25, -2.0])
    optimizer = FloatAdam([("w", weight)], lr=0.1, weight_decay=0.1)
    step_with(optimizer, weight, (0.5, 0.5))
    close(weight, (0.15, -2.1))
    step_with(optimizer, weight, (-0.3, 0.4))
    close(weight, (0.1266343, -2.1964291))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_float_adam_is_torch_adam(weight_decay: float) -> None:
    torch.manual_seed(0)
    start, target = torch.randn(50), torch.randn(50)
    settings = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": weight_decay}
    weight, reference = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizer, adam = FloatAdam([("w", weight)], **settings), torch.optim.Adam([reference], **settings)
    for _ in range(40):
        with optimizer.sampled_params(train=True):
            target_loss(weight, target).backward()
        optimizer.step()
        adam.zero_grad()
        target_loss(reference, target).backward()
        adam.step()
        close(weight, reference.detach().numpy(), rtol=1e-5, atol=2e-6)
    moved = (weight.detach() - start).abs()
    assert float(moved.min()) > 0
    assert float(moved.max()) > 0.5


# ---- LR-net ------------------------------------------------------------------------------------


def lrnet(theta: Tensor, **settings: object) -> tuple[LRNet, torch.nn.Parameter]:
    weight = torch.nn.Parameter(torch.zeros(theta.shape))
    optimizer = LRNet([("w", weight)], seed=0, **settings)
    optimizer.state[weight]["theta"].copy_(theta)
    return optimizer, weight


def test_lrnet_step_by_hand() -> None:
    # θ = log 3: p = 0.75, E[w] = 0.5, Var[w] = 0.75. Input 2: M = 1, V = 4·0.75 = 3, z = 1 + √3.001·n.
    # Loss z: ∂z/∂E[w] = 2 − 4·0.5·n/√3.001 = 2 − 1.1545082·n
    # ∂E[w]/∂θ = (1 − 0.25)/2 = 0.375; ρ = 0.8: ρ·∂p(1−p)/∂θ = 0.8·(1 − 2·0.75)·0.1875 = −0.075
    optimizer, weight = lrnet(torch.tensor([[math.log(3)]]), lr=0.01, regularization=0.8)
    with optimizer.sampled_params(train=True):
        z = F.linear(torch.tensor([[2.0]]), weight)
        z.sum().backward()
    n = (z.item() - 1) / 1.7323395
    assert abs(n) < 4
    assert float(weight.grad) == pytest.approx(2 - 1.1545082 * n, rel=1e-5)
    optimizer.step()
    gradient = 0.375 * (2 - 1.1545082 * n) - 0.075
    state = optimizer.state[weight]
    assert float(state["first"]) == pytest.approx(0.1 * gradient, rel=1e-5)
    assert float(state["theta"]) == pytest.approx(1.0986123 - math.copysign(0.01, gradient), rel=1e-6)
    assert float(optimizer.posterior().natural["w"]) == pytest.approx(float(state["theta"]) / 2)


LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[..., Tensor], int]] = {
    # weight shape, input shape, function, number of biases
    "linear": ((3, 7), (7,), F.linear, 3),
    "conv2d": ((4, 3, 3, 3), (3, 6, 5), F.conv2d, 4),
    "conv2d stride 2, padding 1": (
        (4, 3, 3, 2),
        (3, 6, 5),
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        4,
    ),
    "conv2d groups 2, by position": ((4, 2, 3, 3), (4, 5, 5), lambda x, w, b: F.conv2d(x, w, b, 1, (1, 0), 1, 2), 4),
    "conv2d without bias": ((2, 1, 2, 2), (1, 4, 4), lambda x, w, b: F.conv2d(x, w), 0),
    "conv1d dilation 2": ((3, 2, 3), (2, 9), lambda x, w, b: F.conv1d(x, w, b, dilation=2, padding=2), 3),
    "conv_transpose2d": ((3, 2, 2, 2), (3, 4, 3), lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), 2),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_lrnet_moments_are_those_of_hard_binary_weights(layer: str) -> None:
    """Mean and variance of z = M + √(V + 1e-3)·n against networks with weights drawn from Bernoulli(p)."""
    weight_shape, input_shape, function, biases = LAYERS[layer]
    draws = 20_000
    generator = torch.Generator().manual_seed(3)
    theta = torch.randn(weight_shape, generator=generator) * 2
    x = torch.randn(input_shape, generator=generator) * 2
    bias = torch.randn(biases, generator=generator) if biases else None

    # The same input many times: every copy has different noise.
    optimizer, weight = lrnet(theta)
    with optimizer.sampled_params(train=True):
        z = function(x.expand(draws, *input_shape), weight, bias).detach().double()

    positive = torch.rand(draws, *weight_shape, generator=generator) < torch.sigmoid(theta)
    hard = torch.where(positive, 1.0, -1.0)
    outputs = torch.vmap(lambda w: function(x[None], w, bias)[0])(hard).double()

    def moments(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance, and the squared standard error of the variance."""
        centered = samples - samples.mean(0)
        variance = centered.square().mean(0)
        return samples.mean(0), variance, (centered.pow(4).mean(0) - variance.square()) / draws

    mean, variance, variance_error = moments(z)
    hard_mean, hard_variance, hard_variance_error = moments(outputs)
    # Up to 100 outputs with two figures each: 4.5 standard errors leave a chance of 0.2 %.
    assert float(((mean - hard_mean).abs() / ((variance + hard_variance) / draws).sqrt()).max()) < 4.5
    error = (variance_error + hard_variance_error).sqrt()
    assert float(((variance - 1e-3 - hard_variance).abs() / error).max()) < 4.5
    # The noise differs from output to output: z is practically uncorrelated.
    flat = (z - z.mean(0)).flatten(1)
    correlation = (flat.T @ flat / draws) / (flat.std(0)[:, None] * flat.std(0))
    correlation.fill_diagonal_(0)
    assert float(correlation.abs().max()) < 5 / math.sqrt(draws)


def test_lrnet_variance_floor_is_the_noise_of_certain_weights() -> None:
    # θ = ±40: p is 0 or 1, V = 0, and z = x·w + √0.001·n. 20,000 outputs: the standard error of the
    # variance is 0.001·√(2/20000) = 1e-5.
    optimizer, weight = lrnet(torch.tensor([[40.0, -40.0]]))
    with optimizer.sampled_params(train=True):
        z = F.linear(torch.tensor([[3.0, 1.0]]).expand(20_000, 2), weight).detach().double()
    assert float(z.mean()) == pytest.approx(2.0, abs=4 * math.sqrt(1e-3 / 20_000))
    assert float(z.var()) == pytest.approx(1e-3, abs=4e-5)


@pytest.mark.parametrize("regularization", [0.0, 0.5])
def test_lrnet_theta_gradient_is_autograds(regularization: float) -> None:
    generator = torch.Generator().manual_seed(5)
    theta = torch.randn(4, 3, 3, 3, generator=generator) * 1.5
    x = torch.randn(2, 3, 6, 6, generator=generator)
    optimizer, weight = lrnet(theta, regularization=regularization, lr=0.02)
    with optimizer.sampled_params(train=True):
        z = F.conv2d(x, weight, padding=1)
        torch.sin(z).sum().backward()
    optimizer.step()

    leaf = theta.double().requires_grad_()
    p = torch.sigmoid(leaf)
    mean = F.conv2d(x.double(), 2 * p - 1, padding=1)
    deviation = (F.conv2d(x.double().square(), 4 * p * (1 - p), padding=1) + 1e-3).sqrt()
    noise = ((z.detach() - mean) / deviation).detach()
    loss = torch.sin(mean + deviation * noise).sum() + regularization * (p * (1 - p)).sum()
    (expected,) = torch.autograd.grad(loss, leaf)

    scale = float(expected.abs().max())
    close(optimizer.state[weight]["first"] / 0.1, expected.numpy(), rtol=1e-4, atol=1e-5 * scale)
    close(optimizer.state[weight]["theta"], (theta - 0.02 * expected.sign()).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_lrnet_regularizer_gradient_is_autograds() -> None:
    """Without any data gradient, ρ·∂Σp(1−p)/∂θ moves θ away from p = ½."""
    theta = torch.linspace(-6, 6, 41)
    optimizer, weight = lrnet(theta[:, None], regularization=0.3)
    with optimizer.sampled_params(train=True):
        (0 * F.linear(torch.ones(1, 1), weight)).sum().backward()
    optimizer.step()

    leaf = theta.double().requires_grad_()
    p = torch.sigmoid(leaf)
    (expected,) = torch.autograd.grad(0.3 * (p * (1 - p)).sum(), leaf)
    close(optimizer.state[weight]["first"][:, 0] / 0.1, expected.numpy(), rtol=1e-4, atol=1e-7)
    assert bool((expected[theta > 0] < 0).all())
