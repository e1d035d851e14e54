// The lock between processes: how long one waits for it, and whose it is when its owner dies.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "checks.hpp"
#include "shared_lock.hpp"

using namespace samebits;
using namespace std::chrono_literals;
using Taken = SharedLock::Taken;

namespace {

SharedLock& new_lock() {
  void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  auto& lock = *static_cast<SharedLock*>(memory);  // zeros, as in a new shared memory
  lock.initialise();
  return lock;
}

// A process that holds the lock until it is killed.
pid_t holder(SharedLock& lock) {
  int ready[2];
  CHECK(::pipe(ready) == 0);
  const pid_t process = ::fork();
  if (process == 0) {
    const bool has = lock.take(1s) == Taken::yes;
    if (::write(ready[1], &has, 1) != 1 || !has) ::_exit(1);
    for (;;) ::pause();
  }
  CHECK(process > 0);
  bool has = false;
  CHECK(::read(ready[0], &has, 1) == 1 && has);
  ::close(ready[0]);
  ::close(ready[1]);
  return process;
}

void end(pid_t process) {
  ::kill(process, SIGKILL);
  CHECK(::waitpid(process, nullptr, 0) == process);
}

void one_waits_no_shorter_than_asked_and_not_forever() {
  SharedLock& lock = new_lock();
  const pid_t process = holder(lock);
  for (const auto at_most : {Nanoseconds(0), Nanoseconds(3ms), Nanoseconds(120ms)}) {
    const auto begin = Clock::now();
    CHECK(lock.take(at_most) == Taken::no);
    CHECK(Clock::now() - begin >= at_most);
  }
  end(process);
  CHECK(lock.take(0s) == Taken::from_the_dead);
  lock.mended();
  lock.release();
  CHECK(lock.take(0s) == Taken::yes);
  lock.release();
}

void the_lock_of_one_that_dies_comes_to_who_waits() {
  SharedLock& lock = new_lock();
  const pid_t process = holder(lock);
  std::thread killer([&] {
    std::this_thread::sleep_for(20ms);
    end(process);
  });
  CHECK(lock.take(60s) == Taken::from_the_dead);
  killer.join();
  lock.mended();
  lock.release();
}

void one_at_a_time_has_it() {
  SharedLock& lock = new_lock();
  int number = 0;
  std::thread threads[4];
  for (auto& thread : threads) {
    thread = std::thread([&] {
      for (int i = 0; i < 2000; ++i) {
        while (lock.take(1ms) != Taken::yes) {
        }
        ++number;
        lock.release();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(number == 8000);
}

}  // namespace

int main() {
  one_waits_no_shorter_than_asked_and_not_forever();
  the_lock_of_one_that_dies_comes_to_who_waits();
  one_at_a_time_has_it();
  return 0;
}
