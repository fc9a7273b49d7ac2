// Memory aligned to cache lines.
#pragma once

#include <stddef.h>
#include <string.h>

#include <memory>
#include <new>
#include <vector>

namespace bayesbinn::inference {

constexpr size_t LINE = 64;

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

template <class T>
struct AlignedAllocator {
    using value_type = T;
    AlignedAllocator() = default;
    template <class Other>
    AlignedAllocator(const AlignedAllocator<Other> &) {}
    T *allocate(size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(LINE))); }
    void deallocate(T *p, size_t) { ::operator delete(p, std::align_val_t(LINE)); }
    template <class Other>
    bool operator==(const AlignedAllocator<Other> &) const {
        return true;
    }
    template <class Other>
    bool operator!=(const AlignedAllocator<Other> &) const {
        return false;
    }
};

template <class T>
using Aligned = std::vector<T, AlignedAllocator<T>>;

}  // namespace bayesbinn::inference
