// The parts of the Python module that have files of their own, and what they share with module.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>

#include "waiting.hpp"

namespace lockstep {

inline Nanoseconds seconds(double value) { return Nanoseconds(static_cast<std::int64_t>(std::min(value, 1e9) * 1e9)); }

inline Nanoseconds microseconds(double value) {
  return Nanoseconds(static_cast<std::int64_t>(std::min(value, 1e6) * 1e3));
}

void define_tuning(nanobind::module_& module);
void define_parameters(nanobind::module_& module);

}  // namespace lockstep
