// Telling a process from one that was forked from it.
#pragma once

#include <cstdint>

namespace lockstep {

// How often this process's line was forked since it loaded the library: another number than before means another
// process. Costs a load, where getpid() is a call into the kernel.
std::uint32_t num_forks();

}  // namespace lockstep
