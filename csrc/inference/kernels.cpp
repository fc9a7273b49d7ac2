// Every kernel of inference, compiled once per instruction set; BAYESBINN_ISA is its name.
#include "kernels.hpp"

#include <math.h>

#include "lanes.hpp"
#include "tables.hpp"
#include "transpose.hpp"
#include "vectors.hpp"

namespace bayesbinn::inference {
namespace {

// ---- activations ------------------------------------------------------------------------------

float largest(const float *x, size_t count) {
    // Without the sign, floats are ordered like their bits: finite, infinite, NaN.
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

// ---- looking up -------------------------------------------------------------------------------

// Weights are read once, often from main memory: prefetching them this many bytes ahead hides the latency.
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
    for (size_t from = 0; from < what.blocks; from += MAX_BLOCKS) {
        const size_t to = what.blocks - from < MAX_BLOCKS ? what.blocks : from + MAX_BLOCKS;
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
#if defined(__wasm_simd128__)
    // Browsers have 16 registers of 16 bytes for two windows' sums, too few to gain, and every byte is downloaded.
    for (size_t n = 0; n < windows; n++) look_up_windows<1, false>(what, tables + n, totals + TILE * n);
#else
    if (windows == 2)
        (what.expanded ? look_up_windows<2, true> : look_up_windows<2, false>)(what, tables, totals);
    else
        (what.expanded ? look_up_windows<1, true> : look_up_windows<1, false>)(what, tables, totals);
#endif
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

// The entry of a pair that the two lowest bits of each lane select.
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
#if defined(__wasm_simd128__)
    for (size_t n = 0; n < windows; n++) add_pairs_of<1, false>(what, pairs + n, y + PAIR_TILE * n);
#else
    if (windows == 2)
        (what.expanded ? add_pairs_of<2, true> : add_pairs_of<2, false>)(what, pairs, y);
    else
        (what.expanded ? add_pairs_of<1, true> : add_pairs_of<1, false>)(what, pairs, y);
#endif
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
