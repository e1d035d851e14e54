#include "table.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <utility>

#include "shared_lock.hpp"

namespace samebits {
namespace {

constexpr std::size_t num_slots = 1024, granule = 64, num_sizes = 32;
constexpr auto slice = std::chrono::milliseconds(50);

// Where the keys of one hash begin, and where those that wait for one of them sleep.
struct Slot {
  std::atomic<std::uint32_t> first;
  std::atomic<std::uint32_t> changes;   // the futex
  std::atomic<std::uint32_t> sleepers;  // one killed in its sleep stays counted, and is woken in vain
};

// FNV-1a: the same in every process.
std::size_t slot_of(std::string_view key) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char letter : key) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ull;
  return (hash ^ (hash >> 32)) % num_slots;
}

}  // namespace

// An entry, or a piece of free space; it takes a number of granules. Place 0 is the header, so 0 means none.
struct TableEntry {
  std::atomic<std::uint32_t> next;
  std::uint32_t num_granules;
  std::uint64_t key_bytes;
  std::uint64_t value_bytes;

  char* bytes() { return reinterpret_cast<char*>(this + 1); }
  std::string_view key() { return {bytes(), key_bytes}; }
  std::string_view value() { return {bytes() + key_bytes, value_bytes}; }
};

// `slots` is the truth. Everything between it and the lock can be rebuilt from it, and is when somebody has died.
struct TableHeader {
  SharedLock lock;
  std::uint64_t repairs;
  std::uint64_t num_keys;
  std::uint32_t unused_from;
  std::uint32_t free[num_sizes];  // pieces of 2^i granules
  alignas(granule) Slot slots[num_slots];
};

namespace {
constexpr std::uint32_t first_place = (sizeof(TableHeader) + granule - 1) / granule;
}

// The lock, from construction to destruction. `held()` is false when it could not be taken by the deadline.
class Table::Locked {
 public:
  explicit Locked(Table& table, Clock::time_point deadline = Clock::time_point::max()) : table_(table) {
    auto taken = lock().take(slice);
    while (taken == SharedLock::Taken::no) {  // the owner is stopped, perhaps
      table.while_waiting_();
      if (Clock::now() > deadline) return;
      taken = lock().take(slice);
    }
    if (taken == SharedLock::Taken::from_the_dead) {
      ++table.header().repairs;
      try {
        table.take_stock();
      } catch (...) {  // no memory of its own: the books say that nothing is free, which is safe
        lock().mended();
        lock().release();
        throw;
      }
      lock().mended();
    }
    held_ = true;
  }
  ~Locked() {
    if (held_) lock().release();
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  bool held() const { return held_; }

 private:
  SharedLock& lock() const { return table_.header().lock; }
  Table& table_;
  bool held_ = false;
};

Table::Table(std::shared_ptr<Memory> memory, std::function<void()> while_waiting)
    : memory_(std::move(memory)), while_waiting_(std::move(while_waiting)) {
  const std::size_t limit = std::numeric_limits<std::uint32_t>::max();
  num_granules_ = static_cast<std::uint32_t>(std::min(memory_->size() / granule, limit));
  if (num_granules_ <= first_place) throw std::invalid_argument("this memory is too small for a store");
  header().lock.initialise();
}

TableHeader& Table::header() const { return *reinterpret_cast<TableHeader*>(memory_->data()); }

TableEntry* Table::at(std::uint32_t place) const {
  return reinterpret_cast<TableEntry*>(memory_->data() + std::size_t{place} * granule);
}

// The word that leads to the key's entry, or the one at the end of its chain.
std::atomic<std::uint32_t>* Table::link_to(std::string_view key) const {
  std::atomic<std::uint32_t>* link = &header().slots[slot_of(key)].first;
  while (const std::uint32_t place = link->load(std::memory_order_acquire)) {
    if (at(place)->key() == key) break;
    link = &at(place)->next;
  }
  return link;
}

std::string_view Table::value_at(const std::atomic<std::uint32_t>& link) const {
  const std::uint32_t place = link.load(std::memory_order_acquire);
  return place == 0 ? std::string_view() : at(place)->value();
}

// A new entry beside the old one, which it replaces with one store.
void Table::replace(std::atomic<std::uint32_t>& link, std::string_view key, std::string_view value) {
  const std::uint32_t place = allocate(key.size() + value.size());
  TableEntry* entry = at(place);
  entry->key_bytes = key.size();
  entry->value_bytes = value.size();
  std::copy(key.begin(), key.end(), entry->bytes());
  std::copy(value.begin(), value.end(), entry->bytes() + key.size());
  const std::uint32_t old = link.load(std::memory_order_relaxed);
  entry->next.store(old == 0 ? 0 : at(old)->next.load(std::memory_order_relaxed), std::memory_order_relaxed);
  link.store(place, std::memory_order_release);
  if (old == 0) {
    ++header().num_keys;
  } else {
    give_back(old, at(old)->num_granules);
  }
  changed(key);
}

void Table::changed(std::string_view key) const {
  Slot& slot = header().slots[slot_of(key)];
  slot.changes.fetch_add(1, std::memory_order_seq_cst);
  if (slot.sleepers.load(std::memory_order_seq_cst) != 0) wake_all(slot.changes);
}

// Space

std::uint32_t Table::allocate(std::size_t num_bytes) {
  const std::size_t wanted = (sizeof(TableEntry) + num_bytes + granule - 1) / granule;
  TableHeader& all = header();
  const std::size_t size = std::bit_width(wanted - 1);  // 2^size granules hold it
  for (const bool again : {false, true}) {
    for (std::size_t larger = size; larger < num_sizes; ++larger) {
      const std::uint32_t place = all.free[larger];
      if (place == 0) continue;
      all.free[larger] = at(place)->next.load(std::memory_order_relaxed);
      at(place)->num_granules = static_cast<std::uint32_t>(std::size_t{1} << size);
      give_back(place + (1u << size), (1u << larger) - (1u << size));
      return place;
    }
    const std::uint32_t place = std::max(all.unused_from, first_place);
    if (size < num_sizes && (std::size_t{1} << size) <= num_granules_ - place) {
      at(place)->num_granules = 1u << size;
      all.unused_from = place + (1u << size);
      return place;
    }
    if (!again) take_stock();  // merges free pieces
  }
  throw std::runtime_error("the ranks' store is full: " + std::to_string(all.num_keys) + " keys fill its " +
                           std::to_string(memory_->size() >> 10) + " KiB, and there is no room for " +
                           std::to_string(num_bytes) + " bytes. Send large data by a collective, not through it");
}

// In pieces of a power of two, large ones first.
void Table::give_back(std::uint32_t place, std::uint32_t num_granules) {
  while (num_granules != 0) {
    const std::uint32_t size = static_cast<std::uint32_t>(std::bit_width(num_granules)) - 1;
    at(place)->next.store(header().free[size], std::memory_order_relaxed);
    header().free[size] = place;
    place += 1u << size;
    num_granules -= 1u << size;
  }
}

// Find out from the slots what is free, whatever the books say.
void Table::take_stock() {
  TableHeader& all = header();
  std::fill(std::begin(all.free), std::end(all.free), 0);
  all.unused_from = num_granules_;  // until all is known
  std::vector<std::pair<std::uint32_t, std::uint32_t>> used;
  for (Slot& slot : all.slots) {
    for (std::uint32_t place = slot.first; place != 0; place = at(place)->next) {
      used.emplace_back(place, at(place)->num_granules);
    }
  }
  std::sort(used.begin(), used.end());
  all.num_keys = used.size();
  std::uint32_t end = first_place;
  for (const auto& [place, num_granules] : used) {
    give_back(end, place - end);
    end = place + num_granules;
  }
  all.unused_from = end;
}

// What users call

void Table::set(std::string_view key, std::string_view value) {
  const Locked locked(*this);
  replace(*link_to(key), key, value);
}

void Table::append(std::string_view key, std::string_view value) {
  const Locked locked(*this);
  auto* link = link_to(key);
  replace(*link, key, std::string(value_at(*link)).append(value));
}

std::int64_t Table::add(std::string_view key, std::int64_t amount) {
  const Locked locked(*this);
  auto* link = link_to(key);
  const std::string_view text = value_at(*link);
  std::int64_t before = 0;
  if (link->load() != 0) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), before);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw std::invalid_argument("the value of " + std::string(key) + " in the ranks' store is not a whole number");
    }
  }
  const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(before) + static_cast<std::uint64_t>(amount));
  replace(*link, key, std::to_string(sum));
  return sum;
}

std::string Table::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const Locked locked(*this);
  auto* link = link_to(key);
  const bool there = link->load() != 0;
  if (there ? value_at(*link) != expected : !expected.empty()) return std::string(there ? value_at(*link) : expected);
  replace(*link, key, desired);
  return std::string(desired);
}

bool Table::remove(std::string_view key) {
  const Locked locked(*this);
  auto* link = link_to(key);
  const std::uint32_t place = link->load();
  if (place == 0) return false;
  link->store(at(place)->next.load(), std::memory_order_release);
  --header().num_keys;
  give_back(place, at(place)->num_granules);
  return true;
}

std::optional<std::string> Table::find(std::string_view key) {
  const Locked locked(*this);
  const auto* link = link_to(key);
  if (link->load() == 0) return std::nullopt;
  return std::string(value_at(*link));
}

std::optional<std::vector<std::string>> Table::find_all(const std::vector<std::string>& keys) {
  std::vector<std::string> found;
  found.reserve(keys.size());
  const Locked locked(*this);
  for (const std::string& key : keys) {
    const auto* link = link_to(key);
    if (link->load() == 0) return std::nullopt;
    found.emplace_back(value_at(*link));
  }
  return found;
}

// The first of these keys that is not there; null when all are. Under the lock.
const std::string* Table::missing(const std::vector<std::string>& keys) {
  const auto is_missing = [&](const std::string& key) { return link_to(key)->load() == 0; };
  const auto found = std::find_if(keys.begin(), keys.end(), is_missing);
  return found == keys.end() ? nullptr : &*found;
}

bool Table::has_all(const std::vector<std::string>& keys) {
  const Locked locked(*this);
  return missing(keys) == nullptr;
}

bool Table::wait(const std::vector<std::string>& keys, Nanoseconds patience) {
  const auto now = Clock::now();
  const auto deadline = patience < Clock::time_point::max() - now ? now + patience : Clock::time_point::max();
  while (true) {
    Slot* slot = nullptr;
    std::uint32_t before = 0;
    {
      const Locked locked(*this, deadline);
      if (!locked.held()) return false;
      const std::string* key = missing(keys);
      if (key == nullptr) return true;
      // A process that publishes after this takes the lock after us, and sees a sleeper.
      slot = &header().slots[slot_of(*key)];
      slot->sleepers.fetch_add(1, std::memory_order_seq_cst);
      before = slot->changes.load(std::memory_order_seq_cst);
    }
    const auto left = deadline - Clock::now();
    if (left > Nanoseconds(0)) sleep_on(slot->changes, before, std::min<Nanoseconds>(left, slice));
    slot->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    while_waiting_();
    if (Clock::now() >= deadline) return has_all(keys);
  }
}

std::uint64_t Table::num_keys() {
  const Locked locked(*this);
  return header().num_keys;
}

std::vector<std::string> Table::keys() {
  const Locked locked(*this);
  std::vector<std::string> found;
  for (Slot& slot : header().slots) {
    for (std::uint32_t place = slot.first; place != 0; place = at(place)->next) found.emplace_back(at(place)->key());
  }
  return found;
}

std::uint64_t Table::repairs() {
  const Locked locked(*this);
  return header().repairs;
}

}  // namespace samebits
