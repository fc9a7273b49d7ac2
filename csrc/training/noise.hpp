// Philox4x32-10 and uniform numbers, as src/bayesbinn/kernels/noise.py defines them:
//
//     element 32·b + 8·j + c   <-   word j of counter 8·b + c
#pragma once

#include "kernels.hpp"
#include "vectors.hpp"

namespace bayesbinn {
namespace {

constexpr int NOISE_VECTORS = NOISE_BLOCK / LANES;
constexpr int ROUNDS = 10;
static_assert(NOISE_BLOCK == 32, "as in bits_of");

// Word j of LANES successive counters, in halves: counters 0, 2, 4, ... in the low half of the
// lanes of `even`, counters 1, 3, 5, ... in those of `odd`, because a 32 × 32 → 64 bit product
// fills two lanes. The high halves contain garbage and are ignored.
struct Words {
    Wide even, odd;
};

BAYESBINN_INLINE U interleave(Words w) { return (U)((w.even & 0xffffffffu) | (w.odd << 32)); }

// The noise of one tensor in one draw.
class NoiseStream {
   public:
    NoiseStream(uint64_t key, uint64_t draw) : draw_(draw) {
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
        for (int round = 0; round < ROUNDS; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            k0_[round] = k0 + Wide{};
            k1_[round] = k1 + Wide{};
        }
    }

    // 32 random bits for each element of block b.
    BAYESBINN_INLINE void bits(uint64_t b, U *out) const {
        constexpr int PARTS = 8 / LANES;  // vectors per word of the block
        for (int part = 0; part < PARTS; part++) {
            const uint64_t counter = 8 * b + (uint64_t)(part * LANES);
            Words c[4] = {
                first_words((uint32_t)counter), same(counter >> 32), same(draw_ & 0xffffffffu), same(draw_ >> 32)
            };
            philox(c);
            for (int j = 0; j < 4; j++) out[j * PARTS + part] = interleave(c[j]);
        }
    }

    // The bits of LANES single elements, given by their distances from the first element of block b.
    BAYESBINN_INLINE U bits_of(uint64_t b, const uint16_t *elements) const {
        Places given;
        __builtin_memcpy(&given, elements, sizeof given);
        const U places = __builtin_convertvector(given, U);
        const auto counter = [b](Wide place) { return (place >> 5 << 3) + (place & 7) + 8 * b; };
        const Words low{counter((Wide)places & 0xffffffffu), counter((Wide)places >> 32)};
        Words c[4] = {low, {low.even >> 32, low.odd >> 32}, same(draw_ & 0xffffffffu), same(draw_ >> 32)};
        philox(c);
        const I odd_word = (I)(places << 28) < 0, upper_half = (I)(places << 27) < 0;
        const U lower = odd_word ? interleave(c[1]) : interleave(c[0]);
        const U upper = odd_word ? interleave(c[3]) : interleave(c[2]);
        return upper_half ? upper : lower;
    }

   private:
    static BAYESBINN_INLINE Words same(uint64_t x) { return {x + Wide{}, x + Wide{}}; }

    static BAYESBINN_INLINE Words first_words(uint64_t counter) {
        Wide even;
        for (int lane = 0; lane < LANES / 2; lane++) even[lane] = 2u * (unsigned)lane;
        return {counter + even, counter + even + 1};
    }

    BAYESBINN_INLINE void philox(Words (&c)[4]) const {
        for (int round = 0; round < ROUNDS; round++) {
            const Words p0 = multiply(c[0], 0xD2511F53u), p1 = multiply(c[2], 0xCD9E8D57u);
            c[0] = mixed(p1, c[1], k0_[round]);
            c[1] = p1;
            c[2] = mixed(p0, c[3], k1_[round]);
            c[3] = p0;
        }
    }

    static BAYESBINN_INLINE Words multiply(Words c, uint32_t factor) {
        return {multiply_low(c.even, factor), multiply_low(c.odd, factor)};
    }

    // high half of the product ⊕ word ⊕ key
    static BAYESBINN_INLINE Words mixed(Words product, Words word, Wide key) {
        return {(product.even >> 32) ^ word.even ^ key, (product.odd >> 32) ^ word.odd ^ key};
    }

    uint64_t draw_;
    Wide k0_[ROUNDS], k1_[ROUNDS];
};

// u = (k + ½)·2⁻²³ with 23 random bits k: the mantissa k makes 1 + k·2⁻²³, and the difference from
// 1 − 2⁻²⁴ is exact.
BAYESBINN_INLINE F uniform(U bits) { return (F)((bits >> 9) | 0x3f800000u) - (1 - 0x1p-24f); }

}  // namespace
}  // namespace bayesbinn
