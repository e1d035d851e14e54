// Telling a process from one that was forked from it.
#pragma once

#include <cstdint>

namespace samebits {

// How many forks lie between loading the library and this process: another number than before means another process.
// Costs a load, where getpid() is a system call.
std::uint32_t num_forks();

}  // namespace samebits
