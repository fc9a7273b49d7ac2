// What every instruction set provides for inference: loops over contiguous numbers that allocate nothing.
//
// Two ways to multiply activations by weights of ±1:
//
// Lookup tables. Activations are integers q from −127 to 127. For a weight's bit b (1 is +1), b·2 − 1
// times q is |q| if the signs agree and −|q| otherwise, so
//     Σ w·q = 2·Σ|q over agreeing signs| − Σ|q|.
// For every 4 activations a table holds the agreeing sum for each of the 16 values of 4 bits, and
// one byte shuffle looks it up for 32 outputs at once. A sum is at most 4·127 = 508, 9 bits: its
// low 5 bits and its high 4 bits are two tables of bytes. Up to 8 low parts (31 each) and 16 high
// parts (15 each) are added as bytes before they are widened, so nothing overflows.
//
// Pairs. For every 2 float activations a table of ±x₀ ± x₁, in float32: the exact mode.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace bayesbinn::inference {

constexpr size_t GROUP = 4;        // activations that share a table
constexpr size_t TABLE = 32;       // bytes of a table: 16 low parts, 16 high parts
constexpr size_t HIGH_PARTS = 32;  // from a table's low parts to its high parts: two tables are interleaved
constexpr size_t BLOCK = 8;        // tables looked up between two widenings
constexpr size_t TILE = 64;        // outputs computed together from tables
constexpr size_t PAIR_TILE = 32;   // outputs computed together from pairs, and from real weights
constexpr size_t WORD = 32;        // activations whose bits share a word in the exact mode
constexpr size_t TOGETHER = 2;     // windows computed together: they share the loads of the weights

// Tables are stored in pairs: the low parts of both, then the high parts of both.
static constexpr size_t table_at(size_t group) { return group / 2 * 2 * TABLE + group % 2 * 16; }
static constexpr size_t tables_bytes(size_t activations) {
    return (activations + 2 * GROUP - 1) / (2 * GROUP) * 2 * TABLE;
}

// 16-bit totals can hold 2114 tables of at most 31 each; in whole blocks 2112, which is 8448 activations.
constexpr size_t MAX_BLOCKS = 264;

// Some tables, and the bits or indices of one tile of outputs that look them up.
struct LookUp {
    const uint8_t *weights;   // BLOCK·32 bytes of bits for each block, or BLOCK·64 of indices
    bool expanded;            // indices, not bits
    size_t blocks;            // at least 1
    const uint32_t *offsets;  // offsets of the tables of each block from a window's first
    bool add;                 // to totals of earlier blocks
};

// The same for pairs: bits of one tile of outputs, or a word for each pair whose two lowest bits are the pair's.
struct PairSum {
    const uint32_t *weights;  // PAIR_TILE words of bits for each word of activations, or PAIR_TILE·WORD/2 of indices
    bool expanded;
    size_t words;
    bool add;
};

// y ← min(max(y·scale + shift, low), high), elementwise; NaN stays NaN. Without scale, only the limits.
struct Finish {
    const float *scale, *shift;
    float low, high;

    Finish at(size_t channel) const { return scale ? Finish{scale + channel, shift + channel, low, high} : *this; }
};

struct Kernels {
    const char *name;

    // The largest |x|; NaN if any x is NaN or infinite.
    float (*largest)(const float *x, size_t count);

    // Rounds x·inverse (|x·inverse| ≤ 127) to integers q and writes tables_bytes(count) of tables; returns Σ|q|.
    int32_t (*build_tables)(const float *x, size_t count, float inverse, uint8_t *tables);

    // Expands each byte of bits into two table indices, which pays off if many windows are looked up.
    void (*expand)(const uint8_t *weights, size_t blocks, uint8_t *indices);

    // totals[window][TILE] ← Σ over blocks of looked-up sums; `windows` is 1 or 2.
    void (*look_up)(const LookUp &what, const uint8_t *const *tables, size_t windows, int32_t *totals);

    // y ← finish(factor·(2·total − magnitude)) for `count` outputs.
    void (*finish_totals)(
        const int32_t *totals, int32_t magnitude, float factor, const Finish &finish, size_t count, float *y
    );

    // Writes the 4 sums ±x₀ ± x₁ of each pair of `count` activations, a multiple of 2.
    void (*build_pairs)(const float *x, size_t count, float *pairs);

    // Like `expand` and `look_up`: y[window][PAIR_TILE] ← Σ of pairs chosen by the bits.
    void (*expand_pairs)(const uint32_t *weights, size_t words, uint32_t *indices);
    void (*add_pairs)(const PairSum &what, const float *const *pairs, size_t windows, float *y);

    // y[window][PAIR_TILE] ← Σₖ x[window][k]·weights[k][PAIR_TILE].
    void (*multiply)(const float *weights, size_t count, const float *const *x, size_t windows, float *y);

    // y ← finish(x), elementwise over `count` channels; x and y may be the same.
    void (*finish)(const float *x, const Finish &finish, size_t count, float *y);

    // y ← y + x⊙w, y ← max(y, x) (NaN wins), y ← y + x, y ← y·factor.
    void (*multiply_add)(const float *x, const float *w, size_t count, float *y);
    void (*take_larger)(const float *x, size_t count, float *y);
    void (*add)(const float *x, size_t count, float *y);
    void (*scale)(float factor, size_t count, float *y);

    // [rows][columns] → [columns][rows]
    void (*transpose)(const float *x, size_t rows, size_t columns, float *y);
};

extern const Kernels kernels_portable, kernels_avx2, kernels_neon, kernels_simd128;

// The best kernels that this CPU can run, or those that `name` asks for (BAYESBINN_ISA). Instruction sets that
// only training has (AVX-512) mean the best ones here. Throws std::runtime_error for an unknown name.
const Kernels &choose_kernels(const char *name);

}  // namespace bayesbinn::inference
