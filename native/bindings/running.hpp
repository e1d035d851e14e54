// How a call from Python runs an operation.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <utility>

#include "group.hpp"

namespace samebits {

// Lets other Python threads run only where that takes less time than the operation.
inline void run(Group& group, Request&& request) {
  std::optional<nanobind::gil_scoped_release> released;
  group.run(std::move(request), [&released] { released.emplace(); });
}

}  // namespace samebits
