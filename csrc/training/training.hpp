// The kernels on lists of tensors, given by their addresses and numbers of elements.
// Invalid input throws std::invalid_argument before any write.
#pragma once

#include <vector>

#include "kernels.hpp"

namespace bayesbinn {

using Addresses = std::vector<uintptr_t>;
using Sizes = std::vector<size_t>;

struct Team {
    const Kernels &kernels;
    int threads;
};

// A list of tensors: their numbers of elements, and each column of their kernel: addresses, or keys of their noise.
// Address 0 in an optional column means that it is missing.
struct Tensors {
    Sizes sizes;
    std::vector<Addresses> columns;
};

// name(team, tensors, settings) for every kernel, and its columns.
#define BAYESBINN_DECLARE(kernel, Settings, ...)                                                                       \
    void kernel(Team, const Tensors &, const Settings &);                                                              \
    constexpr Column kernel##_columns[] = {__VA_ARGS__};
BAYESBINN_EACH_KERNEL(BAYESBINN_DECLARE)
#undef BAYESBINN_DECLARE

// The index of the first tensor with a value beyond ±limit or a NaN, or −1.
ptrdiff_t first_beyond(Team, const Sizes &, const Addresses &tensors, double limit);

// Fills `values` as torch.Tensor.bernoulli_ does, with the state of torch's CPU generator, and advances the state:
// its bytes as torch.Generator.get_state returns them.
void bernoulli(Team, uint8_t *state, size_t bytes, double probability, float *values, size_t count);

}  // namespace bayesbinn
