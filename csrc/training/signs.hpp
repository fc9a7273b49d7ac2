// Products with a matrix of −1 and +1, in float32. Included by kernels.cpp, once per instruction set.
//
// Four inputs x₀…x₃ meet four weights in one of 16 ways, ±x₀ ± x₁ ± x₂ ± x₃. For each example and each group of four
// inputs, these sums are a table. The signs of a group are a number from 0 to 15, and one permutation of the table looks
// up the sums of as many outputs as a register has lanes: a permutation and an addition replace four multiply-adds, and
// the weights take one bit each.
//
// AVX-512 holds all 16 sums in a register. AVX2 holds the eight in which x₃ is added; the others are their negatives,
// found at the complement of the number. Both give the same bits. A batch of 100 times 2048×2048 weights takes 3.3 ms on
// one core of an Intel Xeon with AVX-512, where MKL takes 8.2 ms, and 12 ms with the transposed matrix, which the
// gradient of the inputs needs. With AVX2 on an AMD EPYC it takes 6.1 ms, where MKL takes 12 ms both ways.
#pragma once

#include "kernels.hpp"
#include "vectors.hpp"

namespace bayesbinn {
namespace {

#if defined(__AVX2__)

constexpr size_t WORD = 32;  // inputs in a word of signs
constexpr size_t GROUP = 4;  // inputs in a table
constexpr size_t GROUPS = WORD / GROUP;
constexpr size_t CACHED = 8;  // words of inputs whose tables stay in the level-1 cache: 20 or 40 KB for ten examples
constexpr uint32_t SIGN = 0x80000000u;

// ---- registers --------------------------------------------------------------------------------

#if defined(__AVX512F__) && defined(__AVX512DQ__)

constexpr size_t WIDTH = 16;  // outputs in a register, and sums in a table

// Operators on these instead of intrinsics: GCC 12 warns that some of those use uninitialized variables.
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(64)));

// The signs of the inputs in each sum of a table, the last input in the highest bit.
constexpr Bits TABLE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The first `count` lanes of a register, or all.
BAYESBINN_INLINE __mmask16 first_lanes(size_t count) {
    return count >= WIDTH ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

BAYESBINN_INLINE Floats load_first(size_t count, const float *from, Floats others) {
    return (Floats)_mm512_mask_loadu_ps((__m512)others, first_lanes(count), from);
}

BAYESBINN_INLINE void store_first(size_t count, float *to, Floats x) {
    _mm512_mask_storeu_ps(to, first_lanes(count), (__m512)x);
}

// The highest bit of every lane, lane 0 lowest.
BAYESBINN_INLINE uint32_t highest_bits(Bits bits) { return (uint16_t)_mm512_movepi32_mask((__m512i)bits); }

// The sums of one group for as many outputs as there are lanes.
struct Lookup {
    Bits number;

    // From words of signs that `ready` has returned.
    BAYESBINN_INLINE Lookup(Bits words, uint32_t group) : number(words >> group * (uint32_t)GROUP) {}

    BAYESBINN_INLINE static Bits ready(Bits words) { return words; }

    BAYESBINN_INLINE void add(Floats &total, const float *table) const {
        total += (Floats)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)number, _mm512_load_ps(table));
        asm("" : "+v"(total));  // see below
    }
};

#else

constexpr size_t WIDTH = 8;

typedef uint32_t Bits __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(32)));

constexpr Bits TABLE = {8, 9, 10, 11, 12, 13, 14, 15};

BAYESBINN_INLINE Bits first_lanes(size_t count) {
    const Bits lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    return (Bits)(lanes < (uint32_t)(count < WIDTH ? count : WIDTH));
}

BAYESBINN_INLINE Floats load_first(size_t count, const float *from, Floats others) {
    if (count >= WIDTH) return (Floats)_mm256_loadu_ps(from);
    const Bits mask = first_lanes(count);
    return mask ? (Floats)_mm256_maskload_ps(from, (__m256i)mask) : others;
}

BAYESBINN_INLINE void store_first(size_t count, float *to, Floats x) {
    if (count >= WIDTH)
        _mm256_storeu_ps(to, (__m256)x);
    else
        _mm256_maskstore_ps(to, (__m256i)first_lanes(count), (__m256)x);
}

BAYESBINN_INLINE uint32_t highest_bits(Bits bits) { return (uint32_t)_mm256_movemask_ps((__m256)bits); }

struct Lookup {
    Bits number, flip;

    BAYESBINN_INLINE Lookup(Bits words, uint32_t group)
        : number(words >> group * (uint32_t)GROUP), flip(words << (28 - group * (uint32_t)GROUP) & SIGN) {}

    // Where x₃ is subtracted: the complement of the number, and a bit that says so instead of x₃'s.
    BAYESBINN_INLINE static Bits ready(Bits words) {
        const Bits subtracted = ~words & 0x88888888u;
        return words ^ 0x88888888u ^ (subtracted >> 1 | subtracted >> 2 | subtracted >> 3);
    }

    BAYESBINN_INLINE void add(Floats &total, const float *table) const {
        const __m256 sums = _mm256_permutevar8x32_ps(_mm256_load_ps(table), (__m256i)number);
        total += (Floats)((Bits)sums ^ flip);
        // GCC would look up ahead of the additions until its registers overflow, which takes up to a fifth longer.
        asm("" : "+x"(total));
    }
};

#endif

// ---- products ---------------------------------------------------------------------------------

// Packs the first `count` of a word of weights, or all; sets `wrong` in the lanes of those that are not −1 or +1.
BAYESBINN_INLINE uint32_t packed(const float *from, size_t count, Bits &wrong) {
    const Floats ones = Floats{} + 1.0f;
    uint32_t word = 0;
    const auto add = [&](size_t k, size_t left) __attribute__((always_inline)) {
        const Bits bits = (Bits)load_first(left, from + k, ones);
        wrong |= (bits ^ (Bits)ones) & ~SIGN;
        word |= highest_bits(~bits) << k;
    };
    if (count >= WORD)
#pragma GCC unroll 4
        for (size_t k = 0; k < WORD; k += WIDTH) add(k, WIDTH);
    else
        for (size_t k = 0; k < count; k += WIDTH) add(k, count - k);
    return word;
}

// Bit j of columns[k] is bit k of rows[j].
BAYESBINN_INLINE void transpose(const uint32_t (&rows)[WORD], uint32_t (&columns)[WORD]) {
    Bits parts[WORD / WIDTH];
    __builtin_memcpy(parts, rows, sizeof parts);
#pragma GCC unroll 32
    for (size_t k = 0; k < WORD; k++) {
        columns[k] = 0;
        for (size_t part = 0; part < WORD / WIDTH; part++)
            columns[k] |= highest_bits(parts[part] << (uint32_t)(WORD - 1 - k)) << part * WIDTH;
    }
}

// Packs the rows from `first` to `last`, where `first` is a multiple of WORD. False if a weight is not −1 or +1.
//
// It reads long stretches of a row: reading a word from each of 32 rows in turn takes twice as long.
bool pack_signs(const float *weights, const SignMatrix &matrix, size_t first, size_t last) {
    constexpr size_t AT_ONCE = 64;  // words of a row
    constexpr size_t AHEAD = 512;
    alignas(64) uint32_t words[AT_ONCE][WORD] = {}, transposed[WORD];
    Bits wrong = {};
    for (size_t row = first; row < last; row += WORD) {
        const size_t rows = last - row < WORD ? last - row : WORD;
        if (rows < WORD) __builtin_memset(words, 0, sizeof words);
        for (size_t begin = 0; begin < matrix.columns; begin += AT_ONCE * WORD) {
            const size_t left = matrix.columns - begin, columns = left < AT_ONCE * WORD ? left : AT_ONCE * WORD;
            for (size_t j = 0; j < rows; j++) {
                const float *from = weights + (row + j) * matrix.columns + begin;
                for (size_t k = 0; k < columns; k += WORD) {
                    __builtin_prefetch(from + k + AHEAD);
                    __builtin_prefetch(from + k + AHEAD + 16);
                    words[k / WORD][j] = packed(from + k, columns - k, wrong);
                }
            }
            for (size_t k = 0; k < columns; k += WORD) {
                const uint32_t(&of_rows)[WORD] = words[k / WORD];
                transpose(of_rows, transposed);
                const size_t column = begin + k, lanes = lanes_of(columns - k < WORD ? columns - k : WORD);
                uint32_t *by_columns = matrix.by_columns + row / WORD * lanes_of(matrix.columns) + column;
                __builtin_memcpy(by_columns, transposed, lanes * sizeof(uint32_t));
                uint32_t *by_rows = matrix.by_rows + column / WORD * lanes_of(matrix.rows) + row;
                __builtin_memcpy(by_rows, of_rows, lanes_of(rows) * sizeof(uint32_t));
            }
        }
    }
    return !highest_bits((Bits)(wrong != 0));
}

// All sums of the groups of one word, of which `count` inputs exist.
BAYESBINN_INLINE void fill_tables(const float *x, size_t count, float (*tables)[WIDTH]) {
    float rest[WORD] = {};
    if (count < WORD) {
        __builtin_memcpy(rest, x, count * sizeof(float));
        x = rest;
    }
    for (size_t group = 0; group < GROUPS; group++, x += GROUP) {
        // A sum adds x[j] if bit j of its number is set, and subtracts it otherwise.
        const auto signed_input = [&](unsigned j) __attribute__((always_inline)) {
            return (Floats)((Bits)(Floats{} + x[j]) ^ (~TABLE << (31 - j) & SIGN));
        };
        const Floats sums = (signed_input(0) + signed_input(1)) + (signed_input(2) + signed_input(3));
        __builtin_memcpy(tables[group], &sums, sizeof sums);
    }
}

// Adds the looked-up sums of `words` words to the next outputs, `left` or a register of them, of EXAMPLES examples.
template <size_t EXAMPLES>
void add_sums(
    const float (*tables)[WIDTH], const uint32_t *signs, size_t lanes, size_t words, float *y, size_t outputs,
    size_t left
) {
    Floats total[EXAMPLES] = {};  // of these words alone: short sums lose less to rounding
    for (size_t word = 0; word < words; word++) {
        Bits signs_of_word;
        __builtin_memcpy(&signs_of_word, signs + word * lanes, sizeof signs_of_word);
        signs_of_word = Lookup::ready(signs_of_word);
#pragma GCC unroll 8
        for (size_t group = 0; group < GROUPS; group++) {
            const Lookup lookup(signs_of_word, (uint32_t)group);
#pragma GCC unroll 16
            for (size_t e = 0; e < EXAMPLES; e++) lookup.add(total[e], tables[(e * CACHED + word) * GROUPS + group]);
        }
    }
    for (size_t e = 0; e < EXAMPLES; e++)
        store_first(left, y + e * outputs, total[e] + load_first(left, y + e * outputs, Floats{}));
}

using AddSums = void (*)(const float (*)[WIDTH], const uint32_t *, size_t, size_t, float *, size_t, size_t);

void multiply_signs(const SignProduct &of, size_t first, size_t last, Range range) {
    static_assert(MOST_EXAMPLES == 10);
    constexpr AddSums add[] = {nullptr,     add_sums<1>, add_sums<2>, add_sums<3>, add_sums<4>, add_sums<5>,
                               add_sums<6>, add_sums<7>, add_sums<8>, add_sums<9>, add_sums<10>};
    alignas(64) float tables[MOST_EXAMPLES * CACHED * GROUPS][WIDTH];
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
        for (size_t output = range.begin; output < range.end; output += WIDTH)
            add[examples](
                tables, of.signs + word * lanes + output, lanes, count, of.y + first * of.outputs + output, of.outputs,
                range.end - output
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
