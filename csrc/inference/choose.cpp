#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"

namespace bayesbinn::inference {
namespace {

// The kernels in this build that this CPU can run, best first.
std::vector<const Kernels *> usable_kernels() {
    std::vector<const Kernels *> usable;
#if defined(BAYESBINN_HAS_AVX2)
    __builtin_cpu_init();
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
    const std::string asked = name ? name : "";
    if (asked.empty() || asked == "avx512") return *usable.front();
    std::string names;
    for (const Kernels *kernels : usable) {
        if (kernels->name == asked) return *kernels;
        names += std::string(names.empty() ? "" : ", ") + kernels->name;
    }
    throw std::runtime_error("BAYESBINN_ISA=" + asked + ": this build and CPU have " + names);
}

}  // namespace bayesbinn::inference
