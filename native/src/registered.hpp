// Ordinary memory of this process that other ranks can read and write where it is: its pages were moved into a shared
// memory, at the same addresses. See docs/design/0033.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "control.hpp"
#include "memory.hpp"

namespace lockstep {

// What this process has registered. At most a page at each end stays where it was, because others may use it, too.
// Thread-safe. A process that is forked gets copies of its own, as of all memory.
class Registered {
 public:
  static constexpr std::size_t least_bytes = 256 << 10;  // below, edges and looks cost more than copies
  static Registered& here();

  // Moves the whole pages of a range; nobody may write to it meanwhile. Its memory must not be freed before `remove`.
  // False where that cannot be done: it is no private memory, there is no room, malloc is none that is known to go on
  // with such pages.
  bool add(const void* data, std::size_t bytes);
  // Makes them private pages again, with what they hold.
  void remove(const void* data);
  // Where byte 0 of a registered range would lie in `memory`; what is between its edges does. 0: it is not registered,
  // or its memory was given back and is another one now.
  std::uint64_t find(const void* data, std::size_t bytes);
  // The descriptor of the shared memory; -1: nothing was registered yet.
  int descriptor();

  // The memory of another process, which holds that descriptor; null where it cannot be mapped. `unmap` it.
  static std::byte* map(std::int32_t process, int descriptor);
  static void unmap(std::byte* memory);

  struct Range {
    std::size_t bytes;   // as registered
    std::byte* first;    // the first whole page
    std::size_t length;  // of all whole pages
    std::uint64_t offset;
  };

 private:
  bool begin();
  std::uint64_t room_for(std::size_t length) const;
  bool is_here(const Range& range) const;
  void give_up(const Range& range);

  std::mutex mutex_;
  std::unique_ptr<Memory> memory_;
  std::map<const void*, Range> ranges_;
  std::map<std::uint64_t, std::size_t> used_;  // of the memory: offset and length; also of what cannot be given back
  int pages_ = -1;                             // /proc/self/pagemap
  bool is_impossible_ = false;
  friend struct AroundFork;
};

}  // namespace lockstep
