// The parts of a network: values, and steps that compute one value from others.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <cstddef>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"

namespace bayesbinn::inference {

// One array per example. In an ensemble, a value may differ from network to network; usually only
// one network's value is in memory, because the networks run one after the other.
struct Value {
    size_t bytes;  // of one example; a multiple of LINE
    bool own;      // differs from network to network
    size_t kept;   // networks whose arrays are in memory at once: 1 or all
};

// What the steps of a run need: the address of each value of the current batch.
struct Frame {
    const Kernels &kernels;
    const std::vector<Value> &values;
    std::vector<std::byte *> at;  // by value
    size_t batch, threads, networks;
    size_t network;  // the network that runs now, for steps that run once per network

    template <class T = float>
    T *get(size_t value, size_t of_network, size_t example) const {
        const Value &v = values[value];
        const size_t index = (v.kept == 1 ? 0 : of_network) * batch + example;
        return reinterpret_cast<T *>(at[value] + index * v.bytes);
    }
};

// One operation, divided into tasks that any thread may do in any order: each task writes separate outputs
// and sums in a fixed order, so that neither the threads nor the batch change a result.
class Step {
   public:
    Step(std::vector<size_t> inputs, size_t output) : inputs(std::move(inputs)), output(output) {}
    virtual ~Step() = default;

    virtual size_t tasks(const Frame &frame) const = 0;
    virtual void run(const Frame &frame, size_t task, std::byte *scratch) const = 0;

    // Memory one thread needs for a task.
    virtual size_t scratch_bytes() const { return 0; }

    const std::vector<size_t> inputs;
    const size_t output;
};

// Numbers that several steps may share; the network owns them.
using SharedFloats = const Aligned<float> *;

// y ← y·scale + shift within limits, for each network (or one for all); without scales, only the limits.
struct Finishing {
    SharedFloats scale = nullptr, shift = nullptr;  // both, or neither
    size_t channels = 0;
    float low, high;

    bool own() const { return scale && scale->size() > channels; }

    Finish of(size_t network, size_t channel) const {
        if (!scale) return {nullptr, nullptr, low, high};
        const size_t start = (own() ? network * channels : 0) + channel;
        return {scale->data() + start, shift->data() + start, low, high};
    }
};

// The scale of quantized activations: x ≈ factor·q with q = x·inverse rounded.
struct Quantization {
    float factor, inverse;

    static Quantization of(float largest) {
        const float inverse = 127.0f / largest;
        if (largest != largest) return {largest, 0.0f};  // NaN or infinite inputs: all outputs are NaN
        // Only zeros, or numbers so small that their inverse overflows.
        if (!(inverse <= 3.4028234e38f)) return {0.0f, 0.0f};
        return {largest / 127.0f, inverse};
    }
};

}  // namespace bayesbinn::inference
