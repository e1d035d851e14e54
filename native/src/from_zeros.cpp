#include "from_zeros.hpp"

namespace lockstep {
namespace {

template <typename Number>
void add(const Number* __restrict source, Number* __restrict target, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) target[i] = source[i] + Number(0);
}

}  // namespace

void add_to_zeros(const float* source, float* target, std::size_t count) { add(source, target, count); }
void add_to_zeros(const double* source, double* target, std::size_t count) { add(source, target, count); }

}  // namespace lockstep
