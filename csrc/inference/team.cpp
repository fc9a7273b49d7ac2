#include "team.hpp"

#include <pthread.h>

#include <new>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bayesbinn::inference {
namespace {

constexpr int SPINS_BEFORE_YIELD = 4000;
constexpr int SPINS_BEFORE_SLEEP = 20000;  // about 100 µs

std::atomic<unsigned> forked{0};
[[maybe_unused]] const int counted = pthread_atfork(nullptr, nullptr, [] { forked++; });

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class Condition>
void spin_until(Condition condition) {
    for (int spins = 0; !condition(); spins++)
        if (spins < SPINS_BEFORE_YIELD)
            pause();
        else
            std::this_thread::yield();  // there are more threads than free cores: let the others run
}

}  // namespace

Team::Team(int threads) {
    try {
        others_.reserve((size_t)(threads > 1 ? threads - 1 : 0));
        for (; threads_ < threads; threads_++) others_.emplace_back([this, thread = threads_] { serve(thread); });
    } catch (const std::system_error &) {  // too many threads, or no memory for another stack
    } catch (const std::bad_alloc &) {
    }
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ending_ = true;
    }
    wake_.notify_all();
    for (std::thread &other : others_) other.join();
}

void Team::run(const std::function<void(int)> &work) {
    if (threads_ == 1) return work(0);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        work_ = &work;
        finished_ = 0;
        job_++;
    }
    wake_.notify_all();
    work(0);
    spin_until([this] { return finished_.load(std::memory_order_acquire) == (unsigned)threads_ - 1; });
}

void Team::barrier() {
    if (threads_ == 1) return;
    const unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == (unsigned)threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.store(round + 1, std::memory_order_release);
    } else {
        spin_until([&] { return round_.load(std::memory_order_acquire) != round; });
    }
}

void Team::serve(int thread) {
    unsigned done = 0;
    for (;;) {
        for (int spins = 0; spins < SPINS_BEFORE_SLEEP && job_.load() == done && !ending_; spins++) pause();
        {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return job_.load() != done || ending_; });
            if (ending_) return;
            done = job_.load();
        }
        (*work_)(thread);
        finished_.fetch_add(1, std::memory_order_acq_rel);
    }
}

Buffers scratch_for(int threads, size_t bytes) {
    Buffers made;
    for (int thread = 0; thread < threads; thread++) {
        try {
            made.emplace_back(bytes);
        } catch (const std::bad_alloc &) {
            if (thread == 0) throw;
            break;
        }
    }
    return made;
}

unsigned forks() { return forked; }

}  // namespace bayesbinn::inference
