#include "waiting.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace samebits {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t expected, Nanoseconds at_most) {
  const timespec span{static_cast<time_t>(at_most.count() / 1'000'000'000),
                      static_cast<long>(at_most.count() % 1'000'000'000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &span, nullptr, 0);
}

void offer_cpu() { ::sched_yield(); }

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t Bell::lie_down(std::uint32_t peer_plus_one) {
  // A second thread of this rank may wait for somebody else: then anybody wakes both.
  const bool alone = sleepers.fetch_add(1, std::memory_order_seq_cst) == 0;
  const std::uint32_t before = rings.load(std::memory_order_seq_cst);
  waits_for.store(alone ? peer_plus_one : waits_for_any, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return before;
}

void Bell::sleep(std::uint32_t rings_before, Nanoseconds at_most) { sleep_on(rings, rings_before, at_most); }

void Bell::get_up() {
  // Others of this rank that are still asleep wait for anybody; they look again when they wake.
  if (sleepers.fetch_sub(1, std::memory_order_seq_cst) == 1) waits_for.store(awake, std::memory_order_seq_cst);
}

void Bell::ring() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  wake_all(rings);
}

}  // namespace samebits
