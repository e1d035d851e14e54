// Where in the user's program an operation was called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

// One for each place; it lives as long as the process.
struct Site {
  // What the call says, the same in every process: the text of it and the functions that it stands in. 0: nothing that
  // ranks could compare (torch called, or nobody knows the text).
  std::uint64_t label = 0;
  std::string where;       // "train.py:12"
  std::size_t number = 0;  // as whom the one who judges sites knows it
};

}  // namespace lockstep
