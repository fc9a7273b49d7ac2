// The Python module bayesbinn.runtime._native. This checks sizes against arrays; graph.py has checked that
// the graph is consistent, and runtime/native.py is the only caller.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <math.h>
#include <stdlib.h>

#include <stdexcept>

#include "network.hpp"

namespace nb = nanobind;

namespace bayesbinn::inference {
namespace {

const Kernels *chosen = nullptr;

template <class T, int Axes>
using Array = nb::ndarray<const T, nb::ndim<Axes>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Scales = std::optional<Array<float, 2>>;  // [networks or 1][channels]

void require(bool condition, const char *what) {
    if (!condition) throw std::invalid_argument(what);
}

Finishing finishing(
    Network &network, const Scales &scale, const Scales &shift, size_t channels, float low, float high
) {
    const size_t networks = network.networks();
    Finishing made;
    made.channels = channels;
    made.low = low;
    made.high = high;
    require(scale.has_value() == shift.has_value(), "a scale and a shift belong together");
    if (scale) {
        for (const Scales &each : {scale, shift})
            require(
                each->shape(1) == channels && (each->shape(0) == 1 || each->shape(0) == networks),
                "scale and shift: one per channel, for one or all networks"
            );
        require(scale->shape(0) == shift->shape(0), "scale and shift: for the same number of networks");
        made.scale = network.shared_floats(scale->data(), scale->size());
        made.shift = network.shared_floats(shift->data(), shift->size());
    }
    return made;
}

// [networks or 1][outputs][bytes of a row]
WeightSets sets_of(const Array<uint8_t, 3> &bits, size_t count, size_t networks) {
    require(bits.shape(2) == (count + 7) / 8, "bits: rows of ⌈count/8⌉ bytes are needed");
    require(bits.shape(0) == 1 || bits.shape(0) == networks, "weights for one or all networks are needed");
    WeightSets sets;
    for (size_t i = 0; i < bits.shape(0); i++)
        sets.push_back({bits.data() + i * bits.shape(1) * bits.shape(2), nullptr, bits.shape(1), count});
    return sets;
}

// [networks or 1][outputs][count]
WeightSets sets_of(const Array<float, 3> &reals, size_t count, size_t networks) {
    require(reals.shape(2) == count, "weights: rows of `count` numbers are needed");
    require(reals.shape(0) == 1 || reals.shape(0) == networks, "weights for one or all networks are needed");
    WeightSets sets;
    for (size_t i = 0; i < reals.shape(0); i++)
        sets.push_back({nullptr, reals.data() + i * reals.shape(1) * reals.shape(2), reals.shape(1), count});
    return sets;
}

Products products_of(bool binary, bool quantized) {
    return !binary ? Products::real : quantized ? Products::tables : Products::pairs;
}

template <class T>
size_t linear(
    Network &network, size_t input, size_t rows, size_t count, const Array<T, 3> &weights, bool quantized,
    const Scales &scale, const Scales &shift, float low, float high
) {
    require(count > 0, "a linear layer needs inputs");
    const WeightSets sets = sets_of(weights, count, network.networks());
    const Products products = products_of(std::is_same_v<T, uint8_t>, quantized);
    Finishing finish = finishing(network, scale, shift, weights.shape(1), low, high);
    return network.linear(input, rows, products, sets, std::move(finish));
}

template <class T>
size_t convolution(
    Network &network, size_t input, const Geometry &g, const Array<T, 3> &weights, bool quantized, const Scales &scale,
    const Scales &shift, float low, float high
) {
    require(g.outputs == weights.shape(1), "as many outputs as rows of weights are needed");
    const WeightSets sets = sets_of(weights, g.group_channels() * g.taps(), network.networks());
    const Products products = products_of(std::is_same_v<T, uint8_t>, quantized);
    Finishing finish = finishing(network, scale, shift, g.outputs, low, high);
    return network.convolution(input, g, products, sets, std::move(finish));
}

// Windows, inputs, kernel (0: adaptive), stride, padding, step, and whether an average counts the padding.
using AxisParts = nb::typed<nb::tuple, size_t, size_t, size_t, size_t, size_t, size_t, bool>;

PoolAxis axis_of(const AxisParts &parts) {
    const auto number = [&](size_t i) { return nb::cast<size_t>(parts[i]); };
    const PoolAxis axis{number(0), number(1), number(2), number(3), number(4), number(5), nb::cast<bool>(parts[6])};
    require(
        axis.count && axis.inputs && axis.stride && axis.step, "an axis needs windows, inputs, a stride and a step"
    );
    return axis;
}

float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The first row with NaN or an infinity; -1 if there is none.
int64_t first_not_finite(const Array<float, 2> &x) {
    const size_t rows = x.shape(0), size = x.shape(1);
    const auto finite = [](const float *from, size_t count) {
        const float largest = chosen->largest(from, count);
        return largest == largest;
    };
    const float *const from = x.data();
    nb::gil_scoped_release unlocked;
    if (finite(from, rows * size)) return -1;
    for (size_t row = 0; row < rows; row++)
        if (!finite(from + row * size, size)) return (int64_t)row;
    return -1;
}

void run(Network &network, const Array<float, 2> &x, const Output &y) {
    const size_t batch = x.shape(0);
    require(x.shape(1) == network.input_count(), "the inputs do not have the network's size");
    require(
        y.shape(0) == network.networks() && y.shape(1) == batch && y.shape(2) == network.output_count(),
        "the outputs do not have the network's size"
    );
    const float *const from = x.data();
    float *const to = y.data();
    nb::gil_scoped_release unlocked;
    network.run(from, batch, to);
}

}  // namespace
}  // namespace bayesbinn::inference

NB_MODULE(_native, m) {
    using namespace bayesbinn::inference;
    try {
        chosen = &choose_kernels(getenv("BAYESBINN_ISA"));
    } catch (const std::exception &error) {
        throw nb::import_error(error.what());
    }
    nb::exception<OverLimit>(m, "OverLimit", PyExc_MemoryError);
    m.def("isa", [] { return chosen->name; });
    m.def("first_not_finite", first_not_finite, nb::arg().noconvert());
    nb::class_<Geometry>(m, "Geometry")
        .def(
            "__init__",
            [](Geometry *self, size_t channels, size_t height, size_t width, size_t outputs, size_t out_height,
               size_t out_width, size_t kernel_height, size_t kernel_width, size_t stride_height, size_t stride_width,
               size_t top, size_t left, size_t dilation_height, size_t dilation_width, size_t groups) {
                require(groups > 0, "a convolution needs a group");
                new (self) Geometry{channels,  height,        width,           outputs,        out_height,
                                    out_width, kernel_height, kernel_width,    stride_height,  stride_width,
                                    top,       left,          dilation_height, dilation_width, groups};
            },
            nb::kw_only(), nb::arg("channels"), nb::arg("height"), nb::arg("width"), nb::arg("outputs"),
            nb::arg("out_height"), nb::arg("out_width"), nb::arg("kernel_height"), nb::arg("kernel_width"),
            nb::arg("stride_height"), nb::arg("stride_width"), nb::arg("top"), nb::arg("left"),
            nb::arg("dilation_height"), nb::arg("dilation_width"), nb::arg("groups")
        );
    nb::class_<Network>(m, "Network")
        .def(
            "__init__",
            [](Network *self, size_t networks, size_t inputs, int threads, uint64_t max_memory) {
                new (self) Network(*chosen, networks, inputs, threads, max_memory);
            }
        )
        .def(
            "linear", linear<uint8_t>, nb::arg(), nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg(),
            nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg()
        )
        .def(
            "linear", linear<float>, nb::arg(), nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg(),
            nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg()
        )
        .def(
            "convolution", convolution<uint8_t>, nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg(),
            nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg()
        )
        .def(
            "convolution", convolution<float>, nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg(), nb::arg().none(),
            nb::arg().none(), nb::arg(), nb::arg()
        )
        .def(
            "pool",
            [](Network &network, size_t input, size_t channels, const AxisParts &rows, const AxisParts &columns,
               bool average, const Scales &scale, const Scales &shift, float low, float high) {
                Finishing finish = finishing(network, scale, shift, channels, low, high);
                return network.pool(input, channels, axis_of(rows), axis_of(columns), average, std::move(finish));
            },
            nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(),
            nb::arg()
        )
        .def(
            "affine",
            [](Network &network, size_t input, size_t outer, size_t channels, size_t inner, const Scales &scale,
               const Scales &shift, float low, float high) {
                Finishing finish = finishing(network, scale, shift, channels, low, high);
                return network.affine(input, outer, channels, inner, std::move(finish));
            },
            nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg()
        )
        .def("tanh", [](Network &n, size_t input, size_t count) { return n.elementwise(input, count, tanhf); })
        .def("sigmoid", [](Network &n, size_t input, size_t count) { return n.elementwise(input, count, sigmoid); })
        .def("softmax", &Network::softmax)
        .def("add", &Network::add)
        .def("concatenate", &Network::concatenate)
        .def("transpose", &Network::transpose)
        .def("seal", &Network::seal)
        .def("memory", &Network::memory)
        .def("run", run);
}
