// The transport's numbers that depend on the machine. None of them changes a bit of a result.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace samebits {

// How a rank waits: it looks, then offers its CPU to others where it shares one, then sleeps. Each rank may have its
// own; see docs/design/shared-memory.md.
struct Waiting {
  std::chrono::nanoseconds spin = std::chrono::microseconds(30);  // look this long, pausing in between
  std::uint32_t yields = 4;                                       // offer the CPU this often, looking in between
  bool is_crowded = false;  // the ranks have more threads than CPUs; else only a rank seen on this CPU is offered it
};

// How tensors that lie in no window go through staging. The same on every rank of a group: rank 0 writes its own into
// the control block before it joins, and the others read them there.
struct Pieces {
  static constexpr std::uint32_t smallest = 128 << 10;  // 255 leaves of 64 elements of 8 bytes
  std::uint32_t piece_bytes = 256 << 10;                // what goes through one buffer of staging at a time
  std::uint32_t whole_bytes = 32 << 10;  // tensors up to this size are added up by every rank: one step fewer
  // What is moved and not added up goes in smaller pieces, as copying one in and the one before it out overlap: in this
  // many, of at most this size.
  static constexpr std::uint64_t moved_pieces = 8, least_moved = 32 << 10;
  std::uint32_t moved_bytes = 128 << 10;
  // What two ranks exchange goes through blocks of this size that change hands; see docs/design/shared-memory.md.
  static constexpr std::uint32_t largest_swapped = 256 << 10;
  static constexpr std::uint64_t swapped_pieces = 2, least_swapped = 64 << 10;
  std::uint32_t swapped_bytes = 128 << 10;

  // The room of a buffer: every rank knows it before it can read what rank 0 has chosen. Untouched pages cost nothing.
  static constexpr std::uint32_t largest(std::size_t world_size) {
    const std::size_t each = (std::size_t{16} << 20) / world_size / 4096 * 4096;
    return static_cast<std::uint32_t>(std::clamp<std::size_t>(each, 256 << 10, 1 << 20));
  }
  Pieces within_limits(std::size_t world_size) const {
    return {std::clamp(piece_bytes, smallest, largest(world_size)) / 4096 * 4096, whole_bytes,
            std::clamp(moved_bytes, 4096u, largest(world_size)) / 4096 * 4096,
            std::clamp(swapped_bytes, 4096u, largest_swapped) / 4096 * 4096};
  }
};

struct Tuning {
  Waiting waiting;
  Pieces pieces;
  // Arrays that together have this many bytes or more are written past the caches; of the whole process. Measured on an
  // L3 of 32 MiB: faster from here on even if the result is read right afterwards; at a quarter of it, a copy was
  // slower.
  std::size_t streamed_from_bytes = std::size_t{32} << 20;
};

}  // namespace samebits
