// The kernels on whole lists of tensors, given by their addresses and numbers of elements.
//
// Scalars come in double precision, as Python holds them, and are rounded to float32 where torch
// would round them. Input that cannot be meant throws std::invalid_argument before any write.
#pragma once

#include <optional>
#include <vector>

#include "kernels.hpp"

namespace bayesbinn {

using Addresses = std::vector<uintptr_t>;
using Sizes = std::vector<size_t>;
using Keys = std::vector<uint64_t>;

struct Team {
    const Kernels &kernels;
    int threads;
};

struct NaturalGradientRule {
    double lr, temperature, eps, data_weight, kl_weight, momentum;
    bool steady;  // steps are in proportion to v(λ), the weight's own variance
    double relaxation;  // ρ, of a steady rule
};

struct AdamRule {
    double step_size, beta1, beta2, second_scale, eps, weight_decay;
};

void write_sign(Team, const Sizes &, const Addresses &parameters, const Addresses &sources);
void write_tanh(Team, const Sizes &, const Addresses &parameters, const Addresses &sources, double scale);

// The logits of a tensor with n weights are n values of ũ₋, then n of ũ₊; likewise their moments.
void write_pmf_sign(Team, const Sizes &, const Addresses &parameters, const Addresses &logits);
void write_pmf_weights(Team, const Sizes &, const Addresses &parameters, const Addresses &logits, double beta);

void write_relaxed_sample(
    Team, const Sizes &, const Addresses &parameters, const Addresses &naturals, const Keys &, uint64_t draw,
    double temperature
);
void write_hard_sample(
    Team, const Sizes &, const Addresses &parameters, const Addresses &naturals, const Keys &, uint64_t draw
);

// As write_relaxed_sample, and keeps 1 − w² where there is an address for it. `held` says that the
// parameters hold sign(λ) already; restore_mode brings them back to it.
void write_training_sample(
    Team, const Sizes &, const Addresses &parameters, const Addresses &naturals, const Addresses &slopes, const Keys &,
    uint64_t draw, double temperature, bool held
);
void restore_mode(Team, const Sizes &, const Addresses &parameters, const Addresses &naturals, double temperature);

void accumulate_scaled(
    Team, const Sizes &, const Addresses &totals, const Addresses &naturals, const Addresses &gradients, const Keys &,
    uint64_t draw, double temperature, double eps
);

// Address 0 among the momenta and priors: there is none.
void bayesbinn_update(
    Team, const Sizes &, const Addresses &parameters, const Addresses &naturals, const Addresses &gradients,
    const Addresses &momenta, const Addresses &priors, const Keys &, std::optional<uint64_t> draw,
    const NaturalGradientRule &
);

// The same with 1 − w² as write_training_sample kept it.
void bayesbinn_update_from_slopes(
    Team, const Sizes &, const Addresses &parameters, const Addresses &naturals, const Addresses &gradients,
    const Addresses &slopes, const Addresses &momenta, const Addresses &priors, const NaturalGradientRule &
);

void adam(
    Team, const Sizes &, const Addresses &values, const Addresses &gradients, const Addresses &firsts,
    const Addresses &seconds, const AdamRule &
);
void ste_update(
    Team, const Sizes &, const Addresses &parameters, const Addresses &latents, const Addresses &gradients,
    const Addresses &firsts, const Addresses &seconds, double clip, const AdamRule &
);
void bop_update(
    Team, const Sizes &, const Addresses &parameters, const Addresses &averages, const Addresses &gradients,
    double rate, double threshold
);
void pmf_update(
    Team, const Sizes &, const Addresses &parameters, const Addresses &logits, const Addresses &gradients,
    const Addresses &firsts, const Addresses &seconds, double beta, const AdamRule &
);

// The index of the first tensor with a value beyond ±limit or a NaN, or −1.
ptrdiff_t first_beyond(Team, const Sizes &, const Addresses &tensors, double limit);

// `rows` rows of `columns` signs; each row begins a byte.
void pack_signs(Team, uintptr_t values, size_t rows, size_t columns, uintptr_t bits);

}  // namespace bayesbinn
