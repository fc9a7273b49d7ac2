// From float activations to 8-bit integers and the tables of their sums.
//
// In an unnamed namespace, like lanes.hpp: each instruction set compiles its own copy.
#pragma once

#include <math.h>

#include "kernels.hpp"
#include "lanes.hpp"

namespace bayesbinn::inference {
namespace {

// Eight tables from 32 integers; returns Σ|q|.
#if defined(__AVX2__)

// Two tables at a time, one in each half of a register, as 8 words for entries 0–7 and 8 for entries 8–15. A
// multiply-add of bytes sums two of the four q; the masks are the bits of the entries. `q` has the groups
// 0, 2, 4, 6 in its first half, 1, 3, 5, 7 in its second.
BAYESBINN_INLINE int32_t eight_tables(__m256i q, uint8_t *tables) {
    const __m256i bits_0_1 = _mm256_set1_epi64x(0x0101010000010000);
    const __m256i bits_2_3 = _mm256_setr_epi64x(0, 0x0001000100010001, 0, 0x0001000100010001);
    const __m256i bits_2_3_from_8 =
        _mm256_setr_epi64x(0x0100010001000100, 0x0101010101010101, 0x0100010001000100, 0x0101010101010101);
    const __m256i ones = _mm256_set1_epi8(1), low = _mm256_set1_epi16(31), none = _mm256_setzero_si256();
    // The sum of the negative q of each group: subtracting it turns a sum over set bits into one over agreeing signs.
    const __m256i negative =
        _mm256_madd_epi16(_mm256_maddubs_epi16(ones, _mm256_min_epi8(q, none)), _mm256_set1_epi16(1));
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) {
        const __m256i first = _mm256_set1_epi16((short)(0x0100 + 0x0404 * pair));
        const __m256i second = _mm256_set1_epi16((short)(0x0302 + 0x0404 * pair));
        const __m256i base = _mm256_shuffle_epi8(negative, first);
        const __m256i q01 = _mm256_shuffle_epi8(q, first), q23 = _mm256_shuffle_epi8(q, second);
        const __m256i common = _mm256_sub_epi16(_mm256_maddubs_epi16(bits_0_1, q01), base);
        const __m256i sums = _mm256_add_epi16(common, _mm256_maddubs_epi16(bits_2_3, q23));
        const __m256i sums_from_8 = _mm256_add_epi16(common, _mm256_maddubs_epi16(bits_2_3_from_8, q23));
        const __m256i lows = _mm256_packus_epi16(_mm256_and_si256(sums, low), _mm256_and_si256(sums_from_8, low));
        const __m256i highs = _mm256_packus_epi16(_mm256_srli_epi16(sums, 5), _mm256_srli_epi16(sums_from_8, 5));
        _mm256_storeu_si256((__m256i *)(tables + 2 * TABLE * pair), lows);
        _mm256_storeu_si256((__m256i *)(tables + 2 * TABLE * pair + HIGH_PARTS), highs);
    }
    const __m256i magnitudes = _mm256_sad_epu8(_mm256_abs_epi8(q), none);
    const __m128i halves = _mm_add_epi32(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256(magnitudes, 1));
    return _mm_cvtsi128_si32(halves) + _mm_extract_epi32(halves, 2);
}

BAYESBINN_INLINE __m256i eight_integers(const float *x, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

BAYESBINN_INLINE int32_t tables_of_32(const float *x, float inverse, uint8_t *tables) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256i ab = _mm256_packs_epi32(eight_integers(x, factor), eight_integers(x + 8, factor));
    const __m256i cd = _mm256_packs_epi32(eight_integers(x + 16, factor), eight_integers(x + 24, factor));
    return eight_tables(_mm256_packs_epi16(ab, cd), tables);  // packing within halves gives the right order
}

#elif defined(__wasm_simd128__)

// The eight words at `from` as integers, x·inverse rounded to even.
BAYESBINN_INLINE v128_t eight_integers(const float *from, v128_t inverse) {
    const auto four = [&](const float *x) {
        return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x), inverse)));
    };
    return wasm_i16x8_narrow_i32x4(four(from), four(from + 4));
}

// Word LANE everywhere.
template <int LANE>
BAYESBINN_INLINE v128_t everywhere(v128_t words) {
    return wasm_i16x8_shuffle(words, words, LANE, LANE, LANE, LANE, LANE, LANE, LANE, LANE);
}

// Two tables from eight integers. Entry e is the sum of the q of its set bits, less that of all negative q: this turns
// a sum over set bits into one over agreeing signs.
template <int FIRST>
BAYESBINN_INLINE void two_tables(v128_t q, v128_t negative, uint8_t *tables) {
    const v128_t bit_0 = wasm_i16x8_const(0, -1, 0, -1, 0, -1, 0, -1);
    const v128_t bit_1 = wasm_i16x8_const(0, 0, -1, -1, 0, 0, -1, -1);
    const v128_t bit_2 = wasm_i16x8_const(0, 0, 0, 0, -1, -1, -1, -1);
    const v128_t low = wasm_i16x8_const_splat(31);
    const auto table = [&](v128_t q0, v128_t q1, v128_t q2, v128_t q3, v128_t base, uint8_t *to) {
        const v128_t first = wasm_i16x8_add(wasm_v128_and(q0, bit_0), wasm_v128_and(q1, bit_1));
        const v128_t sums = wasm_i16x8_add(first, wasm_i16x8_sub(wasm_v128_and(q2, bit_2), base));
        const v128_t sums_from_8 = wasm_i16x8_add(sums, q3);
        wasm_v128_store(to, wasm_u8x16_narrow_i16x8(wasm_v128_and(sums, low), wasm_v128_and(sums_from_8, low)));
        const v128_t high = wasm_u16x8_shr(sums, 5), high_from_8 = wasm_u16x8_shr(sums_from_8, 5);
        wasm_v128_store(to + HIGH_PARTS, wasm_u8x16_narrow_i16x8(high, high_from_8));
    };
    table(
        everywhere<0>(q), everywhere<1>(q), everywhere<2>(q), everywhere<3>(q), everywhere<FIRST>(negative),
        tables + table_at(FIRST)
    );
    table(
        everywhere<4>(q), everywhere<5>(q), everywhere<6>(q), everywhere<7>(q), everywhere<FIRST + 1>(negative),
        tables + table_at(FIRST + 1)
    );
}

BAYESBINN_INLINE int32_t tables_of_32(const float *x, float inverse, uint8_t *tables) {
    const v128_t factor = wasm_f32x4_splat(inverse), none = wasm_i16x8_const_splat(0);
    v128_t q[4], size = none, fours[2];
    for (int i = 0; i < 4; i++) {
        q[i] = eight_integers(x + 8 * i, factor);
        size = wasm_i16x8_add(size, wasm_i16x8_abs(q[i]));
    }
    for (int i = 0; i < 2; i++) {
        const auto pairs = [&](v128_t words) { return wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_min(words, none)); };
        fours[i] = wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_narrow_i32x4(pairs(q[2 * i]), pairs(q[2 * i + 1])));
    }
    const v128_t negative = wasm_i16x8_narrow_i32x4(fours[0], fours[1]);  // of the eight groups
    two_tables<0>(q[0], negative, tables);
    two_tables<2>(q[1], negative, tables);
    two_tables<4>(q[2], negative, tables);
    two_tables<6>(q[3], negative, tables);
    const v128_t sizes = wasm_i32x4_extadd_pairwise_i16x8(size);
    return wasm_i32x4_extract_lane(sizes, 0) + wasm_i32x4_extract_lane(sizes, 1) + wasm_i32x4_extract_lane(sizes, 2) +
        wasm_i32x4_extract_lane(sizes, 3);
}

#else

BAYESBINN_INLINE int32_t tables_of_32(const float *x, float inverse, uint8_t *tables) {
    typedef int16_t Sums __attribute__((vector_size(32)));
    const Sums entry = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32_t magnitude = 0;
    for (size_t g = 0; g < 8; g++) {
        Sums sums = {};
        for (size_t j = 0; j < 4; j++) {
            const int16_t q = (int16_t)lrintf(x[4 * g + j] * inverse);
            const int16_t size = (int16_t)(q < 0 ? -q : q);
            const Sums set = -((entry >> j) & 1);  // all ones where bit j is set
            sums += (q < 0 ? ~set : set) & size;
            magnitude += size;
        }
        for (int e = 0; e < 16; e++) {
            tables[table_at(g) + e] = (uint8_t)(sums[e] & 31);
            tables[table_at(g) + HIGH_PARTS + e] = (uint8_t)(sums[e] >> 5);
        }
    }
    return magnitude;
}

#endif

int32_t build_tables(const float *x, size_t count, float inverse, uint8_t *tables) {
    int32_t magnitude = 0;
    size_t i = 0;
    for (; i + 32 <= count; i += 32) magnitude += tables_of_32(x + i, inverse, tables + TABLE * (i / GROUP));
    if (i < count) {
        float rest[32] = {};
        uint8_t last[8 * TABLE];
        memcpy(rest, x + i, sizeof(float) * (count - i));
        magnitude += tables_of_32(rest, inverse, last);
        memcpy(tables + TABLE * (i / GROUP), last, tables_bytes(count - i));
    }
    return magnitude;
}

}  // namespace
}  // namespace bayesbinn::inference
