// Products of matrices on several threads. Invalid input throws std::invalid_argument before any write.
#pragma once

#include "training.hpp"

namespace bayesbinn {

// Whether this instruction set has them.
bool multiplies_signs(Team);

// Packs a matrix of float32; false, with an undefined result, if a weight is neither −1 nor +1.
bool pack_signs(Team, const float *weights, const SignMatrix &);

// The result does not depend on the number of threads or on the other examples.
void multiply_signs(Team, const SignProduct &, size_t examples);

// Whether this instruction set has the following.
bool multiplies_outer(Team);

// The result does not depend on the number of threads.
void multiply_outer(Team, const OuterProduct &);

}  // namespace bayesbinn
