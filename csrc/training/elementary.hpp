// exp, log and tanh: src/bayesbinn/kernels/elementary.py, operation by operation, so that both
// agree in every bit. Compile without contraction to fused operations.
#pragma once

#include "vectors.hpp"

namespace bayesbinn {
namespace {

constexpr double LN2 = 0.693147180559945309417232121458;

// Where float32 tanh rounds to 1.
constexpr float SATURATION = (float)(13 * LN2);

// (ln 2)ᵏ/k!, for 2ᶠ
constexpr float EXP2_TAYLOR[] = {
    1.0f,
    (float)LN2,
    (float)(LN2 * LN2 / 2),
    (float)(LN2 * LN2 * LN2 / 6),
    (float)(LN2 * LN2 * LN2 * LN2 / 24),
    (float)(LN2 * LN2 * LN2 * LN2 * LN2 / 120),
    (float)(LN2 * LN2 * LN2 * LN2 * LN2 * LN2 / 720),
    (float)(LN2 * LN2 * LN2 * LN2 * LN2 * LN2 * LN2 / 5040),
};

// 1/(2k+1), for atanh(s)/s in s²
constexpr float ATANH_TAYLOR[] = {1.0f, (float)(1.0 / 3), (float)(1.0 / 5), (float)(1.0 / 7), (float)(1.0 / 9)};

template <int N>
BAYESBINN_INLINE F horner(F x, const float (&coefficients)[N]) {
    F value = broadcast(coefficients[N - 1]);
    for (int k = N - 2; k >= 0; k--) value = value * x + coefficients[k];
    return value;
}

// exp(−2a) for a ≥ 0, down to 2⁻¹²⁶.
BAYESBINN_INLINE F exp_minus_2(F a) {
    const F t = at_least(a * (float)(-2 / LN2), -126.0f);
    // Adding 1.5·2²³ rounds to an integer, ties to even, and leaves it in the lowest bits.
    const F shifted = t + 0x1.8p23f;
    const F whole = shifted - 0x1.8p23f;
    const F power = (F)(((U)shifted + 127u) << 23);
    return horner(t - whole, EXP2_TAYLOR) * power;
}

// tanh x, exactly ±1 from |x| = 13·ln 2 on.
BAYESBINN_INLINE F tanh(F x) {
    const F a = abs(x), e = exp_minus_2(a);
    return with_sign(select(a < SATURATION, (1.0f - e) / (1.0f + e), broadcast(1.0f)), x);
}

// v(x) = 1 − tanh² x = sech² x for |x| < 13·ln 2, else 0.
BAYESBINN_INLINE F sech2(F x) {
    const F a = abs(x), e = exp_minus_2(a), d = 1.0f + e;
    return select(a < SATURATION, (4.0f * e) / (d * d), F{});
}

struct TanhAndSech2 {
    F tanh, sech2;
};

// Both with one exp.
BAYESBINN_INLINE TanhAndSech2 tanh_and_sech2(F x) {
    const F a = abs(x), e = exp_minus_2(a), d = 1.0f + e;
    return {
        with_sign(select(a < SATURATION, (1.0f - e) / d, broadcast(1.0f)), x),
        select(a < SATURATION, (4.0f * e) / (d * d), F{}),
    };
}

// ½·log(u/(1 − u)); log y = e·log 2 + 2·atanh((m − 1)/(m + 1)) with y = m·2ᵉ, m between √½ and √2.
BAYESBINN_INLINE F half_logit(F u) {
    const I bits = (I)(u / (1.0f - u));
    // elementary.py splits y into m and e and, if m > √2, halves m and increments e. Counting the
    // exponent from the first float above √½ does both at once.
    const I exponent = (bits - 0x3f3504f4) >> 23;
    const F mantissa = (F)((U)bits - ((U)exponent << 23));
    const F s = (mantissa - 1.0f) / (mantissa + 1.0f);
    return __builtin_convertvector(exponent, F) * (float)(LN2 / 2) + s * horner(s * s, ATANH_TAYLOR);
}

}  // namespace
}  // namespace bayesbinn
