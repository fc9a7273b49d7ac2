// Memory aligned to cache lines, and in huge pages for large blocks.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
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
using Buffers = std::vector<Aligned<std::byte>>;

#if defined(__cpp_exceptions)

// More memory than the caller allows. Python sees a MemoryError with this text.
class OverLimit : public std::bad_alloc {
   public:
    OverLimit(uint64_t needed, uint64_t left)
        : text_(std::to_string(needed) + " bytes are needed, " + std::to_string(left) + " are left") {}
    const char *what() const noexcept override { return text_.c_str(); }

   private:
    std::string text_;
};

[[noreturn]] inline void over_limit(uint64_t needed, uint64_t left) { throw OverLimit(needed, left); }

#else

[[noreturn]] void over_limit(uint64_t needed, uint64_t left);  // in wasm/failure.cpp

#endif

// The total memory a network may take; checked before anything is allocated.
class Budget {
   public:
    explicit Budget(uint64_t limit) : limit_(limit), left_(limit) {}

    // Checks for memory that is soon freed again.
    void check(uint64_t bytes) const {
        if (bytes > left_) over_limit(bytes, left_);
    }
    void take(uint64_t bytes) {
        check(bytes);
        left_ -= bytes;
    }
    uint64_t left() const { return left_; }
    uint64_t taken() const { return limit_ - left_; }

   private:
    uint64_t limit_, left_;
};

// Arrays of zeros that live as long as the arena, next to each other. An ensemble's weights fill more small pages than
// the processor's TLB holds, so large blocks ask for huge pages. AddressSanitizer gets a separate block for each array,
// so that it sees where they end; so does WebAssembly, which has no huge pages and never gives memory back.
class Arena {
   public:
    explicit Arena(Budget &budget) : budget_(budget) {}

    template <class T>
    T *take(uint64_t count) {
        const uint64_t needed = (count * sizeof(T) + LINE - 1) / LINE * LINE;
        budget_.take(needed);
        const size_t bytes = (size_t)needed;
        if (bytes > left_) grow(bytes);
        std::byte *const taken = next_;
        next_ += bytes;
        left_ -= bytes;
        memset(taken, 0, bytes);
        return reinterpret_cast<T *>(taken);
    }

   private:
#if defined(__SANITIZE_ADDRESS__) || defined(__wasm__)
    static constexpr size_t FIRST = 0, LARGEST = 0;
#else
    static constexpr size_t FIRST = 256 << 10, LARGEST = 32 << 20;
#endif
    static constexpr size_t HUGE_PAGE = 2 << 20;

    struct Free {
        std::align_val_t alignment;
        void operator()(std::byte *block) const { ::operator delete(block, alignment); }
    };

    void grow(size_t bytes) {
        size_t size = std::max(bytes, block_);
        const bool huge = LARGEST && size >= 2 * HUGE_PAGE;
        if (huge) size = round_up(size, HUGE_PAGE);
        const auto alignment = std::align_val_t(huge ? HUGE_PAGE : LINE);
        next_ = static_cast<std::byte *>(::operator new(size, alignment));
        blocks_.emplace_back(next_, Free{alignment});
        left_ = size;
        block_ = std::min(2 * std::max(block_, FIRST), LARGEST);
#if defined(MADV_HUGEPAGE)
        if (huge) madvise(next_, size, MADV_HUGEPAGE);  // only a hint: if ignored, the pages are small
#endif
    }

    Budget &budget_;
    std::vector<std::unique_ptr<std::byte, Free>> blocks_;
    std::byte *next_ = nullptr;
    size_t left_ = 0, block_ = FIRST;
};

}  // namespace bayesbinn::inference
