// A planted fault: the kernel of an operation fails, and as on a real device this is told at the next wait or launch.
#pragma once

#include <c10/util/Exception.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "ledger.hpp"

namespace pretend {

inline std::string fault_at;     // the operation whose kernel will fail
inline bool has_failed = false;  // and stays so for this process, as a CUDA context does

// A context is no good in a child of the process that made it, such as a loader's forked worker.
inline void check_process() {
  static std::atomic<pid_t> owner{0};
  pid_t nobody = 0;
  if (!owner.compare_exchange_strong(nobody, getpid()) && nobody != getpid())
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 3, "CUDA error: initialization error");
}

inline void tell_failure() {
  if (!depth) check_process();
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
