// The Mersenne Twister of torch's CPU generator, many numbers at a time: torch draws a dropout mask one by one.
// Included by kernels.cpp, once per instruction set.
#pragma once

#include "kernels.hpp"

namespace bayesbinn {
namespace {

constexpr int TWISTED = 397;
constexpr uint64_t BITS_53 = (uint64_t(1) << 53) - 1;

inline uint32_t twisted(uint32_t high, uint32_t low, uint32_t far) {
    const uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return far ^ (mixed >> 1) ^ ((uint32_t)-(int32_t)(low & 1) & 0x9908b0dfu);
}

// The next WORDS words of the state. Each depends on words at least 227 places away, so the loops vectorize.
void twist(uint32_t (&s)[TWISTER_WORDS]) {
    constexpr int N = TWISTER_WORDS, M = TWISTED;
    for (int k = 0; k < N - M; k++) s[k] = twisted(s[k], s[k + 1], s[k + M]);
    for (int k = N - M; k < N - 1; k++) s[k] = twisted(s[k], s[k + 1], s[k + M - N]);
    s[N - 1] = twisted(s[N - 1], s[0], s[M - 1]);
}

inline uint32_t tempered(uint32_t y) {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

// As torch does: 64 bits from two numbers, the first one in the high half; the lowest 53 are uniform in [0, 1).
void bernoulli(Twister &twister, double probability, float *values, size_t count) {
    const uint64_t below = (uint64_t)__builtin_ceil(probability * 0x1p53);
    uint32_t numbers[TWISTER_WORDS + 1];  // one may be left over from before
    int kept = 0;
    while (count) {
        if (twister.next == TWISTER_WORDS) {
            twist(twister.words);
            twister.next = 0;
        }
        // No more than are needed: the generator goes on where this ends.
        int fresh = TWISTER_WORDS - twister.next;
        if ((size_t)fresh > 2 * count - (size_t)kept) fresh = (int)(2 * count) - kept;
        for (int k = 0; k < fresh; k++) numbers[kept + k] = tempered(twister.words[twister.next + k]);
        twister.next += fresh;
        const int pairs = (kept + fresh) / 2;
        for (int k = 0; k < pairs; k++) {
            const uint64_t bits = (uint64_t)numbers[2 * k] << 32 | numbers[2 * k + 1];
            values[k] = (bits & BITS_53) < below ? 1.0f : 0.0f;
        }
        kept = (kept + fresh) % 2;
        if (kept) numbers[0] = numbers[2 * pairs];
        values += pairs;
        count -= (size_t)pairs;
    }
}

}  // namespace
}  // namespace bayesbinn
