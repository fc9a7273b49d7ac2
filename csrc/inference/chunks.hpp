// How the blocks of a tile of weights are cut, so that what is looked up again and again stays near.
#pragma once

#include <algorithm>

#include "kernels.hpp"
#include "memory.hpp"

namespace bayesbinn::inference {

// Indices of one chunk and its tables of two windows fill three quarters of a first-level cache.
constexpr size_t MOST_CHUNK = 26;
constexpr size_t CHUNK_BYTES = MOST_CHUNK * BLOCK * 64;
constexpr size_t MANY_WINDOWS = 8;  // from here on it pays to expand bits once for all windows

class Chunks {
   public:
    Chunks(size_t blocks, size_t windows) : step(blocks), blocks_(blocks), expand_(windows >= MANY_WINDOWS) {
        if (windows <= TOGETHER) return;
        const size_t count = (blocks + MOST_CHUNK - 1) / MOST_CHUNK;
        step = round_up((blocks + count - 1) / count, 2);  // high parts are widened after two blocks
    }

    // The chunk that starts at block `from` of a tile's weights; `indices` has room for CHUNK_BYTES.
    LookUp at(const Kernels &kernels, const uint8_t *weights, size_t from, uint8_t *indices) const {
        weights += from * BLOCK * 32;
        const size_t size = std::min(step, blocks_ - from);
        if (expand_) kernels.expand(weights, size, indices);
        return {expand_ ? indices : weights, expand_, size, nullptr, from > 0};
    }

    size_t step;  // blocks of a chunk; the last may have fewer

   private:
    size_t blocks_;
    bool expand_;
};

}  // namespace bayesbinn::inference
