// A key-value store in shared memory: what torch.distributed calls a store. See docs/design/process-group.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory.hpp"
#include "waiting.hpp"

namespace samebits {

struct TableHeader;
struct TableEntry;

// One process's view of a table. A memory full of zeros is an empty table; any number of processes and threads may use
// it. An update is published by one store, so a process that is killed at any instruction leaves the old state or the
// new one; a lock that it held passes to the next one, which puts the bookkeeping right.
//
// `while_waiting` is called now and then by a waiting thread, without the lock; what it throws, the call throws.
class Table {
 public:
  // Throws std::invalid_argument when the memory is too small for an empty table.
  explicit Table(std::shared_ptr<Memory> memory, std::function<void()> while_waiting = [] {});

  // Throws std::runtime_error when there is no room; the table is as it was.
  void set(std::string_view key, std::string_view value);
  void append(std::string_view key, std::string_view value);
  // The sum of `amount` and the decimal number at the key (0 when there is none), which is stored there.
  // Throws std::invalid_argument when something other than a number is there.
  std::int64_t add(std::string_view key, std::int64_t amount);
  // Writes `desired` if `expected` is there, or if nothing is there and `expected` is empty. Returns what is there
  // then; where nothing is there and `expected` is not empty, `expected`, as torch's stores do.
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  bool remove(std::string_view key);

  std::optional<std::string> find(std::string_view key);
  // What is at all these keys at once; nothing when one is missing.
  std::optional<std::vector<std::string>> find_all(const std::vector<std::string>& keys);
  bool has_all(const std::vector<std::string>& keys);
  // Waits until all keys are there at once; false when that took longer than `patience`.
  bool wait(const std::vector<std::string>& keys, Nanoseconds patience);
  std::uint64_t num_keys();
  std::vector<std::string> keys();
  // How often somebody died holding the lock.
  std::uint64_t repairs();

 private:
  class Locked;
  TableHeader& header() const;
  TableEntry* at(std::uint32_t place) const;
  std::atomic<std::uint32_t>* link_to(std::string_view key) const;
  std::string_view value_at(const std::atomic<std::uint32_t>& link) const;
  void replace(std::atomic<std::uint32_t>& link, std::string_view key, std::string_view value);
  void changed(std::string_view key) const;
  const std::string* missing(const std::vector<std::string>& keys);
  std::uint32_t allocate(std::size_t num_bytes);
  void give_back(std::uint32_t place, std::uint32_t num_granules);
  void take_stock();

  std::shared_ptr<Memory> memory_;
  std::uint32_t num_granules_;
  std::function<void()> while_waiting_;
};

}  // namespace samebits
