#include "weights.hpp"

#include "kernels.hpp"

namespace bayesbinn::inference {
namespace {

// Whether the four positions of a group are adjacent in half a byte of the stored row.
bool is_half_byte(const Order &order, size_t group) {
    const int32_t first = order[GROUP * group];
    if (first < 0 || first % 4) return false;
    for (int j = 1; j < 4; j++)
        if (order[GROUP * group + j] != first + j) return false;
    return true;
}

}  // namespace

const uint8_t *weights_for_tables(Arena &arena, const StoredWeights &stored, const Order &order) {
    const size_t groups = order.size() / GROUP, tiles = (stored.outputs + TILE - 1) / TILE;
    uint8_t *const packed = arena.take<uint8_t>(tiles * groups * 32);
    std::vector<bool> whole(groups);
    for (size_t g = 0; g < groups; g++) whole[g] = is_half_byte(order, g);
    for (size_t output = 0; output < stored.outputs; output++) {
        const uint8_t *row = stored.bits + output * stored.row_bytes();
        uint8_t *to = packed + output / TILE * groups * 32 + output % 32;
        const int half = output % TILE < 32 ? 0 : 4;
        for (size_t g = 0; g < groups; g++) {
            unsigned bits = 0;
            if (whole[g]) {
                const int32_t first = order[GROUP * g];
                bits = row[first / 8] >> (first % 8) & 15;
            } else {
                for (int j = 0; j < 4; j++) {
                    const int32_t k = order[GROUP * g + j];
                    if (k >= 0) bits |= (unsigned)(row[k / 8] >> (k % 8) & 1) << j;
                }
            }
            to[32 * g] = (uint8_t)(to[32 * g] | bits << half);
        }
    }
    return packed;
}

const uint32_t *weights_for_pairs(Arena &arena, const StoredWeights &stored, const Order &order) {
    const size_t words = order.size() / WORD, tiles = (stored.outputs + PAIR_TILE - 1) / PAIR_TILE;
    uint32_t *const packed = arena.take<uint32_t>(tiles * words * PAIR_TILE);
    for (size_t output = 0; output < stored.outputs; output++) {
        uint32_t *to = packed + output / PAIR_TILE * words * PAIR_TILE + output % PAIR_TILE;
        for (size_t position = 0; position < order.size(); position++)
            if (order[position] >= 0 && stored.positive(output, (size_t)order[position]))
                to[position / WORD * PAIR_TILE] |= 1u << position % WORD;
    }
    return packed;
}

const float *weights_for_multiplying(Arena &arena, const StoredWeights &stored, const Order &order) {
    const size_t tiles = (stored.outputs + PAIR_TILE - 1) / PAIR_TILE;
    float *const packed = arena.take<float>(tiles * order.size() * PAIR_TILE);
    for (size_t output = 0; output < stored.outputs; output++) {
        float *to = packed + output / PAIR_TILE * order.size() * PAIR_TILE + output % PAIR_TILE;
        for (size_t position = 0; position < order.size(); position++)
            if (order[position] >= 0) to[position * PAIR_TILE] = stored.value(output, (size_t)order[position]);
    }
    return packed;
}

}  // namespace bayesbinn::inference
