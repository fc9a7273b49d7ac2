#include "training.hpp"

#include <float.h>
#include <math.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "sweep.hpp"

namespace bayesbinn {
namespace {

// From this many elements in all on, a parameter is stored past the caches: it would not stay there
// until it is read. Within a training step of 10 million weights this takes 23 % off the sample and
// 19 % off the update, and the forward pass that then reads the weights is no slower.
constexpr size_t TOO_LARGE_FOR_CACHES = size_t(1) << 22;
constexpr uintptr_t STREAM_ALIGNMENT = 32;

constexpr double LN2 = 0.693147180559945309417232121458;
constexpr double SATURATION = 13 * LN2;    // where float32 tanh rounds to 1
constexpr double MAX_LOGISTIC = 12 * LN2;  // the largest |δ|

// From this |λ| on, |λ + δ|/τ ≥ 13·ln 2 for every δ: the sample is sign(λ). The margin is a
// hundred times the rounding errors of δ, of the sum and of the product with 1/τ.
float certain_from(double temperature) { return (float)((MAX_LOGISTIC + SATURATION * temperature) * (1 + 1e-5)); }

// One array of each tensor. The second half of a tensor with 2n elements is its `half` 1.
struct Column {
    const Addresses &addresses;
    bool optional = false;
    int half = 0;
};

std::invalid_argument refused(const std::string &what) { return std::invalid_argument(what); }

// Two arrays of a tensor may be the same memory, which is in-place work, but may not overlap in part.
void refuse_overlap(const float *a, const float *b, size_t size) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b, bytes = size * sizeof(float);
    if (x && y && x != y && x < y + bytes && y < x + bytes) throw refused("two arrays of a tensor overlap in memory");
}

// The arrays of all tensors, side by side.
std::vector<Arrays> gather(const Sizes &sizes, std::initializer_list<Column> columns, const Keys *keys = nullptr) {
    if (keys && keys->size() != sizes.size()) throw refused("there must be one key per tensor");
    for (const Column &column : columns)
        if (column.addresses.size() != sizes.size()) throw refused("the lists must have the same length");
    size_t total = 0;
    for (size_t size : sizes) total += size;

    std::vector<Arrays> all(sizes.size());
    for (size_t i = 0; i < sizes.size(); i++) {
        Arrays &arrays = all[i];
        int count = 0;
        for (const Column &column : columns) {
            float *array = reinterpret_cast<float *>(column.addresses[i]);
            if (array && column.half) array += sizes[i];
            if (!array && !column.optional && sizes[i]) throw refused("a tensor with elements has no memory");
            if ((uintptr_t)array % sizeof(float)) throw refused("a tensor is not aligned to its elements");
            for (int k = 0; k < count; k++) refuse_overlap(arrays.at[k], array, sizes[i]);
            arrays.at[count++] = array;
        }
        arrays.key = keys ? (*keys)[i] : 0;
        arrays.streams = total >= TOO_LARGE_FOR_CACHES && (uintptr_t)arrays.at[0] % STREAM_ALIGNMENT == 0;
    }
    return all;
}

ScaleSettings scale_settings(uint64_t draw, double temperature, double eps) {
    const float tau = (float)temperature, e = (float)eps;
    return {
        draw,
        tau,
        (float)(1 / temperature),
        e,
        std::max(certain_from(temperature), (float)SATURATION),
        e / (e * tau),
    };
}

AdamSettings adam_settings(const AdamRule &rule) {
    return {
        (float)rule.step_size,
        (float)rule.beta1,
        (float)(1 - rule.beta1),
        (float)rule.beta2,
        (float)(1 - rule.beta2),
        (float)rule.second_scale,
        (float)rule.eps,
        (float)rule.weight_decay,
        rule.weight_decay != 0,
    };
}

}  // namespace

void write_sign(Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &sources) {
    const auto all = gather(sizes, {{parameters}, {sources}});
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.sign(all[i], range); });
}

void write_tanh(Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &sources, double scale) {
    const auto all = gather(sizes, {{parameters}, {sources}});
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.tanh((float)scale, all[i], range); });
}

void write_pmf_sign(Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &logits) {
    const auto all = gather(sizes, {{parameters}, {logits}, {logits, false, 1}});
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.pmf_sign(all[i], range); });
}

void write_pmf_weights(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &logits, double beta
) {
    const auto all = gather(sizes, {{parameters}, {logits}, {logits, false, 1}});
    const float half_beta = (float)(beta / 2);
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.pmf_weights(half_beta, all[i], range); });
}

void write_relaxed_sample(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &naturals, const Keys &keys,
    uint64_t draw, double temperature
) {
    const auto all = gather(sizes, {{parameters}, {naturals}}, &keys);
    const SampleSettings set{draw, (float)(1 / temperature), certain_from(temperature), false};
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.relaxed_sample(set, all[i], range); });
}

void write_training_sample(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &naturals, const Addresses &slopes,
    const Keys &keys, uint64_t draw, double temperature, bool held
) {
    const auto all = gather(sizes, {{parameters}, {naturals}, {slopes, true}}, &keys);
    const SampleSettings set{draw, (float)(1 / temperature), certain_from(temperature), held};
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.training_sample(set, all[i], range); });
}

void restore_mode(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &naturals, double temperature
) {
    const auto all = gather(sizes, {{parameters}, {naturals}});
    const float certain = certain_from(temperature);
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.restore_mode(certain, all[i], range); });
}

void write_hard_sample(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &naturals, const Keys &keys,
    uint64_t draw
) {
    const auto all = gather(sizes, {{parameters}, {naturals}}, &keys);
    const SampleSettings set{draw, INFINITY, certain_from(0), false};
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.hard_sample(set, all[i], range); });
}

void accumulate_scaled(
    Team team, const Sizes &sizes, const Addresses &totals, const Addresses &naturals, const Addresses &gradients,
    const Keys &keys, uint64_t draw, double temperature, double eps
) {
    const auto all = gather(sizes, {{totals}, {naturals}, {gradients}}, &keys);
    const ScaleSettings set = scale_settings(draw, temperature, eps);
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.accumulate_scaled(set, all[i], range); });
}

namespace {

void natural_gradient_sweep(
    Team team, const Sizes &sizes, const std::vector<Arrays> &all, const ScaleSettings &scale, bool scaled,
    const NaturalGradientRule &rule
) {
    const NaturalGradientSettings set{
        scale,
        scaled,
        rule.steady,
        (float)rule.lr,
        (float)rule.data_weight,
        (float)rule.kl_weight,
        (float)rule.momentum,
        (float)(1 - rule.momentum),
        (float)rule.relaxation,
    };
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.bayesbinn_update(set, all[i], range); });
}

}  // namespace

void bayesbinn_update(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &naturals, const Addresses &gradients,
    const Addresses &momenta, const Addresses &priors, const Keys &keys, std::optional<uint64_t> draw,
    const NaturalGradientRule &rule
) {
    const Addresses none(sizes.size());
    const auto all =
        gather(sizes, {{parameters}, {naturals}, {momenta, true}, {gradients}, {priors, true}, {none, true}}, &keys);
    const ScaleSettings scale = scale_settings(draw.value_or(0), rule.temperature, rule.eps);
    natural_gradient_sweep(team, sizes, all, scale, !draw, rule);
}

void bayesbinn_update_from_slopes(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &naturals, const Addresses &gradients,
    const Addresses &slopes, const Addresses &momenta, const Addresses &priors, const NaturalGradientRule &rule
) {
    const auto all =
        gather(sizes, {{parameters}, {naturals}, {momenta, true}, {gradients}, {priors, true}, {slopes}});
    natural_gradient_sweep(team, sizes, all, scale_settings(0, rule.temperature, rule.eps), false, rule);
}

void adam(
    Team team, const Sizes &sizes, const Addresses &values, const Addresses &gradients, const Addresses &firsts,
    const Addresses &seconds, const AdamRule &rule
) {
    const auto all = gather(sizes, {{values}, {firsts}, {seconds}, {gradients}});
    const AdamSettings set = adam_settings(rule);
    sweep(sizes, team.threads, [&](size_t i, Range range) { team.kernels.adam(set, all[i], range); });
}

void ste_update(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &latents, const Addresses &gradients,
    const Addresses &firsts, const Addresses &seconds, double clip, const AdamRule &rule
) {
    const auto all = gather(sizes, {{parameters}, {latents}, {firsts}, {seconds}, {gradients}});
    const AdamSettings set = adam_settings(rule);
    sweep(sizes, team.threads, [&](size_t i, Range range) {
        team.kernels.ste_update(set, (float)clip, all[i], range);
    });
}

void bop_update(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &averages, const Addresses &gradients,
    double rate, double threshold
) {
    const auto all = gather(sizes, {{parameters}, {averages}, {gradients}});
    sweep(sizes, team.threads, [&](size_t i, Range range) {
        team.kernels.bop_update((float)rate, (float)(1 - rate), (float)threshold, all[i], range);
    });
}

void pmf_update(
    Team team, const Sizes &sizes, const Addresses &parameters, const Addresses &logits, const Addresses &gradients,
    const Addresses &firsts, const Addresses &seconds, double beta, const AdamRule &rule
) {
    const auto all = gather(
        sizes,
        {{parameters},
         {logits},
         {logits, false, 1},
         {firsts},
         {firsts, false, 1},
         {seconds},
         {seconds, false, 1},
         {gradients}}
    );
    const AdamSettings set = adam_settings(rule);
    sweep(sizes, team.threads, [&](size_t i, Range range) {
        team.kernels.pmf_update(set, (float)beta, (float)(beta / 2), all[i], range);
    });
}

ptrdiff_t first_beyond(Team team, const Sizes &sizes, const Addresses &tensors, double limit) {
    if (!(limit >= 0)) throw refused("the limit must be 0 or more");
    const float most = (float)std::min(limit, (double)FLT_MAX);
    const auto all = gather(sizes, {{tensors}});
    std::atomic<size_t> first{sizes.size()};
    sweep(sizes, team.threads, [&](size_t i, Range range) {
        size_t known = first.load(std::memory_order_relaxed);
        if (i >= known || team.kernels.all_within(most, all[i].at[0] + range.begin, range.end - range.begin)) return;
        while (i < known && !first.compare_exchange_weak(known, i)) {
        }
    });
    const size_t found = first.load();
    return found == sizes.size() ? -1 : (ptrdiff_t)found;
}

void pack_signs(Team team, uintptr_t values, size_t rows, size_t columns, uintptr_t bits) {
    // Rows of whole bytes follow each other without padding: they are one long row.
    if (columns % 8 == 0) columns *= rows, rows = rows ? 1 : 0;
    if (rows == 0 || columns == 0) return;
    if (!values || !bits || values % sizeof(float)) throw refused("the signs or their bits have no usable memory");
    const float *from = reinterpret_cast<const float *>(values);
    uint8_t *to = reinterpret_cast<uint8_t *>(bits);
    const size_t bytes = columns / 8 + (columns % 8 != 0);
    sweep(Sizes(rows, columns), team.threads, [&](size_t row, Range range) {
        const size_t count = range.end - range.begin;
        team.kernels.pack_signs(from + row * columns + range.begin, count, to + row * bytes + range.begin / 8);
    });
}

}  // namespace bayesbinn
