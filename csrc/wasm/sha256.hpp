// The checksum of a model file. Browsers have SHA-256 only on pages from a trustworthy address.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace bayesbinn::wasm {

// The SHA-256 of `size` bytes (FIPS 180-4).
void sha256(const uint8_t *bytes, size_t size, uint8_t digest[32]);

}  // namespace bayesbinn::wasm
