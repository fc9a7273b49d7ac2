// Divides the work on a list of tensors among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels.hpp"
#include "threads.hpp"

namespace bayesbinn {

// Below this total number of elements, waking threads costs more than they save.
constexpr size_t WORTH_SHARING = 4 * PIECE;

// Calls body(tensor, range) until all elements of all tensors are covered.
template <class Body>
void sweep(const std::vector<size_t> &sizes, int threads, const Body &body) {
    struct Context {
        const std::vector<size_t> &sizes;
        const Body &body;
        std::atomic<size_t> next{0};

        void run() {
            size_t tensor = 0, pieces_before = 0;
            for (;;) {
                const size_t piece = next.fetch_add(1, std::memory_order_relaxed);
                // A thread's pieces come in ascending order: the search continues where it stopped.
                while (tensor < sizes.size() && piece - pieces_before >= pieces_of(sizes[tensor]))
                    pieces_before += pieces_of(sizes[tensor++]);
                if (tensor == sizes.size()) return;
                const size_t begin = (piece - pieces_before) * PIECE;
                body(tensor, Range{begin, std::min(begin + PIECE, sizes[tensor])});
            }
        }

        static size_t pieces_of(size_t size) { return size / PIECE + (size % PIECE != 0); }
    } context{sizes, body};

    size_t total = 0;
    for (size_t size : sizes) total += size;
    if (total < WORTH_SHARING) threads = 1;
    in_parallel(threads, [](void *self) { static_cast<Context *>(self)->run(); }, &context);
}

}  // namespace bayesbinn
