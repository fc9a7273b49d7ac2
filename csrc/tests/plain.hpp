// Plain loops that define what each step of a network computes, and a network built along with them.
#pragma once

#include <math.h>

#include <deque>
#include <functional>
#include <string>

#include "../inference/network.hpp"

namespace bayesbinn::inference {

using Floats = std::vector<float>;

// A small generator whose numbers are the same everywhere.
class Random {
   public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint32_t bits() {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state_ >> 33);
    }
    size_t below(size_t n) { return bits() % n; }
    size_t from(std::initializer_list<size_t> choices) { return choices.begin()[below(choices.size())]; }
    float real() { return (float)bits() * 0x1p-30f - 1.0f; }
    Floats reals(size_t count) {
        Floats x(count);
        for (float &v : x) v = real();
        return x;
    }

   private:
    uint64_t state_;
};

// The weights of one layer, in blocks of exactly the needed size: [sets][outputs][count].
struct Weights {
    std::vector<std::vector<uint8_t>> bits;
    std::vector<Floats> reals;
    size_t outputs, count;

    Weights(Random &random, size_t sets, size_t outputs, size_t count, bool binary) : outputs(outputs), count(count) {
        for (size_t s = 0; s < sets; s++) {
            if (!binary) {
                reals.push_back(random.reals(outputs * count));
                continue;
            }
            std::vector<uint8_t> rows(outputs * ((count + 7) / 8));
            for (uint8_t &byte : rows) byte = (uint8_t)random.bits();
            bits.push_back(rows);  // bits after the last weight must not matter
        }
    }
    StoredWeights stored(size_t set) const {
        if (bits.empty()) return {nullptr, reals[set % reals.size()].data(), outputs, count};
        return {bits[set % bits.size()].data(), nullptr, outputs, count};
    }
    WeightSets sets() const {
        WeightSets all;
        for (size_t s = 0; s < std::max(bits.size(), reals.size()); s++) all.push_back(stored(s));
        return all;
    }
    float at(size_t network, size_t output, size_t k) const { return stored(network).value(output, k); }
};

inline Finishing random_finishing(Random &random, size_t channels, size_t networks) {
    Finishing made;
    made.channels = channels;
    made.low = random.below(2) ? 0.0f : -INFINITY;
    made.high = random.below(3) ? INFINITY : 1.0f;
    const size_t kind = random.below(3), count = channels * (kind == 2 ? networks : 1);
    if (kind) {
        Aligned<float> scale, shift;
        for (size_t i = 0; i < count; i++) scale.push_back(random.real()), shift.push_back(random.real());
        static std::deque<Aligned<float>> kept;  // a network owns its numbers; here they live to the end
        made.scale = &kept.emplace_back(std::move(scale));
        made.shift = &kept.emplace_back(std::move(shift));
    }
    return made;
}

inline float finished(const Finishing &f, size_t network, size_t channel, float y) {
    const Finish one = f.of(network, channel);
    if (one.scale) y = y * one.scale[0] + one.shift[0];
    return y < one.low ? one.low : y > one.high ? one.high : y;
}

// One product of a window with the weights of an output.
struct Dot {
    double exact = 0, size = 0;
    int64_t whole = 0;
    Quantization scale{};

    void add(float x, float w) {
        exact += (double)x * w;
        size += fabs((double)x * w);
        if (scale.inverse != 0.0f) whole += (int64_t)lrintf(x * scale.inverse) * (int64_t)w;
    }
    float value(bool quantized) const { return quantized ? scale.factor * (float)whole : (float)exact; }
};

// A network and the values it should return, which plain loops compute while it is built.
class Compared {
   public:
    Compared(const Kernels &kernels, size_t networks, size_t inputs, size_t batch, int threads, uint64_t seed)
        : network(kernels, networks, inputs, threads), networks_(networks), batch_(batch), random_(seed),
          x_(random_.reals(batch * inputs)) {
        Value_ input{0, {}};
        for (size_t i = 0; i < networks * batch; i++)
            input.at.emplace_back(
                x_.begin() + (long)(i % batch * inputs), x_.begin() + (long)((i % batch + 1) * inputs)
            );
        values_.push_back(input);
    }

    size_t linear(size_t input, size_t rows, size_t outputs, Products products, bool own) {
        const size_t count = values_[input].at[0].size() / rows;
        const Weights &w = kept(Weights(random_, own ? networks_ : 1, outputs, count, products != Products::real));
        const Finishing f = random_finishing(random_, outputs, networks_);
        const size_t place = network.linear(values_[input].place, rows, products, w.sets(), f);
        return computed(place, [&](size_t n, size_t i) {
            const Floats &x = values_[input].at[i];
            Floats y;
            for (size_t r = 0; r < rows; r++)
                for (size_t o = 0; o < outputs; o++) {
                    Dot dot;
                    dot.scale = Quantization::of(largest(&x[r * count], count));
                    for (size_t k = 0; k < count; k++) dot.add(x[r * count + k], w.at(n, o, k));
                    y.push_back(finished(f, n, o, dot.value(products == Products::tables)));
                }
            return y;
        });
    }

    size_t convolution(size_t input, const Geometry &g, Products products, bool own) {
        const bool quantized = products == Products::tables && g.groups == 1;
        const Weights &w = kept(
            Weights(random_, own ? networks_ : 1, g.outputs, g.group_channels() * g.taps(), products != Products::real)
        );
        const Finishing f = random_finishing(random_, g.outputs, networks_);
        const size_t place = network.convolution(values_[input].place, g, products, w.sets(), f);
        return computed(place, [&](size_t n, size_t i) {
            const Floats &x = values_[input].at[i];
            Floats y;
            for (size_t row = 0; row < g.out_height; row++)
                for (size_t column = 0; column < g.out_width; column++)
                    for (size_t o = 0; o < g.outputs; o++) {
                        Dot dot;
                        dot.scale = Quantization::of(largest(x.data(), x.size()));
                        window(g, x, row, column, o, [&](float v, size_t k) { dot.add(v, w.at(n, o, k)); });
                        y.push_back(finished(f, n, o, dot.value(quantized)));
                    }
            return y;
        });
    }

    // Windows of `kernel` pixels, `stride` apart, cut at the border.
    size_t pool(
        size_t input, size_t channels, size_t height, size_t width, size_t kernel, size_t stride, bool average
    ) {
        const PoolAxis rows{(height + stride - 1) / stride, height, kernel, stride};
        const PoolAxis columns{(width + stride - 1) / stride, width, kernel, stride};
        const Finishing f = random_finishing(random_, channels, networks_);
        const size_t place = network.pool(values_[input].place, channels, rows, columns, average, f);
        return computed(place, [&](size_t n, size_t i) {
            Floats y;
            for (size_t r = 0; r < height; r += stride)
                for (size_t c = 0; c < width; c += stride)
                    for (size_t channel = 0; channel < channels; channel++) {
                        const size_t row_end = std::min(r + kernel, height), column_end = std::min(c + kernel, width);
                        float best = average ? 0.0f : -INFINITY;
                        for (size_t a = r; a < row_end; a++)
                            for (size_t b = c; b < column_end; b++) {
                                const float v = values_[input].at[i][(a * width + b) * channels + channel];
                                best = average ? best + v : std::max(best, v);
                            }
                        if (average) best /= (float)((row_end - r) * (column_end - c));
                        y.push_back(finished(f, n, channel, best));
                    }
            return y;
        });
    }

    size_t affine(size_t input, size_t outer, size_t channels, size_t inner) {
        const Finishing f = random_finishing(random_, channels, networks_);
        const size_t place = network.affine(values_[input].place, outer, channels, inner, f);
        return computed(place, [&](size_t n, size_t i) {
            Floats y = values_[input].at[i];
            for (size_t k = 0; k < y.size(); k++) y[k] = finished(f, n, k / inner % channels, y[k]);
            return y;
        });
    }

    size_t tanh(size_t input) {
        const size_t place = network.elementwise(values_[input].place, values_[input].at[0].size(), tanhf);
        return computed(place, [&](size_t, size_t i) {
            Floats y = values_[input].at[i];
            for (float &v : y) v = tanhf(v);
            return y;
        });
    }

    size_t softmax(size_t input, size_t outer, size_t count, size_t inner) {
        const size_t place = network.softmax(values_[input].place, outer, count, inner);
        return computed(place, [&](size_t, size_t i) {
            Floats y = values_[input].at[i];
            for (size_t k = 0; k < outer * inner; k++) {
                float *const at = &y[k / inner * count * inner + k % inner], sum = 0, most = at[0];
                for (size_t j = 0; j < count; j++) most = std::max(most, at[j * inner]);
                for (size_t j = 0; j < count; j++) sum += at[j * inner] = expf(at[j * inner] - most);
                for (size_t j = 0; j < count; j++) at[j * inner] /= sum;
            }
            return y;
        });
    }

    size_t add(size_t a, size_t b) {
        const size_t count = values_[a].at[0].size();
        const size_t place = network.add(values_[a].place, values_[b].place, count, -0.5f, INFINITY);
        return computed(place, [&](size_t, size_t i) {
            Floats y = values_[a].at[i];
            for (size_t k = 0; k < count; k++) y[k] = std::max(y[k] + values_[b].at[i][k], -0.5f);
            return y;
        });
    }

    size_t concatenate(const std::vector<size_t> &inputs, size_t outer) {
        std::vector<size_t> places, lengths;
        for (size_t input : inputs) {
            places.push_back(values_[input].place);
            lengths.push_back(values_[input].at[0].size() / outer);
        }
        return computed(network.concatenate(places, outer, lengths), [&](size_t, size_t i) {
            Floats y;
            for (size_t part = 0; part < outer; part++)
                for (size_t k = 0; k < inputs.size(); k++) {
                    const auto from = values_[inputs[k]].at[i].begin() + (long)(part * lengths[k]);
                    y.insert(y.end(), from, from + (long)lengths[k]);
                }
            return y;
        });
    }

    size_t transpose(size_t input, size_t rows, size_t columns) {
        return computed(network.transpose(values_[input].place, rows, columns), [&](size_t, size_t i) {
            Floats y(rows * columns);
            for (size_t k = 0; k < y.size(); k++) y[k % columns * rows + k / columns] = values_[input].at[i][k];
            return y;
        });
    }

    size_t size(size_t value) const { return values_[value].at[0].size(); }

    // The network's outputs for the inputs: [networks][batch][size of `value`].
    Floats run(size_t value) {
        if (!sealed_) {
            network.seal(values_[value].place, size(value));
            sealed_ = true;
        }
        Floats y(networks_ * batch_ * size(value), NAN);
        network.run(x_.data(), batch_, y.data());
        return y;
    }
    Floats expected(size_t value) const {
        Floats all;
        for (const Floats &one : values_[value].at) all.insert(all.end(), one.begin(), one.end());
        return all;
    }

    Network network;

   private:
    struct Value_ {
        size_t place;            // its number in the network
        std::vector<Floats> at;  // [networks · batch]
    };

    static float largest(const float *x, size_t count) {
        float most = 0;
        for (size_t i = 0; i < count; i++) most = std::max(most, fabsf(x[i]));
        return most;
    }

    // Calls use(pixel, position in the stored row) for the inputs of an output; padding is skipped.
    template <class Use>
    static void window(const Geometry &g, const Floats &x, size_t row, size_t column, size_t output, Use use) {
        const size_t group = output / g.group_outputs();
        for (size_t c = 0; c < g.group_channels(); c++)
            for (size_t a = 0; a < g.kernel_height; a++)
                for (size_t b = 0; b < g.kernel_width; b++) {
                    const long r = (long)(row * g.stride_height + a * g.dilation_height) - (long)g.top;
                    const long s = (long)(column * g.stride_width + b * g.dilation_width) - (long)g.left;
                    if (r < 0 || s < 0 || r >= (long)g.height || s >= (long)g.width) continue;
                    const size_t pixel = (size_t)r * g.width + (size_t)s;
                    use(x[pixel * g.channels + group * g.group_channels() + c],
                        (c * g.kernel_height + a) * g.kernel_width + b);
                }
    }

    size_t computed(size_t place, const std::function<Floats(size_t network, size_t index)> &one) {
        Value_ value{place, {}};
        for (size_t i = 0; i < networks_ * batch_; i++) value.at.push_back(one(i / batch_, i));
        values_.push_back(std::move(value));
        return values_.size() - 1;
    }

    // The network's callers keep their weights until it is sealed.
    const Weights &kept(Weights weights) {
        weights_.push_back(std::make_unique<const Weights>(std::move(weights)));
        return *weights_.back();
    }

    size_t networks_, batch_;
    Random random_;
    Floats x_;
    std::vector<std::unique_ptr<const Weights>> weights_;
    std::vector<Value_> values_;
    bool sealed_ = false;
};

}  // namespace bayesbinn::inference
