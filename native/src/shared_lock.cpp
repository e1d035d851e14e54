#include "shared_lock.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <system_error>
#include <thread>

// Of glibc 2.30, newer than what our wheels are built against. The clock of pthread_mutex_timedlock can be set back,
// and who waits then does not come back for as long.
extern "C" int pthread_mutex_clocklock(pthread_mutex_t*, clockid_t, const timespec*) noexcept __attribute__((weak));

namespace samebits {
namespace {

constexpr Nanoseconds shortest_pause = std::chrono::microseconds(1), longest_pause = std::chrono::milliseconds(1);

int look_until(pthread_mutex_t& mutex, Clock::time_point end) {
  auto pause = shortest_pause;
  int result = EBUSY;
  while (result == EBUSY && Clock::now() < end) {
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest_pause);
    result = pthread_mutex_trylock(&mutex);
  }
  return result;
}

#if defined(__SANITIZE_THREAD__)
constexpr bool can_wait = false;  // ThreadSanitizer does not know the function, and takes the lock for free
#else
constexpr bool can_wait = true;
#endif

int wait_for(pthread_mutex_t& mutex, Clock::time_point end) {
  if (!can_wait || pthread_mutex_clocklock == nullptr) return look_until(mutex, end);
  const std::int64_t since = Nanoseconds(end.time_since_epoch()).count();  // of CLOCK_MONOTONIC
  const timespec until{static_cast<time_t>(since / 1'000'000'000), static_cast<long>(since % 1'000'000'000)};
  return pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &until);
}

}  // namespace

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
  if (result == EBUSY) result = wait_for(mutex_, Clock::now() + at_most);
  if (result == 0) return Taken::yes;
  if (result == EOWNERDEAD) return Taken::from_the_dead;
  if (result == ETIMEDOUT || result == EBUSY) return Taken::no;
  throw std::system_error(result, std::generic_category(), "a lock between ranks");
}

void SharedLock::mended() { pthread_mutex_consistent(&mutex_); }

void SharedLock::release() { pthread_mutex_unlock(&mutex_); }

}  // namespace samebits
