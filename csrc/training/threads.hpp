#pragma once

#include <string>

namespace bayesbinn {

// Calls work(context) on up to `threads` threads at once, the caller among them, and returns when
// all calls have returned. How many calls there are is not promised: work takes its share from a
// counter in the context until nothing is left.
void in_parallel(int threads, void (*work)(void *), void *context);

// Takes the threads from the OpenMP runtime that `library` is bound to, or, if it is not loaded, from
// the one that the process shares. Returns the file of that runtime, or "" if there is none.
std::string borrow_threads_from(const char *library);

}  // namespace bayesbinn
