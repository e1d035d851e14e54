// The Python module lockstep._native: the shared-memory transport without torch.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, module) {
  module.doc() = "The shared-memory transport: memory, groups of ranks, collectives, messages.";
}
