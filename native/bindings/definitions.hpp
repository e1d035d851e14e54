// The parts of the Python module that have files of their own, and what they share with module.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "waiting.hpp"

namespace samebits {

inline Nanoseconds seconds(double value) { return Nanoseconds(static_cast<std::int64_t>(std::min(value, 1e9) * 1e9)); }

inline Nanoseconds microseconds(double value) {
  return Nanoseconds(static_cast<std::int64_t>(std::min(value, 1e6) * 1e3));
}

using Released = nanobind::call_guard<nanobind::gil_scoped_release>;

inline void check_signals() {
  const nanobind::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

// Values are bytes of any kind; keys are text.
inline std::string_view view(const nanobind::bytes& value) { return {value.c_str(), value.size()}; }
inline nanobind::bytes bytes(std::string_view value) { return nanobind::bytes(value.data(), value.size()); }

void define_table(nanobind::module_& module);
void define_tuning(nanobind::module_& module);
void define_parameters(nanobind::module_& module);

}  // namespace samebits
