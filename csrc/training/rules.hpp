// The update rules of src/bayesbinn/kernels/reference.py on one vector, operation by operation.
// λ is `natural`, δ `delta`, τ the temperature, α `lr`, N/S `data_weight`, κ `kl_weight`.
#pragma once

#include <float.h>

#include "elementary.hpp"
#include "kernels.hpp"

namespace bayesbinn {
namespace {

// ---- settings, rounded to float32 ------------------------------------------------------------

// From this |λ| on, |λ + δ|/τ ≥ 13·ln 2 for every δ, because |δ| ≤ 12·ln 2: the sample is sign(λ).
// The margin is a hundred times the rounding errors of δ, of the sum and of the product with 1/τ.
BAYESBINN_INLINE float certain_from(double temperature) {
    return (float)((12 * LN2 + 13 * LN2 * temperature) * (1 + 1e-5));
}

// s = ((1 − w²) + ε) / (τ·(v(λ) + ε))
struct Scale {
    float temperature, inverse_temperature, eps;
    float certain;        // from this |λ| on, 1 − w² = v(λ) = 0 whatever the noise, and
    float certain_scale;  // s is this

    Scale(double tau, double e)
        : temperature((float)tau), inverse_temperature((float)(1 / tau)), eps((float)e), certain(certain_from(tau)),
          certain_scale(eps / (eps * temperature)) {
        if (certain < SATURATION) certain = SATURATION;
    }
};

struct Rule {
    float lr, data_weight, kl_weight, momentum, one_minus_momentum, relaxation, fading;
    bool steady;

    explicit Rule(const RuleSettings &set)
        : lr((float)set.lr), data_weight((float)set.data_weight), kl_weight((float)set.kl_weight),
          momentum((float)set.momentum), one_minus_momentum((float)(1 - set.momentum)),
          relaxation((float)set.relaxation), fading((float)set.fading), steady(set.steady) {}
};

struct Adam {
    float step_size, beta1, one_minus_beta1, beta2, one_minus_beta2, second_scale, eps, weight_decay;
    bool decays;

    explicit Adam(const AdamSettings &set)
        : step_size((float)set.step_size), beta1((float)set.beta1), one_minus_beta1((float)(1 - set.beta1)),
          beta2((float)set.beta2), one_minus_beta2((float)(1 - set.beta2)), second_scale((float)set.second_scale),
          eps((float)set.eps), weight_decay((float)set.weight_decay), decays(set.weight_decay != 0) {}
};

struct BiMU {
    float lr, inverse_max_lr, gain, curvature, inverse_memory;

    explicit BiMU(const BiMUSettings &set)
        : lr((float)set.lr), inverse_max_lr((float)(1 / set.max_lr)), gain((float)(set.gain / set.samples)),
          curvature((float)set.curvature), inverse_memory((float)(1 / set.memory_size)) {}
};

// ---- rules ------------------------------------------------------------------------------------

BAYESBINN_INLINE F sign(F x) { return select(x >= 0.0f, broadcast(1.0f), broadcast(-1.0f)); }

// w = tanh((λ + δ)/τ)
BAYESBINN_INLINE F relaxed_sample(F natural, F delta, float inverse_temperature) {
    return tanh((natural + delta) * inverse_temperature);
}

// 1 − w²
BAYESBINN_INLINE F sample_slope(F natural, F delta, const Scale &set) {
    return sech2((natural + delta) * set.inverse_temperature);
}

// The same from u, faster at low temperatures, where nearly every sample is −1 or +1: then the side of σ(−2λ) on which u
// lies is the sample's sign, and no logarithm is needed.
//
// With e = exp(−2|λ|), and u counted from the other end if λ < 0, u − σ(−2|λ|) is (u·(1 + e) − e)/(1 + e). Where u differs
// from σ by x, λ + δ is at least 2x, because dδ/du = 1/(2u(1 − u)) ≥ 2. So from CLEAR on, |λ + δ| is at least CLEAR: several
// times the rounding errors of δ (10⁻⁶), of the sum and of the distance, and enough for |λ + δ|/τ ≥ 13·ln 2 up to COLD.
constexpr float CLEAR = 0x1p-16f;
constexpr float COLD = 1e-7f;

struct Side {
    I same;  // whether the sample has the sign of λ
    bool is_clear;

    BAYESBINN_INLINE Side(F natural, F u) {
        const F e = exp_minus_2(abs(natural)), from_end = select(natural >= 0.0f, u, 1.0f - u);
        const F distance = from_end * (1.0f + e) - e;
        same = distance > 0.0f;
        is_clear = all(abs(distance) >= CLEAR);
    }
};

BAYESBINN_INLINE F cold_sample(F natural, F u, float temperature, float inverse_temperature) {
    if (temperature <= COLD) {
        const Side side(natural, u);
        if (side.is_clear) return select((natural >= 0.0f) == side.same, broadcast(1.0f), broadcast(-1.0f));
    }
    return relaxed_sample(natural, half_logit(u), inverse_temperature);
}

BAYESBINN_INLINE F cold_slope(F natural, F u, const Scale &set) {
    if (set.temperature <= COLD && Side(natural, u).is_clear) return F{};
    return sample_slope(natural, half_logit(u), set);
}

// s = ((1 − w²) + ε) / (τ·(v(λ) + ε))
BAYESBINN_INLINE F scale_at(F variance, F slope, const Scale &set) {
    return (slope + set.eps) / ((variance + set.eps) * set.temperature);
}

BAYESBINN_INLINE F gradient_scale(F natural, F slope, const Scale &set) {
    return scale_at(sech2(natural), slope, set);
}

// (N/S)·Σ s⊙g + κ·(λ − λ₀), where pull = λ − λ₀
BAYESBINN_INLINE F natural_gradient(F scaled_gradient, F pull, const Rule &set) {
    return scaled_gradient * set.data_weight + pull * set.kl_weight;
}

// v·[(N/S)·Σ s⊙g + κ·(λ − λ₀)] + (v + φ)·ρ·λ, where v = v(λ): a certain weight hardly moves, but fades a little
BAYESBINN_INLINE F steady_gradient(F scaled_gradient, F pull, F natural, F variance, const Rule &set) {
    return natural_gradient(scaled_gradient, pull, set) * variance + natural * set.relaxation * (variance + set.fading);
}

// m ← β·m + (1 − β)·direction
BAYESBINN_INLINE F averaged(F momentum, F direction, const Rule &set) {
    return momentum * set.momentum + direction * set.one_minus_momentum;
}

// 0 for what is smaller than the smallest normal number. Processors compute with such numbers up to a hundred times
// slower, and a moment whose gradients have ended would keep one forever: 0.9 times the smallest rounds back to it.
BAYESBINN_INLINE F without_subnormals(F x) { return select(abs(x) < FLT_MIN, broadcast(0.0f), x); }

// Adam on one value: m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², value ← value − step.
BAYESBINN_INLINE void adam_step(F &value, F &first, F &second, F gradient, const Adam &set) {
    if (set.decays) gradient = gradient + value * set.weight_decay;
    first = without_subnormals(first * set.beta1 + gradient * set.one_minus_beta1);
    second = without_subnormals(second * set.beta2 + gradient * gradient * set.one_minus_beta2);
    value = value - first / (sqrt(second) * set.second_scale + set.eps) * set.step_size;
}

// λ − (η·a·g + λ·c/N) / (c + 2a·g·tanh λ + 2a·|g| + 1/η_max), where c = k·(1 − tanh²λ)
BAYESBINN_INLINE F bimu_step(F natural, F total, const BiMU &set) {
    const TanhAndSech2 mean = tanh_and_sech2(natural);
    const F metric = mean.sech2 * set.curvature, gradient = total * set.gain;
    const F damping = gradient * mean.tanh * 2.0f + abs(gradient) * 2.0f + set.inverse_max_lr;
    return natural - (gradient * set.lr + natural * metric * set.inverse_memory) / (metric + damping);
}

struct LogitGradients {
    F minus, plus;
};

// g₋ = −β·g·(1 + m(1 − m)/2), g₊ = β·g·(1 − m(1 + m)/2), where m = tanh(β·w/2)
BAYESBINN_INLINE LogitGradients pmf_logit_gradients(F m, F gradient, float beta) {
    const F g = gradient * beta;
    return {-(g * (m * (1.0f - m) * 0.5f + 1.0f)), g * (1.0f - m * (1.0f + m) * 0.5f)};
}

}  // namespace
}  // namespace bayesbinn
