// The Python module bayesbinn.kernels._native. Tensors are passed as addresses: converting each of
// them through DLPack would take longer than the kernels of a small network. The checks that make
// addresses safe are in native.py, the only caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdlib.h>

#include <exception>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "isa.hpp"
#include "products.hpp"
#include "threads.hpp"
#include "training.hpp"

namespace nb = nanobind;

namespace bayesbinn {
namespace {

const Kernels *chosen = nullptr;

// A field's name as a Python string, made once: making it at every call would take as long as the kernels of a small
// network.
nb::handle interned(const char *name) {
    static std::unordered_map<const char *, PyObject *> known;
    PyObject *&found = known[name];
    if (!found) found = PyUnicode_InternFromString(name);
    return found;
}

template <class T>
void read(const char *name, nb::handle found, T &value);

// Reads the fields of a struct from a Python object's attributes of the same names.
struct Attributes {
    nb::handle from;

    template <class T>
    void operator()(const char *name, T &value) const {
        read(name, nb::getattr(from, interned(name)), value);
    }
};

// Reads the fields of a kernel's settings from keywords of the same names, and counts them.
struct Keywords {
    const char *kernel;
    const nb::kwargs &from;
    size_t &count;

    template <class T>
    void operator()(const char *name, T &value) const {
        const nb::handle found = PyDict_GetItem(from.ptr(), interned(name).ptr());
        if (!found) throw nb::type_error((std::string(kernel) + " needs the setting " + name).c_str());
        read(name, found, value);
        count++;
    }
};

template <class T>
constexpr bool is_number = std::is_arithmetic_v<T> || std::is_same_v<T, std::optional<uint64_t>>;

template <class T>
void read(const char *name, nb::handle found, T &value) {
    if constexpr (is_number<T>) {
        if (!nb::try_cast(found, value))
            throw nb::type_error(("unusable value of the setting " + std::string(name)).c_str());
    } else {
        value.each(Attributes{found});
    }
}

// A kernel as a function of (threads, sizes, columns, **settings), run without the interpreter's lock.
template <class Settings>
nb::object bound(const char *name, void (*kernel)(Team, const Tensors &, const Settings &)) {
    const auto call = [name,
                       kernel](int threads, Sizes sizes, std::vector<Addresses> columns, const nb::kwargs &settings) {
        Settings set{};
        size_t count = 0;
        set.each(Keywords{name, settings, count});
        if (settings.size() != count)
            throw nb::type_error((std::string(name) + " takes " + std::to_string(count) + " settings").c_str());
        nb::gil_scoped_release unlocked;
        kernel(Team{*chosen, threads}, Tensors{std::move(sizes), std::move(columns)}, set);
    };
    return nb::cpp_function(
        call, nb::name(name), nb::arg("threads"), nb::arg("sizes"), nb::arg("columns"), nb::arg("settings")
    );
}

template <size_t COUNT>
nb::list listed(const Column (&columns)[COUNT]) {
    nb::list found;
    for (const Column &column : columns) found.append(nb::make_tuple(column.name, column.arrays));
    return found;
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
    m.def("borrow_threads_from", borrow_threads_from, nb::arg("library"));
    m.def("random_bits", random_bits, nb::arg("key"), nb::arg("draw"), nb::arg("block"));
    m.def(
        "first_beyond",
        [](int threads, const Sizes &sizes, const Addresses &tensors, double limit) {
            nb::gil_scoped_release unlocked;
            return first_beyond(Team{*chosen, threads}, sizes, tensors, limit);
        },
        nb::arg("threads"), nb::arg("sizes"), nb::arg("tensors"), nb::arg("limit")
    );
    m.def(
        "bernoulli",
        [](uintptr_t state, size_t bytes, double probability, uintptr_t values, size_t count) {
            nb::gil_scoped_release unlocked;
            bernoulli(
                Team{*chosen, 1}, reinterpret_cast<uint8_t *>(state), bytes, probability,
                reinterpret_cast<float *>(values), count
            );
        },
        nb::arg("state"), nb::arg("bytes"), nb::arg("probability"), nb::arg("values"), nb::arg("count")
    );
    m.def("multiplies_signs", [] { return multiplies_signs(Team{*chosen, 1}); });
    m.def(
        "sign_words", [](size_t inputs, size_t outputs) { return words_of(inputs) * lanes_of(outputs); },
        nb::arg("inputs"), nb::arg("outputs")
    );
    m.def(
        "pack_signs",
        [](int threads, uintptr_t weights, size_t rows, size_t columns, uintptr_t by_rows, uintptr_t by_columns) {
            const auto words = [](uintptr_t address) { return reinterpret_cast<uint32_t *>(address); };
            nb::gil_scoped_release unlocked;
            return pack_signs(
                Team{*chosen, threads}, reinterpret_cast<const float *>(weights),
                SignMatrix{rows, columns, words(by_rows), words(by_columns)}
            );
        },
        nb::arg("threads"), nb::arg("weights"), nb::arg("rows"), nb::arg("columns"), nb::arg("by_rows"),
        nb::arg("by_columns")
    );
    m.def(
        "multiply_signs",
        [](int threads, uintptr_t x, uintptr_t signs, uintptr_t y, size_t examples, size_t inputs, size_t outputs) {
            nb::gil_scoped_release unlocked;
            multiply_signs(
                Team{*chosen, threads},
                SignProduct{
                    reinterpret_cast<const float *>(x), reinterpret_cast<const uint32_t *>(signs),
                    reinterpret_cast<float *>(y), inputs, outputs
                },
                examples
            );
        },
        nb::arg("threads"), nb::arg("x"), nb::arg("signs"), nb::arg("y"), nb::arg("examples"), nb::arg("inputs"),
        nb::arg("outputs")
    );
    m.def("multiplies_outer", [] { return multiplies_outer(Team{*chosen, 1}); });
    m.def(
        "multiply_outer",
        [](int threads, uintptr_t gradients, uintptr_t inputs, uintptr_t product, size_t examples, size_t rows,
           size_t columns) {
            nb::gil_scoped_release unlocked;
            multiply_outer(
                Team{*chosen, threads}, OuterProduct{
                                            reinterpret_cast<const float *>(gradients),
                                            reinterpret_cast<const float *>(inputs),
                                            reinterpret_cast<float *>(product), examples, rows, columns
                                        }
            );
        },
        nb::arg("threads"), nb::arg("gradients"), nb::arg("inputs"), nb::arg("product"), nb::arg("examples"),
        nb::arg("rows"), nb::arg("columns")
    );
    // By name: the kernels, and their columns in order, each with its number of values per element (0: a key).
    nb::dict kernels, columns;
#define BAYESBINN_BIND(kernel, Settings, ...)                                                                          \
    kernels[#kernel] = bound<Settings>(#kernel, kernel);                                                               \
    columns[#kernel] = listed(kernel##_columns);
    BAYESBINN_EACH_KERNEL(BAYESBINN_BIND)
    m.attr("KERNELS") = kernels;
    m.attr("COLUMNS") = columns;
}
