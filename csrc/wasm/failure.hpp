// How a failure leaves WebAssembly: as a code and a text, for the page to read after the call has ended.
//
// There is no unwinding. A failure ends the call by a trap, after which the caller drops the whole instance, its memory
// included, so nothing needs to be cleaned up. The native build of the tests throws instead.
#pragma once

namespace bayesbinn::wasm {

enum class Failure { none = 0, over_limit = 1, no_memory = 2, misuse = 3 };

[[noreturn]] void fail(Failure kind, const char *text);

inline void require(bool condition, const char *text) {
    if (!condition) fail(Failure::misuse, text);
}

}  // namespace bayesbinn::wasm
