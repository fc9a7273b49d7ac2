// What every instruction set provides: one function per kernel, on a range of one tensor. The list of kernels at the
// end is the only one in C++: the functions on lists of tensors and the Python module are generated from it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <optional>

namespace bayesbinn {

// The generator assigns its numbers to the elements of a tensor in blocks of this size.
constexpr int NOISE_BLOCK = 32;

// Elements processed together: several blocks of noise, so that the processor can overlap the long
// dependency chains of one block with those of the next.
constexpr int BLOCK = 4 * NOISE_BLOCK;

// How many elements a thread takes at a time. This does not depend on the number of threads, and every
// element's result depends only on that element, so the result does not depend on it either.
constexpr size_t PIECE = 64 * BLOCK;

// A piece of a tensor; the last one may be shorter.
struct Range {
    size_t begin, end;
};

constexpr int MAX_ARRAYS = 8;

// One tensor's arrays, in the order of its kernel's columns.
struct Arrays {
    float *at[MAX_ARRAYS];
    uint64_t key;  // of its noise
    bool streams;  // store array 0 past the caches; it is aligned for this
};

// ---- settings ---------------------------------------------------------------------------------
//
// Scalars, in double precision as in Python. `each` lists the fields by name: they are read from Python's settings of
// the same names, in any order. A kernel rounds them to float32 where torch would.

struct NoSettings {
    template <class Visit>
    void each(Visit) {}
};

struct TanhSettings {
    double scale;
    template <class Visit>
    void each(Visit visit) {
        visit("scale", scale);
    }
};

struct SoftSettings {
    double beta;
    template <class Visit>
    void each(Visit visit) {
        visit("beta", beta);
    }
};

struct ModeSettings {
    double temperature;
    template <class Visit>
    void each(Visit visit) {
        visit("temperature", temperature);
    }
};

struct HardSampleSettings {
    uint64_t draw;
    template <class Visit>
    void each(Visit visit) {
        visit("draw", draw);
    }
};

struct SampleSettings {
    uint64_t draw;
    double temperature;
    template <class Visit>
    void each(Visit visit) {
        visit("draw", draw);
        visit("temperature", temperature);
    }
};

struct TrainingSampleSettings {
    uint64_t draw;
    double temperature;
    bool held;  // the parameter holds sign(λ): certain blocks need no write
    template <class Visit>
    void each(Visit visit) {
        visit("draw", draw);
        visit("temperature", temperature);
        visit("held", held);
    }
};

struct ScaleSettings {
    uint64_t draw;
    double temperature, eps;
    template <class Visit>
    void each(Visit visit) {
        visit("draw", draw);
        visit("temperature", temperature);
        visit("eps", eps);
    }
};

struct RuleSettings {
    double lr, temperature, eps, data_weight, kl_weight, momentum;
    bool steady;                // steps are proportional to v(λ), the weight's variance
    double relaxation, fading;  // ρ and φ of a steady rule
    template <class Visit>
    void each(Visit visit) {
        visit("lr", lr);
        visit("temperature", temperature);
        visit("eps", eps);
        visit("data_weight", data_weight);
        visit("kl_weight", kl_weight);
        visit("momentum", momentum);
        visit("steady", steady);
        visit("relaxation", relaxation);
        visit("fading", fading);
    }
};

struct UpdateSettings {
    std::optional<uint64_t> draw;  // none: the gradients are already Σ s⊙g
    RuleSettings rule;
    template <class Visit>
    void each(Visit visit) {
        visit("draw", draw);
        visit("rule", rule);
    }
};

struct SlopeUpdateSettings {
    RuleSettings rule;
    template <class Visit>
    void each(Visit visit) {
        visit("rule", rule);
    }
};

struct AdamSettings {
    double step_size, beta1, beta2, second_scale, eps, weight_decay;
    template <class Visit>
    void each(Visit visit) {
        visit("step_size", step_size);
        visit("beta1", beta1);
        visit("beta2", beta2);
        visit("second_scale", second_scale);
        visit("eps", eps);
        visit("weight_decay", weight_decay);
    }
};

struct AdamUpdateSettings {
    AdamSettings adam;
    template <class Visit>
    void each(Visit visit) {
        visit("settings", adam);
    }
};

struct STESettings {
    double clip;
    AdamSettings adam;
    template <class Visit>
    void each(Visit visit) {
        visit("clip", clip);
        visit("settings", adam);
    }
};

struct BopSettings {
    double rate, threshold;
    template <class Visit>
    void each(Visit visit) {
        visit("rate", rate);
        visit("threshold", threshold);
    }
};

struct PMFSettings {
    double beta;
    AdamSettings adam;
    template <class Visit>
    void each(Visit visit) {
        visit("beta", beta);
        visit("settings", adam);
    }
};

struct BiMUSettings {
    double lr, max_lr, gain, curvature, memory_size, samples;
    template <class Visit>
    void each(Visit visit) {
        visit("lr", lr);
        visit("max_lr", max_lr);
        visit("gain", gain);
        visit("curvature", curvature);
        visit("memory_size", memory_size);
        visit("samples", samples);
    }
};

struct BiMUUpdateSettings {
    BiMUSettings bimu;
    template <class Visit>
    void each(Visit visit) {
        visit("bimu", bimu);
    }
};

// ---- kernels ----------------------------------------------------------------------------------

// An argument of a kernel, one value for each tensor: the address of an array, or the key of its noise.
struct Column {
    const char *name;
    int arrays = 1;         // 2: the tensor has 2n values, and its halves are two arrays; 0: a key
    bool optional = false;  // may be null
};

constexpr Column one(const char *name) { return {name}; }
constexpr Column two(const char *name) { return {name, 2}; }
constexpr Column maybe(const char *name) { return {name, 1, true}; }
constexpr Column noise() { return {"key", 0}; }

// KERNEL(name, settings, columns...). All names are those in src/bayesbinn/kernels/table.py.
// Column 0 is written. The logits of n weights are n values of ũ₋, then n of ũ₊; likewise their moments.
#define BAYESBINN_EACH_KERNEL(KERNEL)                                                                                  \
    KERNEL(write_sign, NoSettings, one("parameter"), one("source"))                                                    \
    KERNEL(write_tanh, TanhSettings, one("parameter"), one("source"))                                                  \
    KERNEL(write_pmf_sign, NoSettings, one("parameter"), two("logits"))                                                \
    KERNEL(write_pmf_weights, SoftSettings, one("parameter"), two("logits"))                                           \
    KERNEL(write_relaxed_sample, SampleSettings, one("parameter"), one("natural"), noise())                            \
    KERNEL(write_hard_sample, HardSampleSettings, one("parameter"), one("natural"), noise())                           \
    KERNEL(write_training_sample, TrainingSampleSettings, one("parameter"), one("natural"), maybe("slope"), noise())   \
    KERNEL(restore_mode, ModeSettings, one("parameter"), one("natural"))                                               \
    KERNEL(accumulate_scaled, ScaleSettings, one("total"), one("natural"), one("gradient"), noise())                   \
    KERNEL(                                                                                                            \
        bayesbinn_update, UpdateSettings, one("parameter"), one("natural"), maybe("momentum"), one("gradient"),        \
        maybe("prior"), noise()                                                                                        \
    )                                                                                                                  \
    KERNEL(                                                                                                            \
        bayesbinn_update_from_slopes, SlopeUpdateSettings, one("parameter"), one("natural"), maybe("momentum"),        \
        one("gradient"), maybe("prior"), one("slope")                                                                  \
    )                                                                                                                  \
    KERNEL(adam, AdamUpdateSettings, one("value"), one("first"), one("second"), one("gradient"))                       \
    KERNEL(ste_update, STESettings, one("parameter"), one("latent"), one("first"), one("second"), one("gradient"))     \
    KERNEL(bop_update, BopSettings, one("parameter"), one("average"), one("gradient"))                                 \
    KERNEL(pmf_update, PMFSettings, one("parameter"), two("logits"), two("first"), two("second"), one("gradient"))     \
    KERNEL(accumulate_slope, ModeSettings, one("total"), one("slope"), one("gradient"))                                \
    KERNEL(bimu_update, BiMUUpdateSettings, one("parameter"), one("natural"), one("total"))

// ---- matrices of signs ------------------------------------------------------------------------

// A matrix of −1 and +1, one bit per weight (1 is +1), for products from both sides. A word has the signs of 32 inputs
// for one output, the first input in the lowest bit; the words of all outputs follow each other.
struct SignMatrix {
    size_t rows, columns;
    uint32_t *by_rows;     // the rows are outputs: [words_of(columns)][lanes_of(rows)]
    uint32_t *by_columns;  // the columns are outputs: [words_of(rows)][lanes_of(columns)]
};

constexpr size_t words_of(size_t inputs) { return inputs / 32 + (inputs % 32 != 0); }
constexpr size_t lanes_of(size_t outputs) { return (outputs + 15) / 16 * 16; }

// y[example][output] = Σ ±x[example][input]
struct SignProduct {
    const float *x;
    const uint32_t *signs;
    float *y;
    size_t inputs, outputs;
};

// Examples that a kernel multiplies at a time, at most.
constexpr size_t MOST_EXAMPLES = 10;

struct SignKernels {
    // The rows from `first`, a multiple of 32, to `last`; false if a weight is neither −1 nor +1.
    bool (*pack)(const float *weights, const SignMatrix &, size_t first, size_t last);
    // A range of the outputs, which begins at a multiple of 16, for the examples from `first` to `last`.
    void (*multiply)(const SignProduct &, size_t first, size_t last, Range outputs);
};

// ---- outer products ---------------------------------------------------------------------------

// product[row][column] = Σₑ gradients[e][row]·inputs[e][column]
struct OuterProduct {
    const float *gradients, *inputs;
    float *product;
    size_t examples, rows, columns;
};

constexpr size_t OUTER_ROWS = 6, OUTER_COLUMNS = 64;  // of a tile
constexpr size_t OUTER_EXAMPLES = 100;                // that are summed at a time, at most

// For the `count` examples from `first` on.
struct OuterKernels {
    // Copies the gradients of up to OUTER_ROWS rows, example by example, padded with zeros.
    void (*pack)(const OuterProduct &, size_t first, size_t count, size_t row, float *to);
    // Adds to a tile's columns of the given rows, the first a multiple of OUTER_ROWS, or writes them if `first` is 0.
    void (*multiply)(
        const OuterProduct &, size_t first, size_t count, const float *packed, Range rows, size_t column
    );
};

// ---- torch's generator ------------------------------------------------------------------------

constexpr int TWISTER_WORDS = 624;

// A Mersenne Twister.
struct Twister {
    uint32_t words[TWISTER_WORDS];
    int next;  // the index of the next word, or TWISTER_WORDS if new ones must be made
};

struct Kernels {
    const char *name;
    const SignKernels *signs;   // null where torch's own product is as fast
    const OuterKernels *outer;  // likewise

#define BAYESBINN_MEMBER(kernel, Settings, ...) void (*kernel)(const Settings &, const Arrays &, Range);
    BAYESBINN_EACH_KERNEL(BAYESBINN_MEMBER)
#undef BAYESBINN_MEMBER

    // Whether |x| ≤ limit for all values, which NaN never is; the limit is finite and not negative.
    bool (*all_within)(float limit, const float *values, size_t count);

    // 1 with the given probability, which is at most 1, otherwise 0: the values of torch.Tensor.bernoulli_.
    void (*bernoulli)(Twister &, double probability, float *values, size_t count);

    // The generator's words for one block of noise, to test them against published ones.
    void (*random_bits)(uint64_t key, uint64_t draw, uint64_t b, uint32_t (&words)[NOISE_BLOCK]);
};

extern const Kernels kernels_portable, kernels_avx2, kernels_avx512, kernels_neon;

}  // namespace bayesbinn
