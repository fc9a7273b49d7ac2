// The few vector operations that the kernels are written in, on the compiler's vector types.
//
// Everything here and in the files that include this one is in an unnamed namespace: each
// instruction set compiles its own copy, and the linker must not merge an AVX2 copy of a function
// into the portable path.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BAYESBINN_INLINE __attribute__((always_inline)) inline

namespace bayesbinn {
namespace {

// AVX-512 also uses eight lanes: the noise is laid out for eight, and these kernels gain from its
// 32 registers and three-operand logic, not from its width.
#if defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float F __attribute__((vector_size(LANES * 4)));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
typedef uint32_t U __attribute__((vector_size(LANES * 4)));
typedef uint64_t Wide __attribute__((vector_size(LANES * 4)));
typedef uint16_t Places __attribute__((vector_size(LANES * 2)));

BAYESBINN_INLINE F load(const float *from) {
    F x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
}

BAYESBINN_INLINE void store(float *to, F x) { __builtin_memcpy(to, &x, sizeof x); }

// A store past the caches, for an aligned address.
BAYESBINN_INLINE void stream(float *to, F x) {
#if defined(__AVX2__)
    _mm256_stream_ps(to, (__m256)x);
#elif defined(__x86_64__)
    _mm_stream_ps(to, (__m128)x);
#else
    store(to, x);
#endif
}

// Makes streamed data visible to the other threads.
BAYESBINN_INLINE void end_streaming() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

BAYESBINN_INLINE F broadcast(float x) { return x - F{}; }

BAYESBINN_INLINE F select(I mask, F yes, F no) { return mask ? yes : no; }

BAYESBINN_INLINE F abs(F x) { return (F)((U)x & 0x7fffffffu); }

// ±magnitude with the sign of `from`; the magnitude is not negative.
BAYESBINN_INLINE F with_sign(F magnitude, F from) { return (F)((U)magnitude | ((U)from & 0x80000000u)); }

// x < bound ? bound : x, so that NaN stays.
BAYESBINN_INLINE F at_least(F x, float bound) {
    const F low = broadcast(bound);
#if defined(__AVX2__)
    return (F)_mm256_max_ps((__m256)low, (__m256)x);
#elif defined(__x86_64__)
    return (F)_mm_max_ps((__m128)low, (__m128)x);
#else
    return select(x < low, low, x);
#endif
}

// x > bound ? bound : x, so that NaN stays.
BAYESBINN_INLINE F at_most(F x, float bound) {
    const F high = broadcast(bound);
#if defined(__AVX2__)
    return (F)_mm256_min_ps((__m256)high, (__m256)x);
#elif defined(__x86_64__)
    return (F)_mm_min_ps((__m128)high, (__m128)x);
#else
    return select(x > high, high, x);
#endif
}

BAYESBINN_INLINE F sqrt(F x) {
#if defined(__AVX2__)
    return (F)_mm256_sqrt_ps((__m256)x);
#elif defined(__x86_64__)
    return (F)_mm_sqrt_ps((__m128)x);
#elif defined(__aarch64__)
    return (F)vsqrtq_f32((float32x4_t)x);
#else
    for (int lane = 0; lane < LANES; lane++) x[lane] = __builtin_sqrtf(x[lane]);
    return x;
#endif
}

// One bit per lane of a comparison's result, lane 0 lowest.
BAYESBINN_INLINE unsigned lane_bits(I mask) {
#if defined(__AVX2__)
    return (unsigned)_mm256_movemask_ps((__m256)mask);
#elif defined(__x86_64__)
    return (unsigned)_mm_movemask_ps((__m128)mask);
#elif defined(__aarch64__)
    const uint32x4_t weight = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32((uint32x4_t)mask, weight));
#else
    unsigned bits = 0;
    for (int lane = 0; lane < LANES; lane++) bits |= (unsigned)(mask[lane] & 1) << lane;
    return bits;
#endif
}

constexpr unsigned ALL_LANES = (1u << LANES) - 1;

BAYESBINN_INLINE bool all(I mask) { return lane_bits(mask) == ALL_LANES; }

BAYESBINN_INLINE bool any(I mask) { return lane_bits(mask) != 0; }

BAYESBINN_INLINE int count_lanes(unsigned lanes) {
    // Without its instruction, __builtin_popcount is a function; four lanes have sixteen cases.
    return LANES == 4 ? (int)(0x4332322132212110u >> 4 * lanes & 7) : __builtin_popcount(lanes);
}

// Writes first + lane for each of the given lanes, in order, and returns how many they are. There must be room for all
// lanes.
BAYESBINN_INLINE int list_lanes(unsigned lanes, unsigned first, uint16_t *to) {
#if defined(__AVX512VL__)
    const U places = first + U{0, 1, 2, 3, 4, 5, 6, 7};
    const __m256i chosen = _mm256_maskz_compress_epi32((__mmask8)lanes, (__m256i)places);
    _mm_storeu_si128((__m128i *)to, _mm256_cvtepi32_epi16(chosen));
#else
    for (unsigned left = lanes; left; left &= left - 1) *to++ = (uint16_t)(first + (unsigned)__builtin_ctz(left));
#endif
    return count_lanes(lanes);
}

// The 64-bit product of the low half of each lane with `factor`; the high halves are ignored.
BAYESBINN_INLINE Wide multiply_low(Wide x, uint32_t factor) {
#if defined(__AVX2__)
    return (Wide)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(factor));
#elif defined(__x86_64__)
    return (Wide)_mm_mul_epu32((__m128i)x, _mm_set1_epi64x(factor));
#elif defined(__aarch64__)
    return (Wide)vmull_n_u32(vmovn_u64((uint64x2_t)x), factor);
#else
    return (x & 0xffffffffu) * factor;
#endif
}

}  // namespace
}  // namespace bayesbinn
