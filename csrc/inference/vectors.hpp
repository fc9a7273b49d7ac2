// Eight floats at a time, in the compiler's vector types.
//
// In an unnamed namespace, like lanes.hpp: each instruction set compiles its own copy.
#pragma once

#include "lanes.hpp"

namespace bayesbinn::inference {
namespace {

constexpr size_t LANES = 8;
typedef float F __attribute__((vector_size(LANES * 4)));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
typedef uint32_t U __attribute__((vector_size(LANES * 4)));

BAYESBINN_INLINE F load(const float *from) {
    F x;
    memcpy(&x, from, sizeof x);
    return x;
}

BAYESBINN_INLINE void store(float *to, F x) { memcpy(to, &x, sizeof x); }

}  // namespace
}  // namespace bayesbinn::inference
