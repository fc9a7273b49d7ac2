// How the weights of a tile are cut, so that what is looked up again and again stays near.
#pragma once

#include <algorithm>

#include "kernels.hpp"
#include "memory.hpp"

namespace bayesbinn::inference {

constexpr size_t MANY_WINDOWS = 8;  // from here on it pays to expand bits once for all windows

// One or two windows see all weights at once; of more, each sees a chunk before the next chunk's turn.
struct Chunks {
    size_t step;  // blocks or words of a chunk; the last chunk may have fewer
    bool expand;

    Chunks(size_t count, size_t most, size_t windows) : step(count), expand(windows >= MANY_WINDOWS) {
        if (windows <= TOGETHER) return;
        const size_t chunks = (count + most - 1) / most;
        step = round_up((count + chunks - 1) / chunks, 2);  // high parts of look-ups are widened after two blocks
    }
};
static_assert(MANY_WINDOWS > TOGETHER, "what is expanded is cut into chunks");

// Chunks of blocks for look-ups. The indices of one and its tables of two windows leave a fifth of a first-level
// cache to the rest.
struct LookUpChunks : Chunks {
    static constexpr size_t MOST = 26, BYTES = MOST * BLOCK * 64;
    static_assert(MOST % 2 == 0, "chunks are rounded up to two");

    LookUpChunks(size_t blocks, size_t windows) : Chunks(blocks, MOST, windows), blocks_(blocks) {}

    // The chunk that starts at block `from` of a tile's weights; `indices` has room for BYTES.
    LookUp at(
        const Kernels &kernels, const uint8_t *weights, size_t from, const uint32_t *offsets, uint8_t *indices
    ) const {
        weights += from * BLOCK * 32;
        const size_t size = std::min(step, blocks_ - from);
        if (expand) kernels.expand(weights, size, indices);
        return {expand ? indices : weights, expand, size, offsets, from > 0};
    }

   private:
    size_t blocks_;
};

// Chunks of words for sums of pairs.
struct PairChunks : Chunks {
    static constexpr size_t MOST = 8, BYTES = MOST * PAIR_TILE * WORD / 2 * sizeof(uint32_t);
    static_assert(MOST % 2 == 0, "chunks are rounded up to two");

    PairChunks(size_t words, size_t windows) : Chunks(words, MOST, windows), words_(words) {}

    PairSum at(const Kernels &kernels, const uint32_t *weights, size_t from, uint32_t *indices) const {
        weights += from * PAIR_TILE;
        const size_t size = std::min(step, words_ - from);
        if (expand) kernels.expand_pairs(weights, size, indices);
        return {expand ? indices : weights, expand, size, from > 0};
    }

   private:
    size_t words_;
};

}  // namespace bayesbinn::inference
