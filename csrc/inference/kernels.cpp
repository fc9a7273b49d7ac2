// Every kernel of inference, compiled once per instruction set; BAYESBINN_ISA is its name.
#include "kernels.hpp"

#include <math.h>

#include "lanes.hpp"

namespace bayesbinn::inference {
namespace {

constexpr size_t LANES = 8;
typedef float F __attribute__((vector_size(LANES * 4)));
typedef uint32_t U __attribute__((vector_size(LANES * 4)));

BAYESBINN_INLINE F load(const float *from) {
    F x;
    memcpy(&x, from, sizeof x);
    return x;
}

BAYESBINN_INLINE void store(float *to, F x) { memcpy(to, &x, sizeof x); }

// ---- activations ------------------------------------------------------------------------------

float largest(const float *x, size_t count) {
    // Without the sign, floats are ordered as their bits are: finite, infinite, NaN.
    uint32_t most[LANES] = {};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) {
            uint32_t bits;
            memcpy(&bits, x + i + lane, sizeof bits);
            bits &= 0x7fffffff;
            most[lane] = bits > most[lane] ? bits : most[lane];
        }
    for (; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        most[0] = bits > most[0] ? bits : most[0];
    }
    for (size_t lane = 1; lane < LANES; lane++) most[0] = most[lane] > most[0] ? most[lane] : most[0];
    if (most[0] >= 0x7f800000) return NAN;
    float result;
    memcpy(&result, most, sizeof result);
    return result;
}

// Eight tables from 32 integers; returns Σ|q|.
#if defined(__AVX2__)

// A table as 16 words: word e is the sum of those q whose bit is set in e. A multiply-add of
// bytes forms it for two of the four; the masks pick the bits of e.
alignas(32) const int8_t BITS_0_1[32] = {0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1,
                                         0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1};
alignas(32) const int8_t BITS_2_3[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0,
                                         0, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1};

BAYESBINN_INLINE int32_t eight_tables(__m256i q, uint8_t *tables) {
    const __m256i first = _mm256_load_si256((const __m256i *)BITS_0_1);
    const __m256i second = _mm256_load_si256((const __m256i *)BITS_2_3);
    const __m256i ones = _mm256_set1_epi8(1), low = _mm256_set1_epi16(31), none = _mm256_setzero_si256();
    // The sum of the negative q of each group, in both halves of 32 bits: subtracting it turns a
    // sum over set bits into a sum over agreeing signs.
    const __m256i negative = _mm256_madd_epi16(
        _mm256_maddubs_epi16(ones, _mm256_min_epi8(q, none)), _mm256_set1_epi16(1)
    );
    alignas(32) int32_t groups[8], bases[8];
    _mm256_store_si256((__m256i *)groups, q);
    _mm256_store_si256((__m256i *)bases, _mm256_blend_epi16(negative, _mm256_slli_epi32(negative, 16), 0xAA));
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const __m256i four = _mm256_set1_epi32(groups[g]);
        const __m256i q01 = _mm256_shuffle_epi8(four, _mm256_set1_epi16(0x0100));
        const __m256i q23 = _mm256_shuffle_epi8(four, _mm256_set1_epi16(0x0302));
        const __m256i sums = _mm256_sub_epi16(
            _mm256_add_epi16(_mm256_maddubs_epi16(first, q01), _mm256_maddubs_epi16(second, q23)),
            _mm256_set1_epi32(bases[g])
        );
        const __m256i parts = _mm256_packus_epi16(_mm256_and_si256(sums, low), _mm256_srli_epi16(sums, 5));
        _mm256_storeu_si256((__m256i *)(tables + TABLE * g), _mm256_permute4x64_epi64(parts, 0xD8));
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
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return eight_tables(_mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order), tables);
}

#else

BAYESBINN_INLINE int32_t tables_of_32(const float *x, float inverse, uint8_t *tables) {
    typedef int16_t Sums __attribute__((vector_size(32)));
    const Sums entry = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32_t magnitude = 0;
    for (int g = 0; g < 8; g++) {
        Sums sums = {};
        for (int j = 0; j < 4; j++) {
            const int16_t q = (int16_t)lrintf(x[4 * g + j] * inverse);
            const int16_t size = (int16_t)(q < 0 ? -q : q);
            const Sums set = -((entry >> j) & 1);  // all ones where bit j is set
            sums += (q < 0 ? ~set : set) & size;
            magnitude += size;
        }
        for (int e = 0; e < 16; e++) {
            tables[TABLE * g + e] = (uint8_t)(sums[e] & 31);
            tables[TABLE * g + 16 + e] = (uint8_t)(sums[e] >> 5);
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
        memcpy(tables + TABLE * (i / GROUP), last, TABLE * ((count - i + GROUP - 1) / GROUP));
    }
    return magnitude;
}

// ---- looking up -------------------------------------------------------------------------------

// Weights are read once and often from far away: asking for them so many bytes early hides the way.
constexpr size_t AHEAD = 8192;

// A byte of the weights has 4 bits of output r in its low half and 4 of output r + 32 in its high half.
template <int N>
BAYESBINN_INLINE void look_up_windows(
    const uint8_t *weights, size_t blocks, const uint32_t *offsets, const uint8_t *const *tables, int32_t *totals
) {
    memset(totals, 0, sizeof(int32_t) * TILE * N);
    for (size_t from = 0; from < blocks; from += MOST_BLOCKS) {
        const size_t to = blocks - from < MOST_BLOCKS ? blocks : from + MOST_BLOCKS;
        Totals low[N][2], high[N][2];
        for (size_t pair = from; pair < to; pair += 2) {
            Bytes highs[N][2];
            for (int n = 0; n < N; n++) highs[n][0] = highs[n][1] = zero();
            for (size_t b = pair; b < to && b < pair + 2; b++) {
                const uint8_t *const w = weights + BYTES * BLOCK * b;
                const size_t offset = offsets[b];
                for (size_t line = 0; line < BYTES * BLOCK; line += 64) __builtin_prefetch(w + AHEAD + line);
                Bytes lows[N][2];
                for (int n = 0; n < N; n++) lows[n][0] = lows[n][1] = zero();
#pragma GCC unroll 8
                for (size_t g = 0; g < BLOCK; g++) {
                    const Bytes bits = load_bytes(w + BYTES * g);
                    const Bytes index[2] = {low_halves(bits), high_halves(bits)};
#pragma GCC unroll 4
                    for (int n = 0; n < N; n++) {
                        const uint8_t *const table = tables[n] + offset + TABLE * g;
                        const Table low_parts = load_table(table), high_parts = load_table(table + 16);
#pragma GCC unroll 2
                        for (int half = 0; half < 2; half++) {
                            lows[n][half] = add_bytes(lows[n][half], look_up(low_parts, index[half]));
                            highs[n][half] = add_bytes(highs[n][half], look_up(high_parts, index[half]));
                            BAYESBINN_KEEP(lows[n][half]);
                            BAYESBINN_KEEP(highs[n][half]);
                        }
                    }
                }
                for (int n = 0; n < N; n++)
                    for (int half = 0; half < 2; half++) low[n][half].add(lows[n][half]);
            }
            for (int n = 0; n < N; n++)
                for (int half = 0; half < 2; half++) high[n][half].add(highs[n][half]);
        }
        for (int n = 0; n < N; n++)
            for (int half = 0; half < 2; half++)
                add_totals(totals + TILE * n + BYTES * half, low[n][half], high[n][half]);
    }
}

void look_up_any(
    const uint8_t *weights, size_t blocks, const uint32_t *offsets, const uint8_t *const *tables, size_t windows,
    int32_t *totals
) {
    if (windows == 2)
        look_up_windows<2>(weights, blocks, offsets, tables, totals);
    else
        look_up_windows<1>(weights, blocks, offsets, tables, totals);
}

// ---- finishing --------------------------------------------------------------------------------

BAYESBINN_INLINE float limited(float y, const Finish &finish) {
    y = y < finish.low ? finish.low : y;  // a NaN passes both comparisons
    return y > finish.high ? finish.high : y;
}

void finish_totals(
    const int32_t *totals, int32_t magnitude, float factor, const Finish &finish, size_t count, float *y
) {
    if (finish.scale)
        for (size_t i = 0; i < count; i++) {
            const float product = factor * (float)(2 * totals[i] - magnitude);
            y[i] = limited(product * finish.scale[i] + finish.shift[i], finish);
        }
    else
        for (size_t i = 0; i < count; i++) y[i] = limited(factor * (float)(2 * totals[i] - magnitude), finish);
}

void finish_values(const float *x, const Finish &finish, size_t count, float *y) {
    if (finish.scale)
        for (size_t i = 0; i < count; i++) y[i] = limited(x[i] * finish.scale[i] + finish.shift[i], finish);
    else
        for (size_t i = 0; i < count; i++) y[i] = limited(x[i], finish);
}

// ---- exact: pairs of float activations -----------------------------------------------------------

void build_pairs(const float *x, size_t count, float *pairs) {
    for (size_t k = 0; k < count; k += 2) {
        pairs[2 * k] = -x[k] - x[k + 1];
        pairs[2 * k + 1] = x[k] - x[k + 1];
        pairs[2 * k + 2] = -x[k] + x[k + 1];
        pairs[2 * k + 3] = x[k] + x[k + 1];
    }
}

// The entry of `pair` that the two lowest bits of each lane name.
BAYESBINN_INLINE F chosen(const float *pair, U bits) {
#if defined(__AVX2__)
    const __m256 table = _mm256_broadcast_ps((const __m128 *)pair);
    return (F)_mm256_permutevar_ps(table, (__m256i)bits);
#else
    // x₁ + x₀ and x₁ − x₀, and the sign of x₁: two choices and a change of sign.
    const U same = (bits ^ (bits >> 1)) & 1, up = (bits >> 1) & 1;
    const U sum = (U)(F{} + pair[3]), difference = (U)(F{} + pair[2]);
    const U size = (sum & (same - 1)) | (difference & ~(same - 1));
    return (F)(size ^ ((up ^ 1) << 31));
#endif
}

template <int N>
BAYESBINN_INLINE void add_pairs_of(const uint32_t *weights, size_t words, const float *const *pairs, float *y) {
    constexpr int VECTORS = PAIR_TILE / LANES;
    F sums[N][VECTORS] = {};
    for (size_t word = 0; word < words; word++) {
        U bits[VECTORS];
        const uint8_t *const ahead = (const uint8_t *)(weights + PAIR_TILE * word) + AHEAD;
        for (size_t line = 0; line < sizeof bits; line += 64) __builtin_prefetch(ahead + line);
        memcpy(bits, weights + PAIR_TILE * word, sizeof bits);
        for (size_t j = 0; j < WORD / 2; j++) {
#pragma GCC unroll 2
            for (int n = 0; n < N; n++)
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sums[n][v] += chosen(pairs[n] + 2 * WORD * word + 4 * j, bits[v]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) bits[v] >>= 2;
        }
    }
    memcpy(y, sums, sizeof sums);
}

void add_pairs(const uint32_t *weights, size_t words, const float *const *pairs, size_t windows, float *y) {
    if (windows == 2)
        add_pairs_of<2>(weights, words, pairs, y);
    else
        add_pairs_of<1>(weights, words, pairs, y);
}

// ---- real weights and the rest --------------------------------------------------------------------

template <int N>
BAYESBINN_INLINE void multiply_windows(const float *weights, size_t count, const float *const *x, float *y) {
    constexpr int VECTORS = PAIR_TILE / LANES;
    F sums[N][VECTORS] = {};
    for (size_t k = 0; k < count; k++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const F w = load(weights + PAIR_TILE * k + LANES * v);
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) sums[n][v] += w * x[n][k];
        }
    memcpy(y, sums, sizeof sums);
}

void multiply(const float *weights, size_t count, const float *const *x, size_t windows, float *y) {
    if (windows == 2)
        multiply_windows<2>(weights, count, x, y);
    else
        multiply_windows<1>(weights, count, x, y);
}

void multiply_add(const float *x, const float *w, size_t count, float *y) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) store(y + i, load(y + i) + load(x + i) * load(w + i));
    for (; i < count; i++) y[i] += x[i] * w[i];
}

void take_larger(const float *x, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] = x[i] > y[i] || x[i] != x[i] ? x[i] : y[i];
}

void add(const float *x, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] += x[i];
}

void scale(float factor, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] *= factor;
}

}  // namespace

#define BAYESBINN_JOIN(a, b) a##b
#define BAYESBINN_NAMED(a, b) BAYESBINN_JOIN(a, b)
#define BAYESBINN_TEXT(a) #a
#define BAYESBINN_QUOTED(a) BAYESBINN_TEXT(a)

const Kernels BAYESBINN_NAMED(kernels_, BAYESBINN_ISA) = {
    BAYESBINN_QUOTED(BAYESBINN_ISA),
    largest,
    build_tables,
    look_up_any,
    finish_totals,
    build_pairs,
    add_pairs,
    multiply,
    finish_values,
    multiply_add,
    take_larger,
    add,
    scale,
};

}  // namespace bayesbinn::inference
