// Every kernel, compiled once per instruction set; BAYESBINN_ISA is its name.
//
// Sampling and updating have a fast path. If |λ| is large enough, no noise can flip a weight: then
// w = sign(λ), s is a constant, and a block needs neither Philox nor exp and log. At the paper's
// τ = 1e-10 this holds for nearly all blocks, and the kernels run at the speed of memory.
// The fast path gives the same bits as the slow one. Later in training, weights that are about to change their sign
// gather near λ = 0, a hundredth of all after ten epochs, so that most blocks have one: then noise is drawn for these
// elements alone, those of a whole piece together.
//
// Long formulas are split into several loops over a block, each short enough for the processor to
// work on several iterations at once.

#include "blocks.hpp"
#include "outer.hpp"
#include "rules.hpp"
#include "signs.hpp"
#include "twister.hpp"

namespace bayesbinn {
namespace {

// p ← f(source)
template <class Function>
BAYESBINN_INLINE void map(const Arrays &x, Range range, Function f) {
    each_block<2, 2, 1>(x, range, [&](uint64_t, const auto &block, auto put) __attribute__((always_inline)) {
        for (int v = 0; v < VECTORS; v++) put(block.at[0] + v * LANES, f(block(1, v)));
    });
}

// p ← f(ũ₊ − ũ₋)
template <class Function>
BAYESBINN_INLINE void map_difference(const Arrays &x, Range range, Function f) {
    each_block<3, 6, 1>(x, range, [&](uint64_t, const auto &block, auto put) __attribute__((always_inline)) {
        for (int v = 0; v < VECTORS; v++) put(block.at[0] + v * LANES, f(block(2, v) - block(1, v)));
    });
}

void write_sign(const NoSettings &, const Arrays &x, Range range) {
    map(x, range, [](F source) { return sign(source); });
}

void write_tanh(const TanhSettings &set, const Arrays &x, Range range) {
    const float scale = (float)set.scale;
    map(x, range, [=](F source) { return tanh(source * scale); });
}

void write_pmf_sign(const NoSettings &, const Arrays &x, Range range) {
    map_difference(x, range, [](F difference) { return sign(difference); });
}

void write_pmf_weights(const SoftSettings &set, const Arrays &x, Range range) {
    const float half_beta = (float)(set.beta / 2);
    map_difference(x, range, [=](F difference) { return tanh(difference * half_beta); });
}

// p ← sample(λ, δ), a function that is sign(λ) wherever |λ| ≥ certain
template <class Sample>
BAYESBINN_INLINE void write_sample(uint64_t draw, float certain, const Arrays &x, Range range, Sample sample) {
    const NoiseStream noise(x.key, draw);
    each_block<2, 2, 1>(x, range, [&](uint64_t b, const auto &block, auto put) __attribute__((always_inline)) {
        if (all_at_least(block.at[1], certain)) {
            for (int v = 0; v < VECTORS; v++) put(block.at[0] + v * LANES, sign(block(1, v)));
        } else {
            F delta[VECTORS];
            logistic_noise(noise, b, delta);
            for (int v = 0; v < VECTORS; v++) put(block.at[0] + v * LANES, sample(block(1, v), delta[v]));
        }
    });
}

void write_relaxed_sample(const SampleSettings &set, const Arrays &x, Range range) {
    const float inverse_temperature = (float)(1 / set.temperature);
    write_sample(set.draw, certain_from(set.temperature), x, range, [=](F natural, F delta) {
        return relaxed_sample(natural, delta, inverse_temperature);
    });
}

void write_training_sample(const TrainingSampleSettings &set, const Arrays &x, Range range) {
    const NoiseStream noise(x.key, set.draw);
    const float temperature = (float)set.temperature, inverse_temperature = (float)(1 / set.temperature);
    const float certain = certain_from(set.temperature);
    const bool held = set.held;
    Elements uncertain;
    const uint64_t first = range.begin / BLOCK, whole = range.end / BLOCK;
    float *weights = x.at[0] + range.begin;
    const float *naturals = x.at[1] + range.begin;
    each_block<3, 2, 5>(x, range, [&](uint64_t b, const auto &block, auto put) __attribute__((always_inline)) {
        if (all_at_least(block.at[1], certain)) {
            if (!held)
                for (int v = 0; v < VECTORS; v++) put(block.at[0] + v * LANES, sign(block(1, v)));
            if (block.at[2])
                for (int v = 0; v < VECTORS; v++) block.set(2, v, broadcast(0.0f));
        } else if (held && !block.at[2] && b < whole && uncertain.add_below(block.at[1], certain, b - first)) {
        } else {
            F u[VECTORS];
            uniform_noise(noise, b, u);
            if (block.at[2]) {
                for (int v = 0; v < VECTORS; v++) u[v] = (block(1, v) + half_logit(u[v])) * inverse_temperature;
                for (int v = 0; v < VECTORS; v++) {
                    const TanhAndSech2 both = tanh_and_sech2(u[v]);
                    put(block.at[0] + v * LANES, both.tanh);
                    block.set(2, v, both.sech2);
                }
            } else {
                for (int v = 0; v < VECTORS; v++)
                    put(block.at[0] + v * LANES, cold_sample(block(1, v), u[v], temperature, inverse_temperature));
            }
        }
    });
    uncertain.with_noise(noise, range.begin / NOISE_BLOCK, [&](int, int number, const uint16_t *places, F u) {
        const F sample = cold_sample(gather(naturals, places), u, temperature, inverse_temperature);
        for (int lane = 0; lane < number; lane++) weights[places[lane]] = sample[lane];
    });
}

void restore_mode(const ModeSettings &set, const Arrays &x, Range range) {
    const float certain = certain_from(set.temperature);
    each_block<2, 2, 1>(x, range, [&](uint64_t, const auto &block, auto) __attribute__((always_inline)) {
        if (all_at_least(block.at[1], certain)) return;
        for (int v = 0; v < VECTORS; v++) block.set(0, v, sign(block(1, v)));
    });
}

void write_hard_sample(const HardSampleSettings &set, const Arrays &x, Range range) {
    write_sample(set.draw, certain_from(0), x, range, [](F natural, F delta) { return sign(natural + delta); });
}

// The scales s of a piece of λ.
class Scales {
   public:
    Scales(const Scale &set, const NoiseStream &noise, const float *natural, Range range)
        : set_(set), noise_(noise), first_(range.begin / BLOCK) {
        natural += range.begin;
        for (uint64_t k = 0; k < range.end / BLOCK - first_; k++) {
            const float *block = natural + k * BLOCK;
            ask_for(block);
            const bool are_few = all_at_least(block, set.certain) || uncertain_.add_below(block, set.certain, k);
            ends_[k] = are_few ? uncertain_.count() : MANY;
        }
        uncertain_.with_noise(noise, range.begin / NOISE_BLOCK, [&](int i, int, const uint16_t *places, F u) {
            const F few = gather(natural, places);
            store(scales_ + i, gradient_scale(few, cold_slope(few, u, set), set));
        });
    }

    // Calls use(v, s) for each vector of block b, in order.
    template <class Use>
    BAYESBINN_INLINE void with(uint64_t b, const float *natural, bool is_whole, Use use) {
        const int end = is_whole ? ends_[b - first_] : MANY;
        if (end == MANY) {
            F x[VECTORS];  // u, then 1 − w², then s
            uniform_noise(noise_, b, x);
            for (int v = 0; v < VECTORS; v++) x[v] = cold_slope(load(natural + v * LANES), x[v], set_);
            for (int v = 0; v < VECTORS; v++) x[v] = gradient_scale(load(natural + v * LANES), x[v], set_);
            for (int v = 0; v < VECTORS; v++) use(v, x[v]);
        } else if (end == next_) {
            for (int v = 0; v < VECTORS; v++) use(v, broadcast(set_.certain_scale));
        } else {
#if defined(__AVX512VL__)
            for (int v = 0; v < VECTORS; v++) {
                const unsigned below = lane_bits(abs(load(natural + v * LANES)) >= set_.certain) ^ ALL_LANES;
                const __m256 others = (__m256)broadcast(set_.certain_scale);
                use(v, (F)_mm256_mask_expandloadu_ps(others, (__mmask8)below, scales_ + next_));
                next_ += count_lanes(below);
            }
#else
            alignas(sizeof(F)) float scale[BLOCK];
            for (int v = 0; v < VECTORS; v++) store(scale + v * LANES, broadcast(set_.certain_scale));
            for (; next_ < end; next_++) scale[uncertain_[next_] % BLOCK] = scales_[next_];
            for (int v = 0; v < VECTORS; v++) use(v, load(scale + v * LANES));
#endif
        }
    }

   private:
    static constexpr int MANY = -1;

    const Scale &set_;
    const NoiseStream &noise_;
    uint64_t first_;
    int next_ = 0;  // the first of the uncertain elements that has not been used
    Elements uncertain_;
    int ends_[PIECE / BLOCK];  // of each block's uncertain elements, or MANY
    float scales_[Elements::MOST];
};

void accumulate_scaled(const ScaleSettings &set, const Arrays &x, Range range) {
    const NoiseStream noise(x.key, set.draw);
    const Scale scale(set.temperature, set.eps);
    Scales scales(scale, noise, x.at[1], range);
    each_block<3, 5, 1>(x, range, [&](uint64_t b, const auto &block, auto) __attribute__((always_inline)) {
        scales.with(b, block.at[1], b < range.end / BLOCK, [&](int v, F s) __attribute__((always_inline)) {
            block.set(0, v, block(0, v) + s * block(2, v));
        });
    });
}

// The step of BayesBiNN. Array 5 is the sample's 1 − w², or null to draw its noise again; `scaled` means that the
// gradients are already Σ s⊙g.
void natural_gradient_update(const RuleSettings &rule, uint64_t draw, bool scaled, const Arrays &x, Range range) {
    const NoiseStream noise(x.key, draw);
    const Scale scale(rule.temperature, rule.eps);
    const Rule set(rule);
    const F zero = broadcast(0.0f);
    Scales scales(scale, noise, x.at[1], scaled || x.at[5] ? Range{range.begin, range.begin} : range);
    each_block<6, 62, 7>(x, range, [&](uint64_t b, const auto &block, auto put) __attribute__((always_inline)) {
        const auto step_at = [&](int v, F scaled_gradient, F variance) __attribute__((always_inline)) {
            const F natural = block(1, v);
            const F pull = block.at[4] ? natural - block(4, v) : set.steady ? zero : natural;
            F direction = set.steady ? steady_gradient(scaled_gradient, pull, natural, variance, set)
                                     : natural_gradient(scaled_gradient, pull, set);
            if (block.at[2]) {
                direction = averaged(block(2, v), direction, set);
                block.set(2, v, direction);
            }
            const F updated = natural - direction * set.lr;
            block.set(1, v, updated);
            put(block.at[0] + v * LANES, sign(updated));
        };
        const auto step = [&](int v, F scaled_gradient) __attribute__((always_inline)) {
            step_at(v, scaled_gradient, set.steady ? sech2(block(1, v)) : zero);
        };
        if (scaled) {
            for (int v = 0; v < VECTORS; v++) step(v, block(3, v));
        } else if (block.at[5] && all_at_least(block.at[1], scale.certain)) {
            for (int v = 0; v < VECTORS; v++) step(v, broadcast(scale.certain_scale) * block(3, v));
        } else if (block.at[5]) {
            F variance[VECTORS];
            for (int v = 0; v < VECTORS; v++) variance[v] = sech2(block(1, v));
            for (int v = 0; v < VECTORS; v++)
                step_at(v, scale_at(variance[v], block(5, v), scale) * block(3, v), variance[v]);
        } else {
            scales.with(b, block.at[1], b < range.end / BLOCK, [&](int v, F s) __attribute__((always_inline)) {
                step(v, s * block(3, v));
            });
        }
    });
}

void bayesbinn_update(const UpdateSettings &set, const Arrays &x, Range range) {
    natural_gradient_update(set.rule, set.draw.value_or(0), !set.draw, x, range);
}

void bayesbinn_update_from_slopes(const SlopeUpdateSettings &set, const Arrays &x, Range range) {
    natural_gradient_update(set.rule, 0, false, x, range);
}

void adam(const AdamUpdateSettings &settings, const Arrays &x, Range range) {
    const Adam set(settings.adam);
    each_block<4, 15, 7>(x, range, [&](uint64_t, const auto &block, auto) __attribute__((always_inline)) {
        for (int v = 0; v < VECTORS; v++) {
            F value = block(0, v), first = block(1, v), second = block(2, v);
            adam_step(value, first, second, block(3, v), set);
            block.set(0, v, value);
            block.set(1, v, first);
            block.set(2, v, second);
        }
    });
}

void ste_update(const STESettings &settings, const Arrays &x, Range range) {
    const Adam set(settings.adam);
    const float clip = (float)settings.clip;
    each_block<5, 30, 15>(x, range, [&](uint64_t, const auto &block, auto put) __attribute__((always_inline)) {
        for (int v = 0; v < VECTORS; v++) {
            F latent = block(1, v), first = block(2, v), second = block(3, v);
            adam_step(latent, first, second, block(4, v), set);
            latent = at_most(at_least(latent, -clip), clip);
            block.set(1, v, latent);
            block.set(2, v, first);
            block.set(3, v, second);
            put(block.at[0] + v * LANES, sign(latent));
        }
    });
}

// m ← (1 − γ)·m + γ·g, then flip w where w·m > threshold. The weights are the state: whatever a user may have
// written to them, they end up as −1 and +1.
void bop_update(const BopSettings &set, const Arrays &x, Range range) {
    const float rate = (float)set.rate, one_minus_rate = (float)(1 - set.rate), threshold = (float)set.threshold;
    each_block<3, 7, 3>(x, range, [&](uint64_t, const auto &block, auto) __attribute__((always_inline)) {
        for (int v = 0; v < VECTORS; v++) {
            const F weight = sign(block(0, v));
            const F average = block(1, v) * one_minus_rate + block(2, v) * rate;
            block.set(0, v, select(weight * average > threshold, -weight, weight));
            block.set(1, v, average);
        }
    });
}

void pmf_update(const PMFSettings &settings, const Arrays &x, Range range) {
    const Adam set(settings.adam);
    const float beta = (float)settings.beta, half_beta = (float)(settings.beta / 2);
    each_block<8, 254, 127>(x, range, [&](uint64_t, const auto &block, auto put) __attribute__((always_inline)) {
        F m[VECTORS];  // w = tanh(β(ũ₊ − ũ₋)/2), then tanh(β·w/2)
        for (int v = 0; v < VECTORS; v++) m[v] = tanh((block(2, v) - block(1, v)) * half_beta);
        for (int v = 0; v < VECTORS; v++) m[v] = tanh(m[v] * half_beta);
        for (int v = 0; v < VECTORS; v++) {
            const LogitGradients g = pmf_logit_gradients(m[v], block(7, v), beta);
            F minus = block(1, v), first_minus = block(3, v), second_minus = block(5, v);
            F plus = block(2, v), first_plus = block(4, v), second_plus = block(6, v);
            adam_step(minus, first_minus, second_minus, g.minus, set);
            adam_step(plus, first_plus, second_plus, g.plus, set);
            block.set(1, v, minus);
            block.set(2, v, plus);
            block.set(3, v, first_minus);
            block.set(4, v, first_plus);
            block.set(5, v, second_minus);
            block.set(6, v, second_plus);
            put(block.at[0] + v * LANES, sign(plus - minus));
        }
    });
}

// total ← total + (1 − w²)/τ⊙g
void accumulate_slope(const ModeSettings &set, const Arrays &x, Range range) {
    const float inverse_temperature = (float)(1 / set.temperature);
    each_block<3, 7, 1>(x, range, [&](uint64_t, const auto &block, auto) __attribute__((always_inline)) {
        for (int v = 0; v < VECTORS; v++)
            block.set(0, v, block(0, v) + block(1, v) * block(2, v) * inverse_temperature);
    });
}

void bimu_update(const BiMUUpdateSettings &settings, const Arrays &x, Range range) {
    const BiMU set(settings.bimu);
    each_block<3, 6, 3>(x, range, [&](uint64_t, const auto &block, auto put) __attribute__((always_inline)) {
        for (int v = 0; v < VECTORS; v++) {
            const F updated = bimu_step(block(1, v), block(2, v), set);
            block.set(1, v, updated);
            put(block.at[0] + v * LANES, sign(updated));
        }
    });
}

// Without the sign bit, the bits of floats are ordered like the floats themselves, with infinity and NaN at the end.
BAYESBINN_INLINE I beyond(F x, int32_t limit) { return ((I)x & 0x7fffffff) > limit; }

bool all_within(float limit, const float *values, size_t count) {
    int32_t bits;
    __builtin_memcpy(&bits, &limit, sizeof bits);
    constexpr int CHAINS = 4;
    constexpr size_t STRIDE = CHAINS * LANES;
    I found[CHAINS] = {};
    const auto look = [&found, bits](const float *at) {
        for (int k = 0; k < CHAINS; k++) found[k] |= beyond(load(at + k * LANES), bits);
    };
    size_t i = 0;
    for (; i + BLOCK <= count; i += BLOCK) {
        ask_for(values + i);
        for (size_t k = 0; k < BLOCK; k += STRIDE) look(values + i + k);
    }
    for (; i + STRIDE <= count; i += STRIDE) look(values + i);
    float rest[STRIDE] = {};
    __builtin_memcpy(rest, values + i, (count - i) * sizeof(float));
    look(rest);
    return !any(found[0] | found[1] | found[2] | found[3]);
}

void random_bits(uint64_t key, uint64_t draw, uint64_t b, uint32_t (&words)[NOISE_BLOCK]) {
    U out[NOISE_VECTORS];
    NoiseStream(key, draw).bits(b, out);
    __builtin_memcpy(words, out, sizeof words);
}

}  // namespace

#define BAYESBINN_JOIN_(a, b) a##b
#define BAYESBINN_JOIN(a, b) BAYESBINN_JOIN_(a, b)
#define BAYESBINN_TEXT_(a) #a
#define BAYESBINN_TEXT(a) BAYESBINN_TEXT_(a)

const Kernels BAYESBINN_JOIN(kernels_, BAYESBINN_ISA) = {
    BAYESBINN_TEXT(BAYESBINN_ISA),
    SIGNS,
    OUTER,
#define BAYESBINN_ENTRY(kernel, ...) kernel,
    BAYESBINN_EACH_KERNEL(BAYESBINN_ENTRY) all_within,
    bernoulli,
    random_bits,
};

}  // namespace bayesbinn
