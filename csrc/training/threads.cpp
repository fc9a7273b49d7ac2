// Which threads do the work.
//
// torch keeps a team of OpenMP threads that spin for a while after each operation, waiting for the
// next one. A second team, from another OpenMP runtime or our own, would compete with the spinning
// one for the same cores: each side finds the cores taken by the other's idle threads.
// So this extension is not linked with OpenMP. It looks up GOMP_parallel, the entry point that
// compilers emit for `#pragma omp parallel`, in the same runtime that libtorch_cpu is bound to,
// and gives its work to torch's team, which is still warm from the last operation.
//
// If there is no such runtime, threads are started for each call. That costs about 80 µs, but
// nothing spins, so nothing gets in torch's way.
//
// Sampling 89,400 certain weights between two torch matmuls, two cores, medians: 29 µs on torch's
// team, 32 µs on the calling thread only, 109 µs on new threads, 4 ms on a second OpenMP runtime,
// which also slows down the matmuls.
#include "threads.hpp"

#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

namespace bayesbinn {
namespace {

// void GOMP_parallel(void (*fn)(void *), void *data, unsigned num_threads, unsigned flags)
using Parallel = void (*)(void (*)(void *), void *, unsigned, unsigned);

Parallel borrowed = nullptr;

void start_threads(int threads, void (*work)(void *), void *context) {
    std::vector<std::thread> others;
    others.reserve((size_t)threads - 1);
    for (int i = 1; i < threads; i++) others.emplace_back(work, context);
    work(context);
    for (std::thread &other : others) other.join();
}

}  // namespace

void in_parallel(int threads, void (*work)(void *), void *context) {
    if (threads <= 1)
        work(context);
    else if (borrowed)
        borrowed(work, context, (unsigned)threads, 0);
    else
        start_threads(threads, work, context);
}

std::string borrow_threads_from([[maybe_unused]] const char *library) {
#if !defined(_WIN32)
    // dlsym on a handle searches only the library and what it was linked with: in a
    // process with several OpenMP runtimes this finds torch's. The handle is never closed.
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = dlsym(handle ? handle : RTLD_DEFAULT, "GOMP_parallel");
    borrowed = reinterpret_cast<Parallel>(symbol);
    Dl_info info;
    if (symbol && dladdr(symbol, &info) && info.dli_fname) return info.dli_fname;
#endif
    return "";
}

}  // namespace bayesbinn
