#include "isa.hpp"

#include <stdexcept>
#include <string>
#include <vector>

namespace bayesbinn {
namespace {

// The kernels in this build that this CPU can run, best first.
std::vector<const Kernels *> usable_kernels() {
    std::vector<const Kernels *> usable;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
#if defined(BAYESBINN_HAS_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        usable.push_back(&kernels_avx512);
#endif
#if defined(BAYESBINN_HAS_AVX2)
    if (__builtin_cpu_supports("avx2")) usable.push_back(&kernels_avx2);
#endif
#if defined(BAYESBINN_HAS_NEON)
    usable.push_back(&kernels_neon);
#else
    usable.push_back(&kernels_portable);
#endif
    return usable;
}

}  // namespace

const Kernels &choose_kernels(const char *name) {
    const std::vector<const Kernels *> usable = usable_kernels();
    if (!name || !*name) return *usable.front();
    std::string names;
    for (const Kernels *kernels : usable) {
        if (std::string(kernels->name) == name) return *kernels;
        names += std::string(names.empty() ? "" : ", ") + kernels->name;
    }
    throw std::runtime_error("BAYESBINN_ISA=" + std::string(name) + ": this build and CPU have " + names);
}

}  // namespace bayesbinn
