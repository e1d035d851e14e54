// The check of a Program.
#include <bitset>

#include "kernels/kernels.hpp"

namespace samebits {

bool is_valid(Program program, std::size_t num_leaves) {
  if (num_leaves == 0 || num_leaves > combine || program.size() != 2 * num_leaves - 1) return false;
  std::bitset<combine> seen;
  std::size_t height = 0;
  for (const std::uint8_t byte : program) {
    if (byte == combine) {
      if (height < 2) return false;
      --height;
    } else {
      if (byte >= num_leaves || seen[byte]) return false;
      seen[byte] = true;
      ++height;
    }
  }
  return height == 1;  // follows from the size, as does that every leaf was seen
}

}  // namespace samebits
