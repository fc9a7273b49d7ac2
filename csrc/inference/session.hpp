// What a network needs while it runs: threads and memory, one run at a time.
#pragma once

#include <memory>
#include <vector>

#include "memory.hpp"

#if defined(__wasm__)
#include "../wasm/team.hpp"
#else
#include "team.hpp"
#endif

namespace bayesbinn::inference {

// A session belongs to one process: after a fork its threads are gone, and its mutex stays locked forever if
// another thread was running then. The child makes its own session and leaves this one as it is.
class Session {
   public:
    // Buffers for the values of `batch` examples, for each thread's scratch, and at most `threads` threads. If memory
    // runs out, an exception leaves the session as if nothing had been prepared.
    void prepare(const std::vector<size_t> &slot_bytes, size_t batch, size_t scratch_bytes, int threads);

    bool of_this_process() const { return forks_ == forks(); }

    Mutex running;
    Buffers slots, scratch;
    std::unique_ptr<Team> team;

   private:
    const unsigned forks_ = forks();
    size_t capacity_ = 0;  // examples that fit in the slots
};

}  // namespace bayesbinn::inference
