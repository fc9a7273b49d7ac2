#include "failure.hpp"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <new>

#include "../inference/memory.hpp"
#include "export.hpp"

namespace bayesbinn::wasm {
namespace {

Failure last = Failure::none;
char text_of_last[256];

char *write(char *to, const char *text) {
    while (*text) *to++ = *text++;
    return to;
}

char *write(char *to, uint64_t number) {
    char digits[20];
    int count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count) *to++ = digits[--count];
    return to;
}

void *allocated(size_t bytes, size_t alignment) {
    void *const made = aligned_alloc(alignment, inference::round_up(bytes ? bytes : 1, alignment));
    if (!made) fail(Failure::no_memory, "there is not enough memory");
    return made;
}

}  // namespace

void fail(Failure kind, const char *text) {
    last = kind;
    strncpy(text_of_last, text, sizeof text_of_last - 1);
    __builtin_trap();
}

BAYESBINN_EXPORT(failure) int failure() { return (int)last; }
BAYESBINN_EXPORT(failure_text) const char *failure_text() { return text_of_last; }

}  // namespace bayesbinn::wasm

void bayesbinn::inference::over_limit(uint64_t needed, uint64_t left) {
    char text[128];
    char *const end = wasm::write(wasm::write(text, needed), " bytes are needed, ");
    *wasm::write(wasm::write(end, left), " are left") = 0;
    wasm::fail(wasm::Failure::over_limit, text);
}

// What else the compiled code needs from a C++ library: without it, nothing of the library's own is linked in.

using bayesbinn::wasm::allocated;

void *operator new(size_t bytes) { return allocated(bytes, 16); }
void *operator new(size_t bytes, std::align_val_t alignment) { return allocated(bytes, (size_t)alignment); }
void operator delete(void *p) noexcept { free(p); }
void operator delete(void *p, size_t) noexcept { free(p); }
void operator delete(void *p, std::align_val_t) noexcept { free(p); }
void operator delete(void *p, size_t, std::align_val_t) noexcept { free(p); }

extern "C" void __cxa_pure_virtual() {
    bayesbinn::wasm::fail(bayesbinn::wasm::Failure::misuse, "a function is missing");
}

// libc++ calls this instead of throwing.
_LIBCPP_BEGIN_NAMESPACE_STD
void __libcpp_verbose_abort(const char *format, ...) noexcept {
    bayesbinn::wasm::fail(bayesbinn::wasm::Failure::misuse, format);
}
_LIBCPP_END_NAMESPACE_STD
