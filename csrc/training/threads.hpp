#pragma once

#include <string>

namespace bayesbinn {

// Calls work(context) on up to `threads` threads at once, including the caller, and returns when
// all calls have returned. The number of calls is not guaranteed: work takes pieces from a counter
// in the context until nothing is left.
void in_parallel(int threads, void (*work)(void *), void *context);

// Takes the threads from the OpenMP runtime that `library` is bound to, or, if it is not loaded, from
// the one that the process shares. Returns the file of that runtime, or "" if there is none.
std::string borrow_threads_from(const char *library);

}  // namespace bayesbinn
