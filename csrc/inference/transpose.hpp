// Converts images between channels first and channels last.
//
// In an unnamed namespace, like lanes.hpp: each instruction set compiles its own copy.
#pragma once

#include "vectors.hpp"

namespace bayesbinn::inference {
namespace {

// Older compilers lack __has_builtin.
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

// Cache lines that are a power of two apart compete for the few ways of one set. Working in squares reads and writes
// each line once, as a whole.
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
}  // namespace bayesbinn::inference
