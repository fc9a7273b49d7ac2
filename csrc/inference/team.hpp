// The threads that run a network together. `wasm/team.hpp` stands in where there are no threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "memory.hpp"

namespace bayesbinn::inference {

using Mutex = std::mutex;

// A layer takes tens of microseconds, and waking a sleeping thread takes as long, so the threads spin between
// layers. After a job they spin for a moment, in case the next one follows immediately, and then sleep.
class Team {
   public:
    // Uses fewer threads than requested if the system cannot start more.
    explicit Team(int threads);
    ~Team();
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    int threads() const { return threads_; }

    // Calls work(thread) on every thread, 0 to threads − 1, and returns when all have.
    void run(const std::function<void(int)> &work);

    // Inside a job: returns when every thread has called it.
    void barrier();

   private:
    void serve(int thread);

    int threads_ = 1;
    std::vector<std::thread> others_;
    std::mutex mutex_;
    std::condition_variable wake_;
    const std::function<void(int)> *work_ = nullptr;
    std::atomic<unsigned> job_{0}, arrived_{0}, round_{0}, finished_{0};
    std::atomic<bool> ending_{false};
};

// A buffer for each thread, or for fewer threads if there is no memory for more.
Buffers scratch_for(int threads, size_t bytes);

// The number of forks between this process and the one that loaded the library.
unsigned forks();

}  // namespace bayesbinn::inference
