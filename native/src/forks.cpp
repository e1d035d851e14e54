#include "forks.hpp"

#include <pthread.h>

#include <atomic>
#include <new>

#include "busy_groups.hpp"
#include "peer_process.hpp"

namespace samebits {
namespace {

std::atomic<std::uint32_t> forks = 0;

// In the new process, which has one thread. A thread that was not copied may hold the locks of the lists, and the
// groups in them are the parent's.
void begin_anew() {
  forks.fetch_add(1, std::memory_order_relaxed);
  new (&busy_groups()) BusyGroups;
  forget_peer_processes();
}

[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, begin_anew);

}  // namespace

std::uint32_t num_forks() { return forks.load(std::memory_order_relaxed); }

}  // namespace samebits
