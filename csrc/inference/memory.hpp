// Memory aligned to cache lines, and in huge pages for large blocks.
#pragma once

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
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

// More memory than the caller allows. Python sees a MemoryError with this text.
class OverLimit : public std::bad_alloc {
   public:
    OverLimit(size_t needed, size_t left)
        : text_(std::to_string(needed) + " bytes are needed, " + std::to_string(left) + " are left") {}
    const char *what() const noexcept override { return text_.c_str(); }

   private:
    std::string text_;
};

// The total memory a network may take; checked before anything is allocated.
class Budget {
   public:
    explicit Budget(size_t limit) : limit_(limit), left_(limit) {}

    // Checks for memory that is soon freed again.
    void check(size_t bytes) const {
        if (bytes > left_) throw OverLimit(bytes, left_);
    }
    void take(size_t bytes) {
        check(bytes);
        left_ -= bytes;
    }
    size_t left() const { return left_; }
    size_t taken() const { return limit_ - left_; }

   private:
    size_t limit_, left_;
};

// Arrays of zeros that live as long as the arena, next to each other. An ensemble's weights fill more small pages than
// the processor's TLB holds, so large blocks ask for huge pages. AddressSanitizer gets a separate block for each array,
// so that it sees where they end.
class Arena {
   public:
    explicit Arena(Budget &budget) : budget_(budget) {}

    template <class T>
    T *take(size_t count) {
        const size_t bytes = round_up(count * sizeof(T), LINE);
        budget_.take(bytes);
        if (bytes > left_) grow(bytes);
        std::byte *const taken = next_;
        next_ += bytes;
        left_ -= bytes;
        memset(taken, 0, bytes);
        return reinterpret_cast<T *>(taken);
    }

   private:
#if defined(__SANITIZE_ADDRESS__)
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
