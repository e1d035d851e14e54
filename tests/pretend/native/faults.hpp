// A planted fault: the kernel of an operation fails, and as on a real device this is told at the next wait or launch.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "ledger.hpp"

namespace pretend {

inline std::string fault_at;     // the operation whose kernel will fail
inline bool has_failed = false;  // and stays so for this process, as a CUDA context does

inline void tell_failure() {
  if (has_failed && !depth)
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 710,
                                "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'");
}

inline void launch(const std::string& operation) {
  tell_failure();
  count("kernel: " + operation);
  if (!fault_at.empty() && operation == fault_at) has_failed = true;
}

inline void wait_for_device(const std::string& what) {
  count("wait: " + what);
  tell_failure();
}

}  // namespace pretend
