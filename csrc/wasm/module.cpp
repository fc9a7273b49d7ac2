// The inference runtime as WebAssembly: plain functions over one network per instance. The page's `network.js` is
// their only caller; like `inference/module.cpp`, this checks sizes, and the graph has been checked before.
//
// Sizes have 32 bits here. Layers of at most MAX_ELEMENTS weights, and values of as many numbers, leave room for all
// products of sizes that are computed without a check.
#include <math.h>
#include <stdlib.h>

#include <memory>

#include "../inference/network.hpp"
#include "export.hpp"
#include "failure.hpp"
#include "sha256.hpp"

namespace bayesbinn::wasm {
namespace {

using namespace bayesbinn::inference;

constexpr uint64_t MAX_ELEMENTS = 1 << 26;

#if defined(__wasm__)
const Kernels &kernels = kernels_simd128;
#else
const Kernels &kernels = kernels_portable;
#endif

std::unique_ptr<Network> network;

template <class... Sizes>
void require_few(Sizes... sizes) {
    uint64_t product = 1;
    for (const uint64_t size : {(uint64_t)sizes...}) {
        product *= size;
        if (product > MAX_ELEMENTS) fail(Failure::over_limit, "a layer is too large for WebAssembly");
    }
}

// Scale and shift of [sets][channels], or null for neither.
struct Scales {
    const float *scale, *shift;
    size_t sets;
};

Finishing finishing(const Scales &scales, size_t channels, float low, float high) {
    Finishing made;
    made.channels = channels;
    made.low = low;
    made.high = high;
    if (scales.sets) {
        require(scales.sets == 1 || scales.sets == network->networks(), "scales for one or all networks are needed");
        made.scale = network->shared_floats(scales.scale, scales.sets * channels);
        made.shift = network->shared_floats(scales.shift, scales.sets * channels);
    }
    return made;
}

// [sets][outputs][count] of bits or floats.
WeightSets sets_of(const void *weights, size_t sets, bool binary, size_t outputs, size_t count) {
    require(sets == 1 || sets == network->networks(), "weights for one or all networks are needed");
    require(outputs > 0 && count > 0, "a layer needs inputs and outputs");
    require_few(outputs, count);
    WeightSets made;
    for (size_t i = 0; i < sets; i++) {
        StoredWeights stored{nullptr, nullptr, outputs, count};
        if (binary)
            stored.bits = static_cast<const uint8_t *>(weights) + i * outputs * stored.row_bytes();
        else
            stored.reals = static_cast<const float *>(weights) + i * outputs * count;
        made.push_back(stored);
    }
    return made;
}

Products products_of(bool binary, bool quantized) {
    return !binary ? Products::real : quantized ? Products::tables : Products::pairs;
}

// Windows, inputs, kernel (0: adaptive), stride, padding, step, and whether an average counts the padding.
PoolAxis axis_of(const uint32_t *parts) {
    const PoolAxis axis{parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6] != 0};
    require(
        axis.count && axis.inputs && axis.stride && axis.step, "an axis needs windows, inputs, a stride and a step"
    );
    return axis;
}

float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

}  // namespace

BAYESBINN_EXPORT(allocate) void *allocate(size_t bytes) { return ::operator new(bytes, std::align_val_t(LINE)); }

BAYESBINN_EXPORT(release) void release(void *memory) { ::operator delete(memory, std::align_val_t(LINE)); }

BAYESBINN_EXPORT(checksum) void checksum(const uint8_t *bytes, size_t size, uint8_t *digest) {
    sha256(bytes, size, digest);
}

// Whether all numbers are finite.
BAYESBINN_EXPORT(all_finite) bool all_finite(const float *numbers, size_t count) {
    const float largest = kernels.largest(numbers, count);
    return largest == largest;
}

BAYESBINN_EXPORT(create) void create(size_t networks, size_t inputs, double max_memory) {
    require(!network, "an instance holds one network");
    require_few(inputs);
    network = std::make_unique<Network>(kernels, networks, inputs, 1, (uint64_t)max_memory);
}

BAYESBINN_EXPORT(linear)
size_t linear(
    size_t input, size_t rows, size_t count, size_t outputs, const void *weights, size_t sets, bool binary,
    bool quantized, const float *scale, const float *shift, size_t scale_sets, float low, float high
) {
    require_few(rows, outputs);
    const WeightSets stored = sets_of(weights, sets, binary, outputs, count);
    Finishing finish = finishing({scale, shift, scale_sets}, outputs, low, high);
    return network->linear(input, rows, products_of(binary, quantized), stored, std::move(finish));
}

// `geometry` has the 15 numbers of a `Geometry`, in its order.
BAYESBINN_EXPORT(convolution)
size_t convolution(
    size_t input, const uint32_t *geometry, const void *weights, size_t sets, bool binary, bool quantized,
    const float *scale, const float *shift, size_t scale_sets, float low, float high
) {
    const uint32_t *const n = geometry;
    const Geometry g{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12], n[13], n[14]};
    require(g.groups > 0, "a convolution needs a group");
    require_few(g.outputs, g.out_height, g.out_width);
    const WeightSets stored = sets_of(weights, sets, binary, g.outputs, g.group_channels() * g.taps());
    Finishing finish = finishing({scale, shift, scale_sets}, g.outputs, low, high);
    return network->convolution(input, g, products_of(binary, quantized), stored, std::move(finish));
}

// `axes` has the parts of the rows' axis and then those of the columns'.
BAYESBINN_EXPORT(pool)
size_t pool(
    size_t input, size_t channels, const uint32_t *axes, bool average, const float *scale, const float *shift,
    size_t scale_sets, float low, float high
) {
    const PoolAxis rows = axis_of(axes), columns = axis_of(axes + 7);
    require_few(channels, rows.count, columns.count);
    Finishing finish = finishing({scale, shift, scale_sets}, channels, low, high);
    return network->pool(input, channels, rows, columns, average, std::move(finish));
}

BAYESBINN_EXPORT(affine)
size_t affine(
    size_t input, size_t outer, size_t channels, size_t inner, const float *scale, const float *shift,
    size_t scale_sets, float low, float high
) {
    require_few(outer, channels, inner);
    Finishing finish = finishing({scale, shift, scale_sets}, channels, low, high);
    return network->affine(input, outer, channels, inner, std::move(finish));
}

BAYESBINN_EXPORT(tanh_of) size_t tanh_of(size_t input, size_t count) {
    return network->elementwise(input, count, tanhf);
}

BAYESBINN_EXPORT(sigmoid_of) size_t sigmoid_of(size_t input, size_t count) {
    return network->elementwise(input, count, sigmoid);
}

BAYESBINN_EXPORT(softmax) size_t softmax(size_t input, size_t outer, size_t count, size_t inner) {
    return network->softmax(input, outer, count, inner);
}

BAYESBINN_EXPORT(add) size_t add(size_t first, size_t second, size_t count, float low, float high) {
    return network->add(first, second, count, low, high);
}

// `parts` has `count` values and then their lengths.
BAYESBINN_EXPORT(concatenate) size_t concatenate(const uint32_t *parts, size_t count, size_t outer) {
    const std::vector<size_t> inputs(parts, parts + count), lengths(parts + count, parts + 2 * count);
    uint64_t length = 0;
    for (const size_t each : lengths) length += each;
    require_few(outer, length);
    return network->concatenate(inputs, outer, lengths);
}

BAYESBINN_EXPORT(transpose) size_t transpose(size_t input, size_t rows, size_t columns) {
    return network->transpose(input, rows, columns);
}

BAYESBINN_EXPORT(seal) void seal(size_t output, size_t count) { network->seal(output, count); }

BAYESBINN_EXPORT(memory_taken) double memory_taken() { return (double)network->memory(); }

// x: [batch][inputs]; y: [networks][batch][outputs].
BAYESBINN_EXPORT(run) void run(const float *x, size_t batch, float *y) { network->run(x, batch, y); }

// After a run an instance may be given back to make room for another network.
BAYESBINN_EXPORT(destroy) void destroy() { network.reset(); }

}  // namespace bayesbinn::wasm
