// Weights as they come from a model file, and as the kernels read them.
//
// `order` says which weight of a stored row is at each position of the kernels' row; a position
// beyond the row (−1) is padding, whose activation is 0, so its weight does not matter.
#pragma once

#include <stdint.h>

#include "memory.hpp"

namespace bayesbinn::inference {

using Order = std::vector<int32_t>;

// One row per output: bits, least significant first, 1 is +1; or floats.
struct StoredWeights {
    const uint8_t *bits;  // or null
    const float *reals;   // or null
    size_t outputs, count;

    size_t row_bytes() const { return (count + 7) / 8; }
    bool positive(size_t output, size_t k) const { return bits[output * row_bytes() + k / 8] >> (k % 8) & 1; }
    float value(size_t output, size_t k) const {
        return reals ? reals[output * count + k] : positive(output, k) ? 1.0f : -1.0f;
    }
};

// [tile of TILE outputs][group of GROUP positions][32 bytes]: 4 bits of output r in the low half of byte r,
// 4 bits of output r + 32 in the high half. `order` has a multiple of GROUP·BLOCK positions.
const uint8_t *weights_for_tables(Arena &arena, const StoredWeights &stored, const Order &order);

// [tile of PAIR_TILE outputs][word of WORD positions][PAIR_TILE words]; a multiple of WORD positions.
const uint32_t *weights_for_pairs(Arena &arena, const StoredWeights &stored, const Order &order);

// [tile of PAIR_TILE outputs][position][PAIR_TILE floats]; binary weights become ±1.
const float *weights_for_multiplying(Arena &arena, const StoredWeights &stored, const Order &order);

}  // namespace bayesbinn::inference
