// 32 bytes at a time: the operations that lookup is written in, for each instruction set.
//
// Everything is in an unnamed namespace: each instruction set compiles its own copy, and the
// linker must not merge an AVX2 copy of a function into the portable path.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernels split 16-bit lanes into bytes, low byte first"
#endif

#define BAYESBINN_INLINE __attribute__((always_inline)) inline

// Keeps the compiler from reordering byte additions, which would make it run out of registers.
#if defined(__AVX2__)
#define BAYESBINN_KEEP(bytes) asm volatile("" : "+x"(bytes))
#else
#define BAYESBINN_KEEP(bytes)
#endif

namespace bayesbinn::inference {
namespace {

constexpr size_t BYTES = 32;

#if defined(__AVX2__)

typedef __m256i Bytes;
typedef __m256i Table;

BAYESBINN_INLINE Bytes zero() { return _mm256_setzero_si256(); }
BAYESBINN_INLINE Bytes load_bytes(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
BAYESBINN_INLINE void store_bytes(uint8_t *p, Bytes x) { _mm256_storeu_si256((__m256i *)p, x); }
BAYESBINN_INLINE Table load_table(const uint8_t *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}
BAYESBINN_INLINE Bytes low_halves(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
// A multiplication, not a shift: on AMD, shifts would compete with shuffles for the same units.
BAYESBINN_INLINE Bytes high_halves(Bytes x) { return low_halves(_mm256_mulhi_epu16(x, _mm256_set1_epi16(1 << 12))); }
BAYESBINN_INLINE Bytes look_up(Table table, Bytes index) { return _mm256_shuffle_epi8(table, index); }
BAYESBINN_INLINE Bytes add_bytes(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
BAYESBINN_INLINE Bytes add_words(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
BAYESBINN_INLINE Bytes odd_bytes(Bytes x) { return _mm256_srli_epi16(x, 8); }

#elif defined(__aarch64__)

struct Bytes {
    uint8x16_t part[2];
};
typedef uint8x16_t Table;

template <class Function>
BAYESBINN_INLINE Bytes each(Function f) {
    return {{f(0), f(1)}};
}

BAYESBINN_INLINE Bytes zero() { return {{vdupq_n_u8(0), vdupq_n_u8(0)}}; }
BAYESBINN_INLINE Bytes load_bytes(const uint8_t *p) { return {{vld1q_u8(p), vld1q_u8(p + 16)}}; }
BAYESBINN_INLINE void store_bytes(uint8_t *p, Bytes x) {
    vst1q_u8(p, x.part[0]);
    vst1q_u8(p + 16, x.part[1]);
}
BAYESBINN_INLINE Table load_table(const uint8_t *p) { return vld1q_u8(p); }
BAYESBINN_INLINE Bytes low_halves(Bytes x) {
    return each([&](int i) { return vandq_u8(x.part[i], vdupq_n_u8(15)); });
}
BAYESBINN_INLINE Bytes high_halves(Bytes x) {
    return each([&](int i) { return vshrq_n_u8(x.part[i], 4); });
}
BAYESBINN_INLINE Bytes look_up(Table table, Bytes index) {
    return each([&](int i) { return vqtbl1q_u8(table, index.part[i]); });
}
BAYESBINN_INLINE Bytes add_bytes(Bytes a, Bytes b) {
    return each([&](int i) { return vaddq_u8(a.part[i], b.part[i]); });
}
BAYESBINN_INLINE Bytes add_words(Bytes a, Bytes b) {
    return each([&](int i) {
        return vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(a.part[i]), vreinterpretq_u16_u8(b.part[i])));
    });
}
BAYESBINN_INLINE Bytes odd_bytes(Bytes x) {
    return each([&](int i) { return vreinterpretq_u8_u16(vshrq_n_u16(vreinterpretq_u16_u8(x.part[i]), 8)); });
}
BAYESBINN_INLINE void store_words(uint16_t *p, Bytes x) {
    vst1q_u16(p, vreinterpretq_u16_u8(x.part[0]));
    vst1q_u16(p + 8, vreinterpretq_u16_u8(x.part[1]));
}

#elif defined(__wasm_simd128__)

struct Bytes {
    v128_t part[2];
};
typedef v128_t Table;

template <class Function>
BAYESBINN_INLINE Bytes each(Function f) {
    return {{f(0), f(1)}};
}

BAYESBINN_INLINE Bytes zero() { return {{wasm_i8x16_const_splat(0), wasm_i8x16_const_splat(0)}}; }
BAYESBINN_INLINE Bytes load_bytes(const uint8_t *p) { return {{wasm_v128_load(p), wasm_v128_load(p + 16)}}; }
BAYESBINN_INLINE void store_bytes(uint8_t *p, Bytes x) {
    wasm_v128_store(p, x.part[0]);
    wasm_v128_store(p + 16, x.part[1]);
}
BAYESBINN_INLINE Table load_table(const uint8_t *p) { return wasm_v128_load(p); }
BAYESBINN_INLINE Bytes low_halves(Bytes x) {
    return each([&](int i) { return wasm_v128_and(x.part[i], wasm_i8x16_const_splat(15)); });
}
BAYESBINN_INLINE Bytes high_halves(Bytes x) {
    return each([&](int i) { return wasm_v128_and(wasm_u16x8_shr(x.part[i], 4), wasm_i8x16_const_splat(15)); });
}
BAYESBINN_INLINE Bytes look_up(Table table, Bytes index) {
    return each([&](int i) { return wasm_i8x16_swizzle(table, index.part[i]); });
}
BAYESBINN_INLINE Bytes add_bytes(Bytes a, Bytes b) {
    return each([&](int i) { return wasm_i8x16_add(a.part[i], b.part[i]); });
}
BAYESBINN_INLINE Bytes add_words(Bytes a, Bytes b) {
    return each([&](int i) { return wasm_i16x8_add(a.part[i], b.part[i]); });
}
BAYESBINN_INLINE Bytes odd_bytes(Bytes x) {
    return each([&](int i) { return wasm_u16x8_shr(x.part[i], 8); });
}
BAYESBINN_INLINE void store_words(uint16_t *p, Bytes x) {
    wasm_v128_store(p, x.part[0]);
    wasm_v128_store(p + 8, x.part[1]);
}

#else

typedef uint8_t Bytes __attribute__((vector_size(32)));
typedef uint16_t Words __attribute__((vector_size(32)));
typedef const uint8_t *Table;

BAYESBINN_INLINE Bytes zero() { return Bytes{}; }
BAYESBINN_INLINE Bytes load_bytes(const uint8_t *p) {
    Bytes x;
    memcpy(&x, p, sizeof x);
    return x;
}
BAYESBINN_INLINE void store_bytes(uint8_t *p, Bytes x) { memcpy(p, &x, sizeof x); }
BAYESBINN_INLINE Table load_table(const uint8_t *p) { return p; }
BAYESBINN_INLINE Bytes low_halves(Bytes x) { return x & 15; }
BAYESBINN_INLINE Bytes high_halves(Bytes x) { return x >> 4; }
BAYESBINN_INLINE Bytes look_up(Table table, Bytes index) {
    Bytes y;
    for (size_t i = 0; i < BYTES; i++) y[i] = table[index[i]];
    return y;
}
BAYESBINN_INLINE Bytes add_bytes(Bytes a, Bytes b) { return a + b; }
BAYESBINN_INLINE Bytes add_words(Bytes a, Bytes b) { return (Bytes)((Words)a + (Words)b); }
BAYESBINN_INLINE Bytes odd_bytes(Bytes x) { return (Bytes)((Words)x >> 8); }
BAYESBINN_INLINE void store_words(uint16_t *p, Bytes x) { memcpy(p, &x, sizeof x); }

#endif

// 32 totals of 16 bits, from sums of bytes: `all` is even + 256·odd modulo 2¹⁶, `odd` the odd ones.
struct Totals {
    Bytes all = zero(), odd = zero();

    BAYESBINN_INLINE void add(Bytes sums) {
        all = add_words(all, sums);
        odd = add_words(odd, odd_bytes(sums));
    }
};

// to[i] ← low total i + 2⁵ · high total i for 32 totals, added to what is there if `more`
BAYESBINN_INLINE void store_totals(int32_t *to, const Totals &low, const Totals &high, bool more) {
#if defined(__AVX2__)
    const auto even = [](const Totals &t) { return _mm256_sub_epi16(t.all, _mm256_slli_epi16(t.odd, 8)); };
    const auto store = [&](int at, __m128i low_words, __m128i high_words) {
        __m256i parts =
            _mm256_add_epi32(_mm256_cvtepu16_epi32(low_words), _mm256_slli_epi32(_mm256_cvtepu16_epi32(high_words), 5));
        __m256i *const where = (__m256i *)(to + at);
        if (more) parts = _mm256_add_epi32(_mm256_loadu_si256(where), parts);
        _mm256_storeu_si256(where, parts);
    };
    // Interleaving even and odd totals works within halves of a register: totals 0–7 and 16–23, 8–15 and 24–31.
    const __m256i low_even = even(low), high_even = even(high);
    const __m256i l0 = _mm256_unpacklo_epi16(low_even, low.odd), l1 = _mm256_unpackhi_epi16(low_even, low.odd);
    const __m256i h0 = _mm256_unpacklo_epi16(high_even, high.odd), h1 = _mm256_unpackhi_epi16(high_even, high.odd);
    store(0, _mm256_castsi256_si128(l0), _mm256_castsi256_si128(h0));
    store(8, _mm256_castsi256_si128(l1), _mm256_castsi256_si128(h1));
    store(16, _mm256_extracti128_si256(l0, 1), _mm256_extracti128_si256(h0, 1));
    store(24, _mm256_extracti128_si256(l1, 1), _mm256_extracti128_si256(h1, 1));
#else
    if (!more) memset(to, 0, sizeof(int32_t) * BYTES);
    const auto add = [&](const Totals &totals, int shift) {
        uint16_t all[16], odd[16];
        store_words(all, totals.all);
        store_words(odd, totals.odd);
        for (int i = 0; i < 16; i++) {
            to[2 * i] += (int32_t)(uint16_t)(all[i] - (odd[i] << 8)) << shift;
            to[2 * i + 1] += (int32_t)odd[i] << shift;
        }
    };
    add(low, 0);
    add(high, 5);
#endif
}

}  // namespace
}  // namespace bayesbinn::inference
