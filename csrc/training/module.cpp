// The Python module bayesbinn.kernels._native. Tensors come as addresses: converting each of them
// through DLPack would take longer than the kernels need for a small network. The checks that make
// addresses safe are in native.py, the only caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdlib.h>

#include <exception>
#include <type_traits>

#include "isa.hpp"
#include "threads.hpp"
#include "training.hpp"

namespace nb = nanobind;

namespace bayesbinn {
namespace {

const Kernels *chosen = nullptr;

// Binds function(team, arguments...) as name(threads, arguments...), run without the interpreter's lock.
template <class Result, class... Arguments>
void bind(nb::module_ &m, const char *name, Result (*function)(Team, Arguments...)) {
    m.def(name, [function](int threads, const std::decay_t<Arguments> &...arguments) {
        nb::gil_scoped_release unlocked;
        return function(Team{*chosen, threads}, arguments...);
    });
}

// The settings come from Python as named tuples, spread out: one number per field, in their order.
void bayesbinn_update_spread(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &naturals, const Addresses &gradients,
    const Addresses &momenta, const Addresses &priors, const Keys &keys, std::optional<uint64_t> draw, double lr,
    double temperature, double eps, double data_weight, double kl_weight, double momentum, bool steady,
    double relaxation
) {
    const NaturalGradientRule rule{lr, temperature, eps, data_weight, kl_weight, momentum, steady, relaxation};
    bayesbinn_update(team, sizes, parameters, naturals, gradients, momenta, priors, keys, draw, rule);
}

void bayesbinn_update_from_slopes_spread(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &naturals, const Addresses &gradients,
    const Addresses &slopes, const Addresses &momenta, const Addresses &priors, double lr, double temperature,
    double eps, double data_weight, double kl_weight, double momentum, bool steady,
    double relaxation
) {
    const NaturalGradientRule rule{lr, temperature, eps, data_weight, kl_weight, momentum, steady, relaxation};
    bayesbinn_update_from_slopes(team, sizes, parameters, naturals, gradients, slopes, momenta, priors, rule);
}

void adam_spread(
    Team team, const Sizes &sizes, const Addresses &values, const Addresses &gradients, const Addresses &firsts,
    const Addresses &seconds, double step_size, double beta1, double beta2, double second_scale, double eps,
    double weight_decay
) {
    const AdamRule rule{step_size, beta1, beta2, second_scale, eps, weight_decay};
    adam(team, sizes, values, gradients, firsts, seconds, rule);
}

void ste_update_spread(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &latents, const Addresses &gradients,
    const Addresses &firsts, const Addresses &seconds, double clip, double step_size, double beta1, double beta2,
    double second_scale, double eps, double weight_decay
) {
    const AdamRule rule{step_size, beta1, beta2, second_scale, eps, weight_decay};
    ste_update(team, sizes, parameters, latents, gradients, firsts, seconds, clip, rule);
}

void pmf_update_spread(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &logits, const Addresses &gradients,
    const Addresses &firsts, const Addresses &seconds, double beta, double step_size, double beta1, double beta2,
    double second_scale, double eps, double weight_decay
) {
    const AdamRule rule{step_size, beta1, beta2, second_scale, eps, weight_decay};
    pmf_update(team, sizes, parameters, logits, gradients, firsts, seconds, beta, rule);
}

std::vector<uint32_t> random_bits(uint64_t key, uint64_t draw, uint64_t block) {
    uint32_t words[NOISE_BLOCK];
    chosen->random_bits(key, draw, block, words);
    return {words, words + NOISE_BLOCK};
}

}  // namespace
}  // namespace bayesbinn

NB_MODULE(_native, m) {
    using namespace bayesbinn;
    try {
        chosen = &choose_kernels(getenv("BAYESBINN_ISA"));
    } catch (const std::exception &error) {
        throw nb::import_error(error.what());
    }
    m.def("isa", [] { return chosen->name; });
    m.def("borrow_threads_from", borrow_threads_from);
    m.def("random_bits", random_bits);
    bind(m, "write_sign", write_sign);
    bind(m, "write_tanh", write_tanh);
    bind(m, "write_pmf_sign", write_pmf_sign);
    bind(m, "write_pmf_weights", write_pmf_weights);
    bind(m, "write_relaxed_sample", write_relaxed_sample);
    bind(m, "write_hard_sample", write_hard_sample);
    bind(m, "write_training_sample", write_training_sample);
    bind(m, "restore_mode", restore_mode);
    bind(m, "accumulate_scaled", accumulate_scaled);
    bind(m, "bayesbinn_update", bayesbinn_update_spread);
    bind(m, "bayesbinn_update_from_slopes", bayesbinn_update_from_slopes_spread);
    bind(m, "adam", adam_spread);
    bind(m, "ste_update", ste_update_spread);
    bind(m, "bop_update", bop_update);
    bind(m, "pmf_update", pmf_update_spread);
    bind(m, "first_beyond", first_beyond);
    bind(m, "pack_signs", pack_signs);
}
