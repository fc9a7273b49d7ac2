// Products with a matrix of −1 and +1, in float32. Included by kernels.cpp, once per instruction set.
//
// Four inputs x₀…x₃ meet four weights in one of 16 ways, ±x₀ ± x₁ ± x₂ ± x₃. For each example and each group of four
// inputs, the 16 sums fill one 512-bit register. The signs of a group are a number from 0 to 15, and one permutation
// looks up the sums of 16 outputs at once: a permutation and an addition replace four multiply-adds, and the weights
// take one bit each. On one core of an Intel Xeon, a batch of 100 times 2048×2048 weights takes 3.3 ms. MKL takes
// 8.2 ms, and 12 ms with the transposed matrix, which the gradient of the inputs needs.
//
// AVX2 permutes only eight sums, of three inputs, which promises little over torch's product: there is no such kernel.
#pragma once

#include "kernels.hpp"
#include "vectors.hpp"

namespace bayesbinn {
namespace {

#if defined(__AVX512F__) && defined(__AVX512DQ__)

constexpr size_t WORD = 32;  // inputs in a word of signs
constexpr size_t GROUP = 4;  // inputs in a table
constexpr size_t SUMS = 16;  // sums in a table, and outputs in a register
constexpr size_t GROUPS = WORD / GROUP;
constexpr size_t CACHED = 8;  // words of inputs whose tables stay in the level-1 cache: 40 KB for ten examples

// Operators on these instead of intrinsics: GCC 12 warns that some of those use uninitialized variables.
typedef uint32_t Bits16 __attribute__((vector_size(64)));
typedef float Floats16 __attribute__((vector_size(64)));

BAYESBINN_INLINE __mmask16 first_lanes(size_t count) {
    return count >= SUMS ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

// Packs the rows from `first` to `last`, where `first` is a multiple of WORD. False if a weight is not −1 or +1.
bool pack_signs(const float *weights, const SignMatrix &matrix, size_t first, size_t last) {
    const Floats16 ones = Floats16{} + 1.0f;
    const uint32_t sign = 0x80000000u;
    Bits16 wrong = {};
    for (size_t row = first; row < last; row += WORD) {
        const size_t rows = last - row < WORD ? last - row : WORD;
        for (size_t column = 0; column < matrix.columns; column += WORD) {
            const size_t left = matrix.columns - column;
            const __mmask16 masks[2] = {first_lanes(left), left > SUMS ? first_lanes(left - SUMS) : (__mmask16)0};
            Bits16 columns[2] = {};
            alignas(64) uint32_t words[WORD] = {};
            for (size_t j = 0; j < rows; j++) {
                const float *from = weights + (row + j) * matrix.columns + column;
                for (size_t half = 0; half < 2; half++) {
                    const Bits16 bits = (Bits16)_mm512_mask_loadu_ps((__m512)ones, masks[half], from + half * SUMS);
                    wrong |= (bits ^ (Bits16)ones) & ~sign;
                    words[j] |= (uint32_t)(uint16_t)~_mm512_movepi32_mask((__m512i)bits) << half * SUMS;
                    columns[half] = columns[half] >> 1 | (~bits & sign);
                }
            }
            uint32_t *by_columns = matrix.by_columns + row / WORD * lanes_of(matrix.columns) + column;
            for (size_t half = 0; half < 2 && half * SUMS < left; half++)
                _mm512_storeu_si512(by_columns + half * SUMS, (__m512i)(columns[half] >> (uint32_t)(WORD - rows)));
            uint32_t *by_rows = matrix.by_rows + column / WORD * lanes_of(matrix.rows) + row;
            for (size_t half = 0; half < 2 && half * SUMS < rows; half++)
                _mm512_storeu_si512(by_rows + half * SUMS, _mm512_load_si512(words + half * SUMS));
        }
    }
    return _mm512_test_epi32_mask((__m512i)wrong, (__m512i)wrong) == 0;
}

// All sums of the groups of one word, of which `count` inputs exist.
BAYESBINN_INLINE void fill_tables(const float *x, size_t count, float (*tables)[SUMS]) {
    const Bits16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    float rest[WORD] = {};
    if (count < WORD) {
        __builtin_memcpy(rest, x, count * sizeof(float));
        x = rest;
    }
    for (size_t group = 0; group < GROUPS; group++, x += GROUP) {
        // Lane i adds x[j] if bit j of i is set, and subtracts it otherwise.
        const auto signed_input = [&](unsigned j) __attribute__((always_inline)) {
            return (Floats16)((Bits16)(Floats16{} + x[j]) ^ (~lanes << (31 - j) & 0x80000000u));
        };
        const Floats16 sums = (signed_input(0) + signed_input(1)) + (signed_input(2) + signed_input(3));
        _mm512_store_ps(tables[group], (__m512)sums);
    }
}

// Adds the looked-up sums of `words` words to 16 outputs of each of EXAMPLES examples.
template <size_t EXAMPLES>
void add_sums(
    const float (*tables)[SUMS], const uint32_t *signs, size_t lanes, size_t words, float *y, size_t outputs,
    __mmask16 mask
) {
    Floats16 total[EXAMPLES] = {};  // of these words alone: short sums lose less to rounding
    for (size_t word = 0; word < words; word++) {
        Bits16 numbers =
            (Bits16)_mm512_loadu_si512(signs + word * lanes);  // of the next group, in the lowest four bits
#pragma GCC unroll 8
        for (size_t group = 0; group < GROUPS; group++) {
#pragma GCC unroll 16
            for (size_t e = 0; e < EXAMPLES; e++) {
                const __m512 table = _mm512_load_ps(tables[(e * CACHED + word) * GROUPS + group]);
                total[e] += (Floats16)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)numbers, table);
            }
            numbers >>= GROUP;
        }
    }
    for (size_t e = 0; e < EXAMPLES; e++) {
        total[e] += (Floats16)_mm512_maskz_loadu_ps(mask, y + e * outputs);
        _mm512_mask_storeu_ps(y + e * outputs, mask, (__m512)total[e]);
    }
}

using AddSums = void (*)(const float (*)[SUMS], const uint32_t *, size_t, size_t, float *, size_t, __mmask16);

void multiply_signs(const SignProduct &of, size_t first, size_t last, Range range) {
    static_assert(MOST_EXAMPLES == 10);
    constexpr AddSums add[] = {nullptr,     add_sums<1>, add_sums<2>, add_sums<3>, add_sums<4>, add_sums<5>,
                               add_sums<6>, add_sums<7>, add_sums<8>, add_sums<9>, add_sums<10>};
    alignas(64) float tables[MOST_EXAMPLES * CACHED * GROUPS][SUMS];
    const size_t lanes = lanes_of(of.outputs), words = words_of(of.inputs), examples = last - first;
    for (size_t e = first; e < last; e++)
        __builtin_memset(of.y + e * of.outputs + range.begin, 0, (range.end - range.begin) * sizeof(float));
    for (size_t word = 0; word < words; word += CACHED) {
        const size_t count = words - word < CACHED ? words - word : CACHED;
        for (size_t e = 0; e < examples; e++)
            for (size_t w = 0; w < count; w++) {
                const size_t input = (word + w) * WORD, left = of.inputs - input;
                fill_tables(of.x + (first + e) * of.inputs + input, left, tables + (e * CACHED + w) * GROUPS);
            }
        for (size_t output = range.begin; output < range.end; output += SUMS)
            add[examples](
                tables, of.signs + word * lanes + output, lanes, count, of.y + first * of.outputs + output, of.outputs,
                first_lanes(range.end - output)
            );
    }
}

constexpr SignKernels sign_kernels{pack_signs, multiply_signs};
constexpr const SignKernels *SIGNS = &sign_kernels;

#else

constexpr const SignKernels *SIGNS = nullptr;

#endif

}  // namespace
}  // namespace bayesbinn
