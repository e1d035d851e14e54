// A lock between processes that survives its owner: the kernel hands a dead owner's lock to the next one.
#pragma once

#include <pthread.h>

#include "waiting.hpp"

namespace samebits {

// Lives in shared memory. Zeros and a call of `initialise` by each process make a free lock.
class SharedLock {
 public:
  enum class Taken { no, yes, from_the_dead };

  // Throws std::system_error.
  void initialise();
  // Waits at most this long. After `from_the_dead` the lock is taken: mend what it protects, then call `mended`. A
  // process that dies before that leaves it to the next one. Throws std::system_error.
  Taken take(Nanoseconds at_most);
  void mended();
  void release();

 private:
  pthread_mutex_t mutex_;
};

}  // namespace samebits
