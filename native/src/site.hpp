// Where in the user's program an operation was called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace samebits {

// One for each place; it lives as long as the process.
struct Site {
  // Of the call, the same in every process: a hash of its text and the functions around it. 0: nothing that ranks could
  // compare (torch called, or nobody knows the text).
  std::uint64_t label = 0;
  std::string where;       // "train.py:12"
  std::size_t number = 0;  // by which the judge of sites knows it
};

}  // namespace samebits
