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

// Whether the positions of a word are adjacent in the stored row and start a byte; those after its end are padding.
bool is_run(const Order &order, size_t word, size_t count) {
    const int32_t first = order[WORD * word];
    if (first < 0 || first % 8) return false;
    for (size_t j = 1; j < WORD; j++) {
        const int32_t next = first + (int32_t)j;
        if (order[WORD * word + j] != ((size_t)next < count ? next : -1)) return false;
    }
    return true;
}

}  // namespace

const uint8_t *weights_for_tables(Arena &arena, const StoredWeights &stored, const Order &order) {
    const size_t groups = order.size() / GROUP, tiles = (stored.outputs + TILE - 1) / TILE;
    uint8_t *const packed = arena.take<uint8_t>((uint64_t)tiles * groups * 32);
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
    uint32_t *const packed = arena.take<uint32_t>((uint64_t)tiles * words * PAIR_TILE);
    std::vector<bool> whole(words);
    for (size_t w = 0; w < words; w++) whole[w] = is_run(order, w, stored.count);
    for (size_t output = 0; output < stored.outputs; output++) {
        const uint8_t *const row = stored.bits + output * stored.row_bytes();
        uint32_t *to = packed + output / PAIR_TILE * words * PAIR_TILE + output % PAIR_TILE;
        for (size_t w = 0; w < words; w++, to += PAIR_TILE) {
            if (whole[w]) {
                const size_t first = (size_t)order[WORD * w] / 8, last = std::min(first + 4, stored.row_bytes());
                for (size_t byte = first; byte < last; byte++) *to |= (uint32_t)row[byte] << 8 * (byte - first);
                continue;
            }
            for (size_t j = 0; j < WORD; j++) {
                const int32_t k = order[WORD * w + j];
                if (k >= 0) *to |= (uint32_t)(row[k / 8] >> (k % 8) & 1) << j;
            }
        }
    }
    return packed;
}

const float *weights_for_multiplying(Arena &arena, const StoredWeights &stored, const Order &order) {
    const size_t tiles = (stored.outputs + PAIR_TILE - 1) / PAIR_TILE;
    float *const packed = arena.take<float>((uint64_t)tiles * order.size() * PAIR_TILE);
    for (size_t output = 0; output < stored.outputs; output++) {
        float *to = packed + output / PAIR_TILE * order.size() * PAIR_TILE + output % PAIR_TILE;
        for (size_t position = 0; position < order.size(); position++)
            if (order[position] >= 0) to[position * PAIR_TILE] = stored.value(output, (size_t)order[position]);
    }
    return packed;
}

}  // namespace bayesbinn::inference
