// What every instruction set offers: one function per kernel, on a range of one tensor.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace bayesbinn {

// The generator gives its numbers to the elements of a tensor in blocks of this many.
constexpr int NOISE_BLOCK = 32;

// Elements worked on together: several blocks of noise, so that the processor overlaps the long
// chains of one with those of the next.
constexpr int BLOCK = 4 * NOISE_BLOCK;

// Elements of a tensor; `begin` is a multiple of BLOCK.
struct Range {
    size_t begin, end;
};

constexpr int MAX_ARRAYS = 8;

// One tensor's arrays. Each kernel says below which ones it takes, in this order.
struct Arrays {
    float *at[MAX_ARRAYS];
    uint64_t key;  // of its noise
    bool streams;  // store array 0 past the caches; it is aligned for that
};

struct SampleSettings {
    uint64_t draw;
    float inverse_temperature;
    float certain;  // from this |λ| on, no noise changes the sample
    bool held;      // the parameter holds sign(λ): blocks that are certain need no writing
};

// s = ((1 − w²) + ε) / (τ·(v(λ) + ε))
struct ScaleSettings {
    uint64_t draw;
    float temperature, inverse_temperature, eps;
    float certain;        // from this |λ| on, 1 − w² = v(λ) = 0 whatever the noise, and
    float certain_scale;  // s is this
};

struct NaturalGradientSettings {
    ScaleSettings scale;
    bool scaled;  // the gradients are Σ s⊙g already
    bool steady;  // steps are in proportion to v(λ)
    float lr, data_weight, kl_weight, momentum, one_minus_momentum, relaxation;
};

struct AdamSettings {
    float step_size, beta1, one_minus_beta1, beta2, one_minus_beta2, second_scale, eps, weight_decay;
    bool decays;
};

struct Kernels {
    const char *name;

    // 0: parameter (written), 1: source
    void (*sign)(const Arrays &, Range);
    void (*tanh)(float scale, const Arrays &, Range);

    // 0: parameter (written), 1: ũ₋, 2: ũ₊
    void (*pmf_sign)(const Arrays &, Range);
    void (*pmf_weights)(float half_beta, const Arrays &, Range);

    // 0: parameter (written), 1: λ
    void (*relaxed_sample)(const SampleSettings &, const Arrays &, Range);
    void (*hard_sample)(const SampleSettings &, const Arrays &, Range);

    // 0: parameter (written), 1: λ, 2: 1 − w² (written) or null
    void (*training_sample)(const SampleSettings &, const Arrays &, Range);

    // 0: parameter (written unless the block is certain), 1: λ
    void (*restore_mode)(float certain, const Arrays &, Range);

    // 0: total (updated), 1: λ, 2: g
    void (*accumulate_scaled)(const ScaleSettings &, const Arrays &, Range);

    // 0: parameter (written), 1: λ (updated), 2: momentum (updated) or null, 3: g, 4: λ₀ or null,
    // 5: 1 − w² as the sample had it, or null to draw its noise again
    void (*bayesbinn_update)(const NaturalGradientSettings &, const Arrays &, Range);

    // 0: value, 1: first moment, 2: second moment (all updated), 3: g
    void (*adam)(const AdamSettings &, const Arrays &, Range);

    // 0: parameter (written), 1: latent, 2: first moment, 3: second moment (all updated), 4: g
    void (*ste_update)(const AdamSettings &, float clip, const Arrays &, Range);

    // 0: parameter, 1: average (both updated), 2: g
    void (*bop_update)(float rate, float one_minus_rate, float threshold, const Arrays &, Range);

    // 0: parameter (written), 1: ũ₋, 2: ũ₊, 3, 4: their first moments, 5, 6: their second moments (all updated), 7: g
    void (*pmf_update)(const AdamSettings &, float beta, float half_beta, const Arrays &, Range);

    // Whether |x| ≤ limit for all values, which NaN never is; the limit is finite and not negative.
    bool (*all_within)(float limit, const float *values, size_t count);

    // Bit 1 is +1, the lowest bit first; bits beyond `count` are 0.
    void (*pack_signs)(const float *values, size_t count, uint8_t *bits);

    // The generator's words for one block of noise, for its known answers.
    void (*random_bits)(uint64_t key, uint64_t draw, uint64_t b, uint32_t (&words)[NOISE_BLOCK]);
};

extern const Kernels kernels_portable, kernels_avx2, kernels_avx512, kernels_neon;

}  // namespace bayesbinn
