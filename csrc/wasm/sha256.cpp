#include "sha256.hpp"

#include <string.h>

namespace bayesbinn::wasm {
namespace {

// The first 32 bits after the point of the cube roots of the first 64 primes, and of the square roots of the first 8.
constexpr uint32_t ROUND[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
                                0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
                                0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
                                0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
                                0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
                                0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
                                0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
                                0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
                                0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
                                0xc67178f2};
constexpr uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t rotated(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

uint32_t big_endian(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

void add_block(uint32_t *state, const uint8_t *block) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++) w[i] = big_endian(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        const uint32_t first = rotated(a, 7) ^ rotated(a, 18) ^ a >> 3;
        const uint32_t second = rotated(b, 17) ^ rotated(b, 19) ^ b >> 10;
        w[i] = w[i - 16] + first + w[i - 7] + second;
    }
    uint32_t s[8];
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t mixed = rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25);
        const uint32_t chosen = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t one = s[7] + mixed + chosen + ROUND[i] + w[i];
        const uint32_t turned = rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + turned + majority;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

}  // namespace

void sha256(const uint8_t *bytes, size_t size, uint8_t digest[32]) {
    uint32_t state[8];
    memcpy(state, START, sizeof state);
    size_t at = 0;
    for (; at + 64 <= size; at += 64) add_block(state, bytes + at);
    // The rest, a bit 1, zeros, and the length in bits fill one or two blocks.
    uint8_t last[128] = {};
    const size_t rest = size - at, length = rest + 9 <= 64 ? 64 : 128;
    if (rest) memcpy(last, bytes + at, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++) last[length - 1 - i] = (uint8_t)((uint64_t)size * 8 >> 8 * i);
    for (at = 0; at < length; at += 64) add_block(state, last + at);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}

}  // namespace bayesbinn::wasm
