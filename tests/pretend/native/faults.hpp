// A planted fault: the kernel of an operation fails, and as on a real device this is told at the next wait or launch;
// with CUDA_LAUNCH_BLOCKING=1 at once.
#pragma once

#include <c10/util/Exception.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "ledger.hpp"

namespace pretend {

inline std::string fault_at;     // the operation whose kernel will fail
inline std::string fault_words;  // what the driver calls it: "device-side assert triggered"
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
                                "CUDA error: " + fault_words +
                                    "\nCUDA kernel errors might be asynchronously reported at some other API call, so "
                                    "the stacktrace below might be "
                                    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with "
                                    "`TORCH_USE_CUDA_DSA` to enable "
                                    "device-side assertions.\n");
}

inline bool waits_for_each_kernel() {
  const char* set = std::getenv("CUDA_LAUNCH_BLOCKING");
  return set && std::string_view(set) == "1";
}

inline void launch(const std::string& operation) {
  tell_failure();
  count("kernel: " + operation);
  if (!fault_at.empty() && operation == fault_at) {
    has_failed = true;
    if (waits_for_each_kernel()) tell_failure();
  }
}

inline void wait_for_device(const std::string& what) {
  count("wait: " + what);
  tell_failure();
}

}  // namespace pretend
