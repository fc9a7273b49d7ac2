// Runs every kernel under AddressSanitizer and UndefinedBehaviorSanitizer (see sanitize.sh): on
// awkward sizes, in memory blocks of exactly the needed size, aligned and not, with special values
// of λ, with every instruction set of this CPU and with one and two threads. All of them must give
// the same bits.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "../training/isa.hpp"
#include "../training/products.hpp"
#include "../training/training.hpp"

using namespace bayesbinn;

namespace {

int failures = 0;

void expect(bool holds, const std::string &what) {
    if (holds) return;
    printf("FAILED: %s\n", what.c_str());
    failures++;
}

// Exactly `size` floats at the end of a separate block of memory, with `shift` floats before them.
class Memory {
   public:
    Memory(size_t size, size_t shift, unsigned seed, float scale) : size_(size), shift_(shift), data_(size + shift) {
        uint32_t state = seed * 2654435761u + 12345u;
        for (float &x : data_) {
            state = state * 1664525u + 1013904223u;
            x = ((float)(state >> 8) * 0x1p-24f - 0.5f) * scale;
        }
    }
    float *begin() { return data_.data() + shift_; }
    Addresses address() { return {(uintptr_t)(size_ ? begin() : nullptr)}; }
    void add_to(uint64_t &hash) const {
        for (size_t i = shift_; i < data_.size(); i++) {
            uint32_t bits;
            memcpy(&bits, &data_[i], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3u;
        }
    }

   private:
    size_t size_, shift_;
    std::vector<float> data_;
};

Addresses address(Memory &memory) { return memory.address(); }
const Addresses &address(const Addresses &column) { return column; }

void put_special_values(Memory &natural, size_t size) {
    const float special[] = {0.0f,  -0.0f,  1e-30f, -1e-30f, 9.0109f,  -9.0109f,
                             10.0f, -10.0f, 1e30f,  -1e30f,  INFINITY, -INFINITY};
    size_t i = 0;
    for (float value : special)
        if (i < size) natural.begin()[i++] = value;
    for (i = 256; i < size; i++)  // every other thousand is certain
        if (i / 1000 % 2) natural.begin()[i] = natural.begin()[i] < 0 ? -10.0f : 10.0f;
}

// Runs all kernels on tensors of `size` elements; returns a hash of everything they wrote.
uint64_t run_all(Team team, size_t size, size_t shift, double temperature) {
    const Sizes sizes{size};
    const Addresses key{0x0123456789abcdefu}, none{0};
    uint64_t hash = 0xcbf29ce484222325u;
    Memory p(size, shift, 1, 1), natural(size, shift, 2, 16), g(size, shift, 3, 1), momentum(size, shift, 4, 1),
        prior(size, shift, 5, 1), total(size, shift, 6, 1), second(size, shift, 7, 0);
    Memory logits(2 * size, shift, 8, 1), firsts(2 * size, shift, 9, 0), seconds(2 * size, shift, 10, 0);
    put_special_values(natural, size);
    const AdamSettings adam_rule{1e-3, 0.9, 0.999, 1.5, 1e-8, 1e-4};
    const RuleSettings rule{1e-3, temperature, 1e-10, 60000, 1, 0.9, false, 0, 0.05};
    const RuleSettings steady_rule{1e-3, temperature, 1e-10, 60000, 1, 0.9, true, 0.3, 0.05};
    const auto record = [&] { p.add_to(hash); };

    expect(first_beyond(team, sizes, g.address(), INFINITY) == -1, "finite gradients are finite");
    const auto on = [&](auto &...columns) { return Tensors{sizes, {address(columns)...}}; };
    write_relaxed_sample(team, on(p, natural, key), {5, temperature}), record();
    write_hard_sample(team, on(p, natural, key), {5}), record();
    write_sign(team, on(p, natural), {}), record();
    Memory slope(size, shift, 11, 1);
    write_training_sample(team, on(p, natural, slope, key), {5, temperature, true}), record();
    slope.add_to(hash);
    restore_mode(team, on(p, natural), {temperature}), record();
    write_training_sample(team, on(p, natural, none, key), {6, temperature, false}), record();
    write_tanh(team, on(p, natural), {0.5}), record();
    write_pmf_weights(team, on(p, logits), {3}), record();
    write_pmf_sign(team, on(p, logits), {}), record();
    accumulate_scaled(team, on(total, natural, g, key), {5, temperature, 1e-10});
    total.add_to(hash);
    bayesbinn_update(team, on(p, natural, momentum, g, prior, key), {5, rule}), record();
    bayesbinn_update(team, on(p, natural, none, g, none, key), {{}, rule}), record();
    bayesbinn_update_from_slopes(team, on(p, natural, momentum, g, none, slope), {rule}), record();
    bayesbinn_update_from_slopes(team, on(p, natural, none, g, none, slope), {steady_rule}), record();
    accumulate_slope(team, on(total, slope, g), {0.3});
    bimu_update(team, on(p, prior, total), {{4.9, 0.0023, 161.3, 3.76, 1e5, 3}}), record();
    total.add_to(hash), prior.add_to(hash);
    natural.add_to(hash), momentum.add_to(hash);
    adam(team, on(prior, momentum, second, g), {adam_rule});
    prior.add_to(hash), second.add_to(hash);
    ste_update(team, on(p, prior, momentum, second, g), {0.5, adam_rule}), record();
    bop_update(team, on(p, momentum, g), {1e-2, 1e-3}), record();
    pmf_update(team, on(p, logits, firsts, seconds, g), {3, adam_rule}), record();
    logits.add_to(hash), firsts.add_to(hash), seconds.add_to(hash);

    if (size) {
        g.begin()[size - 1] = NAN;
        expect(first_beyond(team, sizes, g.address(), INFINITY) == 0, "a NaN at the end is found");
        g.begin()[size - 1] = -3;
        expect(first_beyond(team, sizes, g.address(), 3) == -1, "the limit itself is allowed");
        expect(first_beyond(team, sizes, g.address(), 2.9) == 0, "a large value at the end is found");
    }
    return hash;
}

void refuses_nonsense(Team team) {
    Memory a(8, 0, 1, 1);
    const auto refused = [](const char *what, auto call) {
        try {
            call();
            expect(false, std::string("refuses ") + what);
        } catch (const std::invalid_argument &) {
        }
    };
    const uintptr_t at = a.address()[0];
    refused("lists of different length", [&] { write_sign(team, {{8}, {{at}, {}}}, {}); });
    refused("a missing column", [&] { write_sign(team, {{8}, {{at}}}, {}); });
    refused("elements without memory", [&] { write_sign(team, {{8}, {{at}, {0}}}, {}); });
    refused("overlapping arrays", [&] { write_sign(team, {{4}, {{at}, {at + 4}}}, {}); });
    refused("a misaligned address", [&] { write_sign(team, {{4}, {{at}, {at + 18}}}, {}); });
    refused("a missing key", [&] { write_hard_sample(team, {{8}, {{at}, {at}, {}}}, {0}); });
    write_sign(team, {{}, {{}, {}}}, {});
}

// Products with signs, in memory of exactly the needed size, compared with plain loops.
void multiplies(Team team, size_t examples, size_t inputs, size_t outputs, size_t shift) {
    Memory x(examples * inputs, shift, 1, 8), w(outputs * inputs, shift, 2, 1), y(examples * outputs, shift, 3, 1);
    for (size_t i = 0; i < examples * inputs; i++) x.begin()[i] = roundf(x.begin()[i]);  // so that sums are exact
    for (size_t i = 0; i < outputs * inputs; i++) w.begin()[i] = w.begin()[i] < 0 ? -1.0f : 1.0f;
    std::vector<uint32_t> by_rows(words_of(inputs) * lanes_of(outputs));
    std::vector<uint32_t> by_columns(words_of(outputs) * lanes_of(inputs));
    const SignMatrix matrix{outputs, inputs, by_rows.data(), by_columns.data()};
    const std::string where = std::string(team.kernels.name) + ", product " + std::to_string(examples) + "×" +
        std::to_string(inputs) + "×" + std::to_string(outputs) + ": ";
    expect(pack_signs(team, w.begin(), matrix), where + "the weights are signs");
    multiply_signs(team, {x.begin(), by_rows.data(), y.begin(), inputs, outputs}, examples);
    bool same = true;
    for (size_t e = 0; e < examples; e++)
        for (size_t o = 0; o < outputs; o++) {
            float sum = 0;
            for (size_t i = 0; i < inputs; i++) sum += x.begin()[e * inputs + i] * w.begin()[o * inputs + i];
            same = same && sum == y.begin()[e * outputs + o];
        }
    expect(same, where + "the sums of plain loops");
    Memory back(examples * inputs, shift, 4, 1);
    multiply_signs(team, {y.begin(), by_columns.data(), back.begin(), outputs, inputs}, examples);
    same = true;
    for (size_t e = 0; e < examples; e++)
        for (size_t i = 0; i < inputs; i++) {
            float sum = 0;
            for (size_t o = 0; o < outputs; o++) sum += y.begin()[e * outputs + o] * w.begin()[o * inputs + i];
            same = same && sum == back.begin()[e * inputs + i];
        }
    expect(same, where + "the sums of plain loops, transposed");
    w.begin()[outputs * inputs - 1] = 0.5f;
    expect(!pack_signs(team, w.begin(), matrix), where + "0.5 is not a sign");
}

// The gradient of a linear layer's weights, likewise.
void multiplies_outer_of(Team team, size_t examples, size_t rows, size_t columns, size_t shift) {
    Memory gradients(examples * rows, shift, 1, 8), inputs(examples * columns, shift, 2, 8);
    Memory product(rows * columns, shift, 3, 1);
    for (size_t i = 0; i < examples * rows; i++) gradients.begin()[i] = roundf(gradients.begin()[i]);
    for (size_t i = 0; i < examples * columns; i++) inputs.begin()[i] = roundf(inputs.begin()[i]);
    multiply_outer(team, {gradients.begin(), inputs.begin(), product.begin(), examples, rows, columns});
    bool same = true;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++) {
            float sum = 0;
            for (size_t e = 0; e < examples; e++)
                sum += gradients.begin()[e * rows + r] * inputs.begin()[e * columns + c];
            same = same && sum == product.begin()[r * columns + c];
        }
    expect(
        same, std::string(team.kernels.name) + ", outer product " + std::to_string(examples) + "×" +
            std::to_string(rows) + "×" + std::to_string(columns) + ": the sums of plain loops"
    );
}

// The masks do not depend on how they are divided into calls, and the generator's state ends the same.
uint64_t draws_masks(Team team, const std::vector<size_t> &sizes) {
    uint64_t hash = 0xcbf29ce484222325u;
    std::vector<uint64_t> state(632);  // the bytes of torch's generator: seed, left and seeded, next, words
    state[1] = 1;                      // no numbers are left
    for (size_t k = 3; k < 627; k++) state[k] = (uint32_t)(k * 2654435761u);
    for (size_t size : sizes) {
        Memory values(size, 0, 1, 1);
        bernoulli(team, (uint8_t *)state.data(), state.size() * 8, 0.8, size ? values.begin() : nullptr, size);
        values.add_to(hash);
    }
    for (uint64_t word : state) hash = (hash ^ word) * 0x100000001b3u;
    return hash;
}

}  // namespace

// The argument is the largest size.
int main(int count, char **arguments) {
    const size_t largest = count > 1 ? strtoull(arguments[1], nullptr, 10) : 1000003;
    std::vector<const Kernels *> all;
    for (const char *name : {"portable", "neon", "avx2", "avx512"}) {
        try {
            all.push_back(&choose_kernels(name));
        } catch (const std::runtime_error &) {
        }
    }
    for (size_t size : std::vector<size_t>{0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, largest}) {
        for (size_t shift : {0, 1}) {
            for (double temperature : {1e-10, 1.0}) {
                const uint64_t expected = run_all({*all[0], 1}, size, shift, temperature);
                for (const Kernels *kernels : all)
                    for (int threads : {1, 2})
                        expect(
                            run_all({*kernels, threads}, size, shift, temperature) == expected,
                            std::string(kernels->name) + ", size " + std::to_string(size) + ", " +
                                std::to_string(threads) + " threads: the same bits"
                        );
            }
        }
    }
    const uint64_t masks = draws_masks({*all[0], 1}, {100000});
    for (const Kernels *kernels : all) {
        expect(draws_masks({*kernels, 1}, {100000}) == masks, std::string(kernels->name) + ": the same masks");
        expect(
            draws_masks({*kernels, 1}, {1, 311, 312, 0, 313, 623, 99063 - 623}) == masks,
            std::string(kernels->name) + ": the same masks in pieces"
        );
        for (int threads : {1, 2})
            for (size_t shift : {0, 1})
                for (size_t examples : {1, 100, 101, 230})
                    for (size_t rows : {1, 5, 7, 775})
                        for (size_t columns : {1, 15, 64, 97})
                            if (multiplies_outer({*kernels, threads}))
                                multiplies_outer_of({*kernels, threads}, examples, rows, columns, shift);
        if (!multiplies_signs({*kernels, 1})) continue;
        for (int threads : {1, 2})
            for (size_t shift : {0, 1})
                for (size_t examples : {1, 10, 23})
                    for (size_t inputs : {1, 31, 33, 300})
                        for (size_t outputs : {1, 15, 17, 64, 1100})
                            multiplies({*kernels, threads}, examples, inputs, outputs, shift);
    }
    refuses_nonsense({*all[0], 1});
    for (const Kernels *kernels : all) printf("%s ", kernels->name);
    printf(failures ? "kernels: %d failures\n" : "kernels: clean\n", failures);
    return failures != 0;
}
