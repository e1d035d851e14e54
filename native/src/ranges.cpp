// Sums of which each rank wants, or has, a range of its own: the part inside a node of a sum over several.

#include <algorithm>
#include <cstring>

#include "algorithms.hpp"

namespace samebits {

// Every rank adds up what it wants of everybody's tensors, for itself.
Task Algorithms::reduce_range() {
  const Range mine = *request.range;
  std::vector<const void*> inputs;
  const auto look_at = [&](const auto& leaf_at, std::uint64_t start) {
    inputs.clear();
    for (std::size_t peer = 0; peer < world; ++peer) {
      for (std::size_t leaf = 0; leaf < leaves(peer); ++leaf) inputs.push_back(leaf_at(peer, leaf) + start * size);
    }
  };
  if (everyone_placed()) {
    void* const target = mine.output;
    look_at([&](std::size_t peer, std::size_t leaf) { return placed(peer, leaf); }, mine.start);
    if (mine.size != 0) samebits::reduce(reduction(), inputs, {&target, 1}, mine.size);
    has_worked();
    co_await everyone(Counter::worked, number);
    trust_windows();
    co_return;
  }
  const std::uint64_t capacity = group.pieces_.piece_bytes / most_leaves() / size / 64 * 64;
  const std::uint64_t num_pieces = (request.count + capacity - 1) / capacity;
  const std::uint32_t first = take_pieces(num_pieces);
  const auto stage = [&](std::uint64_t index) {
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, count = std::min(capacity, request.count - start);
    for (std::size_t leaf = 0; leaf < leaves(rank); ++leaf) {
      std::memcpy(staging(rank, piece) + leaf * capacity * size, bytes(request.inputs[leaf]) + start * size,
                  count * size);
    }
    set_pieces(2 * piece);
  };
  if (num_pieces > 0) stage(0);
  for (std::uint64_t index = 0; index < num_pieces; ++index) {
    if (index + 1 < num_pieces) stage(index + 1);
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, end = std::min(request.count, start + capacity);
    co_await everyone(Counter::pieces, 2 * piece);
    const std::uint64_t low = std::max(start, mine.start), high = std::min(end, mine.start + mine.size);
    if (low >= high) continue;
    look_at([&](std::size_t peer, std::size_t leaf) { return staging(peer, piece) + leaf * capacity * size; },
            low - start);
    void* const target = bytes(mine.output) + (low - mine.start) * size;
    samebits::reduce(reduction(), inputs, {&target, 1}, high - low);
  }
  has_worked();
}

// Every rank adds up what only it has, and everybody gets all of it.
Task Algorithms::spread_range() {
  const Range mine = *request.range;
  std::vector<const void*> inputs(request.inputs.begin(), request.inputs.end());
  std::vector<void*> outputs;
  if (everyone_placed()) {
    for (std::size_t peer = 0; peer < world; ++peer) outputs.push_back(placed(peer, 0) + mine.start * size);
    samebits::reduce(reduction(), inputs, outputs, mine.size);
    has_worked();
    co_await everyone(Counter::worked, number);
    trust_windows();
    co_return;
  }
  const auto part = [&](const std::byte* range, std::uint64_t start, std::uint64_t end) {
    std::uint64_t bounds[2];
    std::memcpy(bounds, range, sizeof(bounds));
    const std::uint64_t low = std::max(start, bounds[0]);
    return Slice{low, std::max(low, std::min(end, bounds[0] + bounds[1])) - low};
  };
  const std::uint64_t capacity = group.pieces_.piece_bytes / size;
  const std::uint64_t num_pieces = (request.count + capacity - 1) / capacity;
  const std::uint32_t first = take_pieces(num_pieces);
  const auto end_of = [&](std::uint64_t index) { return std::min(request.count, (index + 1) * capacity); };
  const auto stage = [&](std::uint64_t index) {
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity;
    const Slice slice = part(row(rank).payload, start, end_of(index));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = bytes(request.inputs[i]) + (slice.start - mine.start) * size;
    }
    outputs = {bytes(request.outputs[0]) + slice.start * size, staging(rank, piece) + (slice.start - start) * size};
    if (slice.size != 0) samebits::reduce(reduction(), inputs, outputs, slice.size);
    set_pieces(2 * piece);
  };
  if (num_pieces > 0) stage(0);
  for (std::uint64_t index = 0; index < num_pieces; ++index) {
    if (index + 1 < num_pieces) stage(index + 1);
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity;
    co_await everyone(Counter::pieces, 2 * piece);
    for (std::size_t peer = 0; peer < world; ++peer) {
      const Slice slice = part(row(peer).payload, start, end_of(index));
      if (peer == rank || slice.size == 0) continue;
      std::memcpy(bytes(request.outputs[0]) + slice.start * size, staging(peer, piece) + (slice.start - start) * size,
                  slice.size * size);
    }
  }
  has_worked();
}

}  // namespace samebits
