// How much memory a process may still use before the kernel ends processes.
#pragma once

#include <cstddef>
#include <string>

namespace samebits {

// Of the machine and of this process's control groups (version 2).
std::size_t available_memory();
// Of the control group with this folder; the largest number when it has no limit.
std::size_t left_in_control_group(const std::string& folder);

}  // namespace samebits
