#include "shared_lock.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <system_error>

namespace lockstep {

// The words of a robust, process-shared mutex that are not zero are the same in every process. So a process that
// finds a memory of zeros may write them, before or after others have, and nobody has to be the first.
void SharedLock::initialise() {
  pthread_mutex_t ours;
  std::memset(static_cast<void*>(&ours), 0, sizeof ours);
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(&ours, &kind);
  pthread_mutexattr_destroy(&kind);
  if (error != 0) throw std::system_error(error, std::generic_category(), "pthread_mutex_init");
  static_assert(sizeof(pthread_mutex_t) % sizeof(std::uint32_t) == 0);
  for (std::size_t offset = 0; offset < sizeof ours; offset += sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, reinterpret_cast<const std::byte*>(&ours) + offset, sizeof word);
    auto* target = reinterpret_cast<std::uint32_t*>(reinterpret_cast<std::byte*>(&mutex_) + offset);
    if (word != 0) std::atomic_ref<std::uint32_t>(*target).store(word);
  }
}

SharedLock::Taken SharedLock::take(Nanoseconds at_most) {
  int result = pthread_mutex_trylock(&mutex_);
  if (result == EBUSY) {
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    const auto end = Nanoseconds(until.tv_nsec) + at_most;
    until.tv_sec += static_cast<time_t>(end.count() / 1'000'000'000);
    until.tv_nsec = static_cast<long>(end.count() % 1'000'000'000);
    result = pthread_mutex_timedlock(&mutex_, &until);
  }
  if (result == 0) return Taken::yes;
  if (result == EOWNERDEAD) return Taken::from_the_dead;
  if (result == ETIMEDOUT) return Taken::no;
  throw std::system_error(result, std::generic_category(), "a lock between ranks");
}

void SharedLock::mended() { pthread_mutex_consistent(&mutex_); }

void SharedLock::release() { pthread_mutex_unlock(&mutex_); }

}  // namespace lockstep
