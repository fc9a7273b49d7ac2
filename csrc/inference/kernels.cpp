// Every kernel of inference, compiled once per instruction set; BAYESBINN_ISA is its name.
#include "kernels.hpp"

#include <math.h>

#include "lanes.hpp"

namespace bayesbinn::inference {
namespace {

constexpr size_t LANES = 8;
typedef float F __attribute__((vector_size(LANES * 4)));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
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
    I most[4] = {};
    size_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (size_t k = 0; k < 4; k++) {
            const I bits = (I)load(x + i + LANES * k) & 0x7fffffff;
            most[k] = bits > most[k] ? bits : most[k];
        }
    for (; i < count; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        most[0][0] = bits > most[0][0] ? bits : most[0][0];
    }
    int32_t all = 0;
    for (size_t k = 0; k < 4; k++)
        for (size_t lane = 0; lane < LANES; lane++) all = most[k][lane] > all ? most[k][lane] : all;
    if (all >= 0x7f800000) return NAN;
    float result;
    memcpy(&result, &all, sizeof result);
    return result;
}

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
    const __m256i negative = _mm256_madd_epi16(
        _mm256_maddubs_epi16(ones, _mm256_min_epi8(q, none)), _mm256_set1_epi16(1)
    );
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
    return eight_tables(_mm256_packs_epi16(ab, cd), tables);  // packing works within halves: the order that is wanted
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

// ---- looking up -------------------------------------------------------------------------------

// Weights are read once and often from far away: asking for them so many bytes early hides the way.
constexpr size_t AHEAD = 8192;

BAYESBINN_INLINE void prefetch(const uint8_t *from, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(from + AHEAD + line);
}

// A byte of the weights has 4 bits of output r in its low half and 4 of output r + 32 in its high half.
void expand(const uint8_t *weights, size_t blocks, uint8_t *indices) {
    for (const uint8_t *const end = weights + BYTES * BLOCK * blocks; weights < end; weights += BYTES * BLOCK) {
        prefetch(weights, BYTES * BLOCK);
        for (size_t g = 0; g < BLOCK; g++, indices += 2 * BYTES) {
            const Bytes bits = load_bytes(weights + BYTES * g);
            store_bytes(indices, low_halves(bits));
            store_bytes(indices + BYTES, high_halves(bits));
        }
    }
}

template <int N, bool EXPANDED>
BAYESBINN_INLINE void look_up_windows(const LookUp &what, const uint8_t *const *tables, int32_t *totals) {
    constexpr size_t GROUP_BYTES = EXPANDED ? 2 * BYTES : BYTES;
    for (size_t from = 0; from < what.blocks; from += MOST_BLOCKS) {
        const size_t to = what.blocks - from < MOST_BLOCKS ? what.blocks : from + MOST_BLOCKS;
        Totals low[N][2], high[N][2];
        for (size_t pair = from; pair < to; pair += 2) {
            Bytes highs[N][2];
            for (int n = 0; n < N; n++) highs[n][0] = highs[n][1] = zero();
            for (size_t b = pair; b < to && b < pair + 2; b++) {
                const uint8_t *const w = what.weights + GROUP_BYTES * BLOCK * b;
                const size_t offset = what.offsets[b];
                if (!EXPANDED) prefetch(w, GROUP_BYTES * BLOCK);
                Bytes lows[N][2];
                for (int n = 0; n < N; n++) lows[n][0] = lows[n][1] = zero();
#pragma GCC unroll 8
                for (size_t g = 0; g < BLOCK; g++) {
                    const Bytes first = load_bytes(w + GROUP_BYTES * g);
                    const Bytes index[2] = {
                        EXPANDED ? first : low_halves(first),
                        EXPANDED ? load_bytes(w + GROUP_BYTES * g + BYTES) : high_halves(first)
                    };
#pragma GCC unroll 4
                    for (int n = 0; n < N; n++) {
                        const uint8_t *const table = tables[n] + offset + table_at(g);
                        const Table low_parts = load_table(table), high_parts = load_table(table + HIGH_PARTS);
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
                store_totals(totals + TILE * n + BYTES * half, low[n][half], high[n][half], what.add || from > 0);
    }
}

void look_up_any(const LookUp &what, const uint8_t *const *tables, size_t windows, int32_t *totals) {
    if (windows == 2)
        (what.expanded ? look_up_windows<2, true> : look_up_windows<2, false>)(what, tables, totals);
    else
        (what.expanded ? look_up_windows<1, true> : look_up_windows<1, false>)(what, tables, totals);
}

// ---- finishing --------------------------------------------------------------------------------

BAYESBINN_INLINE float limited(float y, const Finish &finish) {
    y = y < finish.low ? finish.low : y;  // a NaN passes both comparisons
    return y > finish.high ? finish.high : y;
}

BAYESBINN_INLINE F limited(F y, const Finish &finish) {
    y = y < finish.low ? F{} + finish.low : y;
    return y > finish.high ? F{} + finish.high : y;
}

void finish_totals(
    const int32_t *totals, int32_t magnitude, float factor, const Finish &finish, size_t count, float *y
) {
    const Finish f = finish;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        I total;
        memcpy(&total, totals + i, sizeof total);
        F product = factor * __builtin_convertvector(2 * total - magnitude, F);
        if (f.scale) product = product * load(f.scale + i) + load(f.shift + i);
        store(y + i, limited(product, f));
    }
    for (; i < count; i++) {
        const float product = factor * (float)(2 * totals[i] - magnitude);
        y[i] = limited(f.scale ? product * f.scale[i] + f.shift[i] : product, f);
    }
}

void finish_values(const float *x, const Finish &finish, size_t count, float *y) {
    const Finish f = finish;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const F value = load(x + i);
        store(y + i, limited(f.scale ? value * load(f.scale + i) + load(f.shift + i) : value, f));
    }
    for (; i < count; i++) y[i] = limited(f.scale ? x[i] * f.scale[i] + f.shift[i] : x[i], f);
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

// The entry of a pair that the two lowest bits of each lane name.
#if defined(__AVX2__)
typedef __m256 Pair;
BAYESBINN_INLINE Pair load_pair(const float *pair) { return _mm256_broadcast_ps((const __m128 *)pair); }
BAYESBINN_INLINE F chosen(Pair pair, U bits) { return (F)_mm256_permutevar_ps(pair, (__m256i)bits); }
#else
typedef const float *Pair;
BAYESBINN_INLINE Pair load_pair(const float *pair) { return pair; }
BAYESBINN_INLINE F chosen(Pair pair, U bits) {
    // x₁ + x₀ and x₁ − x₀, and the sign of x₁: two choices and a change of sign.
    const U differ = (bits ^ (bits >> 1)) & 1, up = (bits >> 1) & 1;
    const U sum = (U)(F{} + pair[3]), difference = (U)(F{} + pair[2]);
    const U size = (sum & (differ - 1)) | (difference & ~(differ - 1));
    return (F)(size ^ ((up ^ 1) << 31));
}
#endif

BAYESBINN_INLINE U load_bits(const uint32_t *from) {
    U bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}

constexpr int VECTORS = PAIR_TILE / LANES;
constexpr size_t PAIRS = WORD / 2;

void expand_pairs(const uint32_t *weights, size_t words, uint32_t *indices) {
    for (size_t word = 0; word < words; word++, weights += PAIR_TILE) {
        prefetch((const uint8_t *)weights, PAIR_TILE * sizeof *weights);
        for (int v = 0; v < VECTORS; v++) {
            const U bits = load_bits(weights + LANES * v);
            for (size_t j = 0; j < PAIRS; j++) {
                const U index = bits >> (uint32_t)(2 * j);
                memcpy(indices + PAIR_TILE * (PAIRS * word + j) + LANES * v, &index, sizeof index);
            }
        }
    }
}

template <int N, bool EXPANDED>
BAYESBINN_INLINE void add_pairs_of(const PairSum &what, const float *const *pairs, float *y) {
    F sums[N][VECTORS];
#pragma GCC unroll 2
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[n][v] = what.add ? load(y + PAIR_TILE * n + LANES * v) : F{};
    for (size_t word = 0; word < what.words; word++) {
        const uint32_t *const weights = what.weights + PAIR_TILE * (EXPANDED ? PAIRS : 1) * word;
        U bits[VECTORS] = {};
        if (!EXPANDED) {
            prefetch((const uint8_t *)weights, PAIR_TILE * sizeof *weights);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) bits[v] = load_bits(weights + LANES * v);
        }
#pragma GCC unroll 2
        for (size_t j = 0; j < PAIRS; j++) {
            if (EXPANDED) {
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) bits[v] = load_bits(weights + PAIR_TILE * j + LANES * v);
            }
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                const Pair pair = load_pair(pairs[n] + 2 * WORD * word + 4 * j);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) sums[n][v] += chosen(pair, bits[v]);
            }
            if (!EXPANDED) {
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) bits[v] >>= 2;
            }
        }
    }
#pragma GCC unroll 2
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) store(y + PAIR_TILE * n + LANES * v, sums[n][v]);
}

void add_pairs(const PairSum &what, const float *const *pairs, size_t windows, float *y) {
    if (windows == 2)
        (what.expanded ? add_pairs_of<2, true> : add_pairs_of<2, false>)(what, pairs, y);
    else
        (what.expanded ? add_pairs_of<1, true> : add_pairs_of<1, false>)(what, pairs, y);
}

// ---- real weights and the rest --------------------------------------------------------------------

template <int N>
BAYESBINN_INLINE void multiply_windows(const float *weights, size_t count, const float *const *x, float *y) {
    F sums[N][VECTORS];
#pragma GCC unroll 2
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[n][v] = F{};
    for (size_t k = 0; k < count; k++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const F w = load(weights + PAIR_TILE * k + LANES * v);
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) sums[n][v] += w * x[n][k];
        }
#pragma GCC unroll 2
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) store(y + PAIR_TILE * n + LANES * v, sums[n][v]);
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

// Older compilers do not know the question, let alone the answer.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define BAYESBINN_SHUFFLES
#endif
#endif

// The rows of a square become its columns.
BAYESBINN_INLINE void turn(F *rows) {
#if defined(BAYESBINN_SHUFFLES)
    F wide[LANES];
    for (int i = 0; i < 4; i++) {  // the first and the second halves of rows i and i + 4
        wide[i] = __builtin_shufflevector(rows[i], rows[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        wide[i + 4] = __builtin_shufflevector(rows[i], rows[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    for (int half = 0; half < 8; half += 4) {
        const F *const w = wide + half;
        const F a = __builtin_shufflevector(w[0], w[1], 0, 8, 1, 9, 4, 12, 5, 13);
        const F b = __builtin_shufflevector(w[0], w[1], 2, 10, 3, 11, 6, 14, 7, 15);
        const F c = __builtin_shufflevector(w[2], w[3], 0, 8, 1, 9, 4, 12, 5, 13);
        const F d = __builtin_shufflevector(w[2], w[3], 2, 10, 3, 11, 6, 14, 7, 15);
        rows[half] = __builtin_shufflevector(a, c, 0, 1, 8, 9, 4, 5, 12, 13);
        rows[half + 1] = __builtin_shufflevector(a, c, 2, 3, 10, 11, 6, 7, 14, 15);
        rows[half + 2] = __builtin_shufflevector(b, d, 0, 1, 8, 9, 4, 5, 12, 13);
        rows[half + 3] = __builtin_shufflevector(b, d, 2, 3, 10, 11, 6, 7, 14, 15);
    }
#else
    F turned[LANES];
    for (size_t i = 0; i < LANES; i++)
        for (size_t j = 0; j < LANES; j++) turned[i][j] = rows[j][i];
    memcpy(rows, turned, sizeof turned);
#endif
}

// Cache lines that are a power of two apart share the few places of one set: in squares, each is read and written
// whole, once.
void transpose(const float *x, size_t rows, size_t columns, float *y) {
    constexpr size_t SIDE = 2 * LANES;
    for (size_t c0 = 0; c0 < columns; c0 += SIDE)
        for (size_t r0 = 0; r0 < rows; r0 += SIDE) {
            const size_t high = rows - r0 < SIDE ? rows - r0 : SIDE, wide = columns - c0 < SIDE ? columns - c0 : SIDE;
            const float *const from = x + r0 * columns + c0;
            float *const to = y + c0 * rows + r0;
            if (high < SIDE || wide < SIDE) {
                for (size_t c = 0; c < wide; c++)
                    for (size_t r = 0; r < high; r++) to[c * rows + r] = from[r * columns + c];
                continue;
            }
            F squares[2][2][LANES];  // [right][below]
            for (size_t r = 0; r < SIDE; r++)
                for (size_t right = 0; right < 2; right++)
                    squares[right][r / LANES][r % LANES] = load(from + r * columns + LANES * right);
            for (size_t right = 0; right < 2; right++)
                for (size_t below = 0; below < 2; below++) turn(squares[right][below]);
            for (size_t c = 0; c < SIDE; c++)
                for (size_t below = 0; below < 2; below++)
                    store(to + c * rows + LANES * below, squares[c / LANES][below][c % LANES]);
        }
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
    expand,
    look_up_any,
    finish_totals,
    build_pairs,
    expand_pairs,
    add_pairs,
    multiply,
    finish_values,
    multiply_add,
    take_larger,
    add,
    scale,
    transpose,
};

}  // namespace bayesbinn::inference
