// What adding to zeros makes of numbers.
#pragma once

#include <cstddef>

namespace lockstep {

// target = 0 + source, element by element: -0.0 becomes 0.0, everything else stays. They do not overlap.
void add_to_zeros(const float* source, float* target, std::size_t count);
void add_to_zeros(const double* source, double* target, std::size_t count);

}  // namespace lockstep
