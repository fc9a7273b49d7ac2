#pragma once

#include "kernels.hpp"

namespace bayesbinn {

// The best kernels that this CPU can run, or those that BAYESBINN_ISA names.
// Throws std::runtime_error if the CPU or the build does not have them.
const Kernels &choose_kernels(const char *name);

}  // namespace bayesbinn
