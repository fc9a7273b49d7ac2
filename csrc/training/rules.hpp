// The update rules of src/bayesbinn/kernels/twin.py on one vector, operation by operation.
// λ is `natural`, δ `delta`, τ the temperature, α `lr`, N/S `data_weight`, κ `kl_weight`.
#pragma once

#include "elementary.hpp"
#include "kernels.hpp"

namespace bayesbinn {
namespace {

constexpr float FADING = 0.05f;  // φ

BAYESBINN_INLINE F sign(F x) { return select(x >= 0.0f, broadcast(1.0f), broadcast(-1.0f)); }

// w = tanh((λ + δ)/τ)
BAYESBINN_INLINE F relaxed_sample(F natural, F delta, const SampleSettings &set) {
    return tanh((natural + delta) * set.inverse_temperature);
}

// 1 − w²
BAYESBINN_INLINE F sample_slope(F natural, F delta, const ScaleSettings &set) {
    return sech2((natural + delta) * set.inverse_temperature);
}

// s = ((1 − w²) + ε) / (τ·(v(λ) + ε))
BAYESBINN_INLINE F gradient_scale(F natural, F slope, const ScaleSettings &set) {
    return (slope + set.eps) / ((sech2(natural) + set.eps) * set.temperature);
}

// (N/S)·Σ s⊙g + κ·(λ − λ₀), where pull = λ − λ₀
BAYESBINN_INLINE F natural_gradient(F scaled_gradient, F pull, const NaturalGradientSettings &set) {
    return scaled_gradient * set.data_weight + pull * set.kl_weight;
}

// v·[(N/S)·Σ s⊙g + κ·(λ − λ₀)] + (v + φ)·ρ·λ, where v = v(λ): what is certain hardly moves, but fades a little
BAYESBINN_INLINE F
steady_gradient(F scaled_gradient, F pull, F natural, F variance, const NaturalGradientSettings &set) {
    return natural_gradient(scaled_gradient, pull, set) * variance + natural * set.relaxation * (variance + FADING);
}

// m ← β·m + (1 − β)·direction
BAYESBINN_INLINE F averaged(F momentum, F direction, const NaturalGradientSettings &set) {
    return momentum * set.momentum + direction * set.one_minus_momentum;
}

// Adam on one value: m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², value ← value − step.
BAYESBINN_INLINE void adam_step(F &value, F &first, F &second, F gradient, const AdamSettings &set) {
    if (set.decays) gradient = gradient + value * set.weight_decay;
    first = first * set.beta1 + gradient * set.one_minus_beta1;
    second = second * set.beta2 + gradient * gradient * set.one_minus_beta2;
    value = value - first / (sqrt(second) * set.second_scale + set.eps) * set.step_size;
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
