// Waiting for other ranks: words that grow, the bell that wakes a sleeper, spinning, deadlines.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace samebits {

constexpr std::size_t cache_line = 128;  // two lines: neighbours are fetched in pairs

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

// Sleep while `word` is `expected`, at most this long; may return early. Works between processes.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanoseconds at_most);
void wake_all(std::atomic<std::uint32_t>& word);

// A counter with one writer. It only grows, and wraps around: compare with `has_reached`.
struct alignas(cache_line) Word {
  std::atomic<std::uint32_t> value;
};

inline bool has_reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

// Where a rank sleeps. It says for whom it waits, so the others need not wake it in vain.
struct alignas(cache_line) Bell {
  static constexpr std::uint32_t awake = 0, waits_for_any = 0xffffffff;
  std::atomic<std::uint32_t> rings;      // the futex
  std::atomic<std::uint32_t> waits_for;  // a rank + 1, or one of the above
  std::atomic<std::uint32_t> sleepers;   // threads of this rank that are asleep, or about to be

  // By the one who waits. First `lie_down`, then look once more whether there is something to wait for, then `sleep`
  // with what `lie_down` returned, then `get_up` in any case. Threads of one rank take turns in `lie_down` and
  // `get_up`.
  std::uint32_t lie_down(std::uint32_t peer_plus_one);
  void sleep(std::uint32_t rings_before, Nanoseconds at_most);
  void get_up();

  // By others, after the store that may be waited for and then a sequentially consistent fence.
  void ring_if_waiting_for(std::uint32_t rank) {
    const std::uint32_t whom = waits_for.load(std::memory_order_relaxed);
    if (whom == rank + 1 || whom == waits_for_any) ring();
  }
  void ring();
};

// Whoever else can run on this CPU runs first.
void offer_cpu();

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// Spin until `done()` or until `budget` has passed; returns whether it was done. A clock that stands still or goes
// back, as some have done when a virtual machine moved, ends it too: 32 pauses take 100 ns or more.
template <typename Time = Clock, typename Done>
bool spin(Nanoseconds budget, Done done) {
  typename Time::time_point end;
  for (std::int64_t looks = 0; looks <= 2 + budget.count() / 100; ++looks) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
    const auto now = Time::now();  // what comes at once needs no clock
    if (looks == 0) end = now + budget;
    if (now >= end) break;
  }
  return done();
}

// Let others run on this CPU until `done()`, at most this often; returns whether it was done.
template <typename Done>
bool yield(std::uint32_t times, Done done) {
  for (std::uint32_t i = 0; i < times; ++i) {
    offer_cpu();
    if (done()) return true;
  }
  return false;
}

}  // namespace samebits
