// How the weights of a tile are cut into chunks, so that data that is read repeatedly stays in the cache.
#pragma once

#include <algorithm>

#include "kernels.hpp"
#include "memory.hpp"

namespace bayesbinn::inference {

// From this number on, expanding bits once for all windows pays off.
#if defined(__wasm__)
constexpr size_t MANY_WINDOWS = SIZE_MAX;
#else
constexpr size_t MANY_WINDOWS = 8;
#endif

// One or two windows use all weights at once; with more, all windows use one chunk before the next.
struct Chunks {
    size_t step;  // blocks or words of a chunk; the last chunk may have fewer
    bool expand;

    Chunks(size_t count, size_t most, size_t windows) : step(count), expand(windows >= MANY_WINDOWS) {
        if (windows <= TOGETHER) return;
        const size_t chunks = (count + most - 1) / most;
        step = round_up((count + chunks - 1) / chunks, 2);  // high parts of lookups are widened after two blocks
    }
};
static_assert(MANY_WINDOWS > TOGETHER, "what is expanded is cut into chunks");

// Chunks of blocks for lookups. The indices of a chunk and its tables for two windows leave a fifth of the first-level
// cache for the rest.
struct LookUpChunks : Chunks {
    static constexpr size_t MAX_STEP = 26, BYTES = MAX_STEP * BLOCK * 64;
    static_assert(MAX_STEP % 2 == 0, "chunks are rounded up to two");

    LookUpChunks(size_t blocks, size_t windows) : Chunks(blocks, MAX_STEP, windows), blocks_(blocks) {}

    // The chunk that starts at block `from` of a tile's weights; `indices` has space for BYTES.
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
    static constexpr size_t MAX_STEP = 8, BYTES = MAX_STEP * PAIR_TILE * WORD / 2 * sizeof(uint32_t);
    static_assert(MAX_STEP % 2 == 0, "chunks are rounded up to two");

    PairChunks(size_t words, size_t windows) : Chunks(words, MAX_STEP, windows), words_(words) {}

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
