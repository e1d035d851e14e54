// Sums over what they are made of, of which it is known after a death how far they came. See docs/design/0021.

#include <algorithm>
#include <cstring>

#include "algorithms.hpp"
#include "collectives.hpp"

namespace lockstep {

// Sums overwrite what they are made of, so they go through this rank's redo block: what a death leaves half written is
// there to be written again.
void Algorithms::reduce_recoverably(std::vector<const void*> inputs, std::vector<void*> outputs,
                                    std::uint64_t count) const {
  void* const redo_block = this->redo_block(rank);
  std::atomic<std::uint64_t>& redo = group.blocks_[rank].redo;
  std::uint64_t step = std::uint64_t{number} << 32;
  for (std::uint64_t left = count; left != 0;) {
    const std::uint64_t block = std::min(left, std::uint64_t{redo_bytes} / size);
    lockstep::reduce(reduction(), inputs, {&redo_block, 1}, block);
    redo.store(++step, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_release);  // before any of the outputs
    for (void*& output : outputs) {
      std::memcpy(output, redo_block, block * size);
      output = bytes(output) + block * size;
    }
    redo.store(++step, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_release);  // before the next block
    for (const void*& input : inputs) input = bytes(input) + block * size;
    left -= block;
  }
}

// See Group::summed.
std::vector<Slice> Algorithms::summed() const {
  if (!operation.published) return {};
  if (is_tiny(request, world)) return {{0, operation.has_worked ? request.count : 0}};
  std::vector<Slice> found;
  for (std::size_t writer = 0; writer < world; ++writer) {
    const Slice slice = slice_of(request.count, writer, world);
    const std::uint64_t redo = group.blocks_[writer].redo.load(std::memory_order_acquire);
    const auto last = static_cast<std::uint32_t>(redo >> 32), step = static_cast<std::uint32_t>(redo);
    if (!has_reached(last, number)) continue;
    const std::uint64_t block = redo_bytes / size;
    const std::uint64_t end = last == number ? std::min(slice.size, (step + 1) / 2 * block) : slice.size;
    if (last == number && step % 2 == 1) {
      const std::uint64_t start = step / 2 * block;
      std::memcpy(bytes(request.outputs[0]) + (slice.start + start) * size, redo_block(writer), (end - start) * size);
    }
    found.push_back({slice.start, end});
  }
  return found;
}

}  // namespace lockstep
