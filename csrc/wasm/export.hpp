// Marks the functions that a page calls.
#pragma once

#if defined(__wasm__)
#define BAYESBINN_EXPORT(name) extern "C" __attribute__((export_name(#name)))
#else
#define BAYESBINN_EXPORT(name) extern "C"
#endif
