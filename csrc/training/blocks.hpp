// Processes a range of a tensor in blocks.
#pragma once

#include "elementary.hpp"
#include "kernels.hpp"
#include "noise.hpp"

namespace bayesbinn {
namespace {

constexpr int VECTORS = BLOCK / LANES;

struct Stored {
    BAYESBINN_INLINE void operator()(float *to, F x) const { store(to, x); }
};

struct Streamed {
    BAYESBINN_INLINE void operator()(float *to, F x) const { stream(to, x); }
};

// The address of one block in each of COUNT arrays; null if there is no such array.
template <int COUNT>
struct Block {
    float *at[COUNT];

    BAYESBINN_INLINE F operator()(int array, int v) const { return load(at[array] + v * LANES); }
    BAYESBINN_INLINE void set(int array, int v, F x) const { store(at[array] + v * LANES, x); }
};

// Asks for a block that the body will read a few blocks later. Processors do so themselves, but not across the pages of
// an array of 40 MB, and not far enough ahead for the speed of the memory.
BAYESBINN_INLINE void ask_for(const float *block) {
    constexpr int AHEAD = 2 * BLOCK, LINE = 64 / sizeof(float);
    for (int k = 0; k < BLOCK; k += LINE) __builtin_prefetch(block + AHEAD + k);
}

// Calls body(b, block, put) for every block b. put(address, x) stores to array 0.
//
// READ has bit k set if the body reads all of array k, WRITTEN if it writes it. The last, incomplete block of a tensor is
// processed in a copy padded with zeros, so that the same code handles all elements.
template <int COUNT, unsigned READ, unsigned WRITTEN, class Body>
BAYESBINN_INLINE void each_block(const Arrays &arrays, Range range, Body body) {
    Block<COUNT> block;
    for (int k = 0; k < COUNT; k++) block.at[k] = arrays.at[k] ? arrays.at[k] + range.begin : nullptr;
    const auto advance = [&block]() __attribute__((always_inline)) {
        for (int k = 0; k < COUNT; k++)
            if (block.at[k]) block.at[k] += BLOCK;
        for (int k = 0; k < COUNT; k++)
            if ((READ >> k & 1) && block.at[k]) ask_for(block.at[k]);
    };
    const uint64_t whole = range.end / BLOCK;
    uint64_t b = range.begin / BLOCK;
    if (arrays.streams) {
        for (; b < whole; b++, advance()) body(b, block, Streamed{});
        end_streaming();
    } else {
        for (; b < whole; b++, advance()) body(b, block, Stored{});
    }
    const size_t rest = range.end - b * BLOCK;
    if (rest == 0 || range.end <= range.begin) return;
    alignas(sizeof(F)) float copy[COUNT][BLOCK] = {};
    Block<COUNT> padded;
    for (int k = 0; k < COUNT; k++) {
        padded.at[k] = block.at[k] ? copy[k] : nullptr;
        if (block.at[k]) __builtin_memcpy(copy[k], block.at[k], rest * sizeof(float));
    }
    body(b, padded, Stored{});
    for (int k = 0; k < COUNT; k++)
        if ((WRITTEN >> k & 1) && block.at[k]) __builtin_memcpy(block.at[k], copy[k], rest * sizeof(float));
}

// u for block b.
BAYESBINN_INLINE void uniform_noise(const NoiseStream &noise, uint64_t b, F (&u)[VECTORS]) {
    U bits[VECTORS];
    constexpr int PARTS = BLOCK / NOISE_BLOCK;
    for (int part = 0; part < PARTS; part++) noise.bits(b * PARTS + (uint64_t)part, bits + part * NOISE_VECTORS);
    for (int v = 0; v < VECTORS; v++) u[v] = uniform(bits[v]);
}

// δ = ½·log(u/(1−u)) for block b.
BAYESBINN_INLINE void logistic_noise(const NoiseStream &noise, uint64_t b, F (&delta)[VECTORS]) {
    uniform_noise(noise, b, delta);
    for (int v = 0; v < VECTORS; v++) delta[v] = half_logit(delta[v]);
}

// Whether |x| ≥ bound for the whole block.
BAYESBINN_INLINE bool all_at_least(const float *x, float bound) {
    I mask = abs(load(x)) >= bound;
    for (int v = 1; v < VECTORS; v++) mask &= abs(load(x + v * LANES)) >= bound;
    return all(mask);
}

// Single elements of a piece, given by their distances from its first one.
class Elements {
   public:
    // Adds those elements of a block of the piece for which |x| ≥ bound does not hold. If there are many, it adds none
    // and returns false: such a block is processed as a whole.
    BAYESBINN_INLINE bool add_below(const float *x, float bound, uint64_t block) {
        unsigned below[VECTORS];
        int number = 0;
        for (int v = 0; v < VECTORS; v++) {
            below[v] = lane_bits(abs(load(x + v * LANES)) >= bound) ^ ALL_LANES;
            number += count_lanes(below[v]);
        }
        if (number > FEW) return false;
        for (int v = 0; v < VECTORS; v++)
            count_ += list_lanes(below[v], (unsigned)(block * BLOCK) + (unsigned)(v * LANES), places_ + count_);
        return true;
    }

    BAYESBINN_INLINE int count() const { return count_; }
    BAYESBINN_INLINE uint16_t operator[](int i) const { return places_[i]; }

    // Calls use(i, number, places, u) for elements i to i + number, as many as fit into a vector. They get the same u
    // as from uniform_noise; `noise_block` is the number of the piece's first block of noise.
    template <class Use>
    BAYESBINN_INLINE void with_noise(const NoiseStream &noise, uint64_t noise_block, Use use) {
        for (int k = count_; k % LANES; k++) places_[k] = 0;
        for (int i = 0; i < count_; i += LANES) {
            const F u = uniform(noise.bits_of(noise_block, places_ + i));
            use(i, count_ - i < LANES ? count_ - i : LANES, places_ + i, u);
        }
    }

    static constexpr int FEW = BLOCK / 4;
    static constexpr int MOST = PIECE / BLOCK * FEW + LANES;

   private:
    int count_ = 0;
    uint16_t places_[MOST];
};

BAYESBINN_INLINE F gather(const float *x, const uint16_t *places) {
    F found;
    for (int lane = 0; lane < LANES; lane++) found[lane] = x[places[lane]];
    return found;
}

}  // namespace
}  // namespace bayesbinn
