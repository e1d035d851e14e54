// The layout of a group's control block: what its ranks share besides windows. A block full of zeros is a new one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "kernels/kernels.hpp"
#include "tuning.hpp"
#include "waiting.hpp"

namespace samebits {

constexpr std::uint32_t control_magic = 0x4c6b530d;  // changes with the layout
constexpr std::size_t num_rows = 16;
constexpr std::size_t payload_bytes = 4096;
constexpr std::size_t num_buffers = 4;  // of staging; see docs/design/shared-memory.md, "Four buffers"
constexpr std::size_t max_places = 9;
constexpr std::size_t text_bytes = 512;

enum class Kind : std::uint8_t {
  barrier,
  all_reduce,
  reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  gather,
  scatter,
  all_to_all,
  allocate,
  new_group
};

// What must be the same on every rank, compared as bytes.
struct Description {
  std::uint64_t count;         // elements; the meaning depends on the kind
  std::uint64_t program_hash;  // of the order of the sum
  std::uint64_t shape;         // shape.hpp; of a new group: a hash of its ranks
  double factor;
  std::uint32_t number;
  std::int32_t root;
  Kind kind;
  Dtype dtype;
  ReduceOp op;
  Scale scale;
  std::uint32_t padding;
};
static_assert(sizeof(Description) == 48);

// Where the others find a tensor: in a window of the group, or nowhere.
struct Place {
  static constexpr std::uint32_t elsewhere = 0;
  std::uint32_t window;  // its number, from 1
  std::uint32_t padding;
  std::uint64_t offset;
};

struct alignas(cache_line) Row {
  Description description;
  std::uint64_t label;       // of the call; see site.hpp
  std::uint16_t all_placed;  // all tensors of this rank lie in windows
  std::uint16_t is_crowded;  // the ranks have more threads than CPUs, as far as this one knows
  std::uint32_t num_inputs;
  Place places[max_places];  // inputs, then the output
  std::uint32_t verdict;     // 1: this rank finds that calls in another order belong together
  char where[236];           // the source line, where it was known when the operation began; with a verdict, the lines
  alignas(cache_line) std::byte payload[payload_bytes];
};

struct RankBlock {
  Word arrived;  // see docs/design/shared-memory.md, "Three words per rank"
  Word pieces;
  Word worked;
  Word judged;
  Bell bell;
  alignas(cache_line) std::atomic<std::uint32_t> joined;  // control_magic, once this rank is there
  std::atomic<std::uint32_t> is_marking;  // it has marked the memory (Memory::mark); written before `process`
  std::atomic<std::uint32_t> left;
  std::atomic<std::uint32_t> told;          // `text` says where this rank was when descriptions differed
  std::atomic<std::int32_t> process;        // 0: it has not come yet, and cannot be watched
  std::atomic<std::int32_t> core_plus_one;  // where it ran when it last said something; 0: unknown
  char text[text_bytes];
};

struct Header {
  std::atomic<std::uint32_t> broken;  // 0: no; 1: somebody is writing `reason`; 2: it is written
  std::int32_t broken_kind;
  Pieces pieces;  // written by rank 0 before it says that it has joined
  char reason[2 * text_bytes];
  std::atomic<std::uint32_t> num_joined;  // the futex of those that wait until all have; the last one wakes them
};

// Leaves out what does not fit, by whole letters: half of one is not UTF-8, and Python would refuse it all.
inline void write_text(char* target, std::size_t size, const std::string& text) {
  std::size_t length = std::min(size - 1, text.size());
  while (length != 0 && length < text.size() && (text[length] & 0xc0) == 0x80) --length;
  std::memcpy(target, text.data(), length);
  target[length] = 0;
}

constexpr std::size_t max_blocks = 256;

// One direction between two ranks. `written` and `read` count bytes since the beginning. The bytes lie in blocks, of
// which the sender takes the one that was read last: it is still in a cache.
struct alignas(cache_line) Ring {
  std::atomic<std::uint64_t> written;
  alignas(cache_line) std::atomic<std::uint64_t> read;
  alignas(cache_line) std::uint16_t places[max_blocks];  // where block n lies, at n modulo their number
  // bytes follow
};

// Where the parts of a block for `world_size` ranks begin, in bytes.
struct Layout {
  std::size_t world_size, buffer_bytes, ring_bytes;
  static Layout for_ranks(std::size_t world_size) {
    // What fits into a ring is on its way while the sender computes. Untouched pages cost nothing.
    const std::size_t each = (std::size_t{32} << 20) / (world_size * world_size) / large_block * large_block;
    return {world_size, Pieces::largest(world_size),
            std::clamp<std::size_t>(each, std::size_t{64} << 10, std::size_t{8} << 20)};
  }
  std::size_t ranks() const { return 4096; }
  std::size_t rows() const { return up(ranks() + world_size * sizeof(RankBlock)); }
  std::size_t staging() const { return up(rows() + world_size * num_rows * sizeof(Row)); }
  std::size_t rings() const { return up(staging() + world_size * num_buffers * buffer_bytes); }
  std::size_t block_bytes() const { return ring_bytes >= 8 * large_block ? large_block : ring_bytes / 8; }
  std::size_t num_blocks() const { return ring_bytes / block_bytes(); }
  std::size_t ring_stride() const { return up(sizeof(Ring) + ring_bytes); }
  std::size_t swapped() const { return rings() + world_size * world_size * ring_stride(); }
  std::size_t total() const { return swapped() + (world_size == 2 ? num_buffers * Pieces::largest_swapped : 0); }

 private:
  static constexpr std::size_t large_block = 32 * 1024;  // a copy into it and one out of it overlap, in the caches
  static std::size_t up(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
};
static_assert(sizeof(Header) <= 4096);
static_assert((std::size_t{8} << 20) / max_blocks == 32 * 1024);

}  // namespace samebits
