// The gradient of a linear layer's weights: Σₑ gradientₑ ⊗ inputₑ over the examples. Included by kernels.cpp, once per
// instruction set.
//
// A batch has few examples, so the result is large and every element of it is a short sum. A general product spends much
// of its time on moving such a result. Here the sums of 6×64 elements stay in registers over a whole chunk of examples;
// the inputs of 64 columns stay in the level-1 cache for all rows.
#pragma once

#include "signs.hpp"

namespace bayesbinn {
namespace {

#if defined(__AVX512F__) && defined(__AVX512DQ__)

constexpr size_t REGISTERS = OUTER_COLUMNS / WIDTH;

void pack_outer(const OuterProduct &of, size_t first, size_t count, size_t row, float *to) {
    const size_t rows = of.rows - row < OUTER_ROWS ? of.rows - row : OUTER_ROWS;
    for (size_t e = 0; e < count; e++) {
        const float *from = of.gradients + (first + e) * of.rows + row;
        for (size_t r = 0; r < OUTER_ROWS; r++) to[e * OUTER_ROWS + r] = r < rows ? from[r] : 0.0f;
    }
}

// `packed` has the gradients of OUTER_ROWS rows, `inputs` those of OUTER_COLUMNS columns, example by example.
BAYESBINN_INLINE void add_tile(
    const float *packed, const float *inputs, size_t count, float *to, size_t stride, size_t rows, size_t columns,
    bool is_first
) {
    __m512 sum[OUTER_ROWS][REGISTERS];
#pragma GCC unroll 16
    for (size_t r = 0; r < OUTER_ROWS; r++)
#pragma GCC unroll 16
        for (size_t c = 0; c < REGISTERS; c++) sum[r][c] = (__m512)Floats{};
    for (size_t e = 0; e < count; e++) {
        __m512 input[REGISTERS];
#pragma GCC unroll 16
        for (size_t c = 0; c < REGISTERS; c++) input[c] = _mm512_load_ps(inputs + e * OUTER_COLUMNS + c * WIDTH);
#pragma GCC unroll 16
        for (size_t r = 0; r < OUTER_ROWS; r++) {
            const __m512 gradient = (__m512)(Floats{} + packed[e * OUTER_ROWS + r]);
#pragma GCC unroll 16
            for (size_t c = 0; c < REGISTERS; c++) sum[r][c] = _mm512_fmadd_ps(gradient, input[c], sum[r][c]);
        }
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < OUTER_ROWS; r++) {
        if (r == rows) return;
#pragma GCC unroll 16
        for (size_t c = 0; c < REGISTERS; c++) {
            if (c * WIDTH >= columns) break;
            float *at = to + r * stride + c * WIDTH;
            const size_t left = columns - c * WIDTH;
            const Floats before = is_first ? Floats{} : load_first(left, at, Floats{});
            store_first(left, at, (Floats)sum[r][c] + before);
        }
    }
}

void multiply_outer(const OuterProduct &of, size_t first, size_t count, const float *packed, Range rows, size_t column) {
    alignas(64) float inputs[OUTER_EXAMPLES * OUTER_COLUMNS];
    const size_t columns = of.columns - column < OUTER_COLUMNS ? of.columns - column : OUTER_COLUMNS;
    if (columns < OUTER_COLUMNS) __builtin_memset(inputs, 0, sizeof inputs);
    for (size_t e = 0; e < count; e++)
        __builtin_memcpy(
            inputs + e * OUTER_COLUMNS, of.inputs + (first + e) * of.columns + column, columns * sizeof(float)
        );
    for (size_t row = rows.begin; row < rows.end; row += OUTER_ROWS)
        add_tile(
            packed + row * count, inputs, count, of.product + row * of.columns + column, of.columns, rows.end - row,
            columns, first == 0
        );
}

constexpr OuterKernels outer_kernels{pack_outer, multiply_outer};
constexpr const OuterKernels *OUTER = &outer_kernels;

#else

constexpr const OuterKernels *OUTER = nullptr;

#endif

}  // namespace
}  // namespace bayesbinn
