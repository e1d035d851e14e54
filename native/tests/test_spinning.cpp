// Looking before sleeping: it ends whatever the clock does; and what it costs can be measured, or not.
#include <sched.h>

#include "checks.hpp"
#include "wait_costs.hpp"
#include "waiting.hpp"

using namespace lockstep;

namespace {

// A clock that shows what a virtual machine may see when it is moved.
template <int step_ns>
struct Odd {
  using time_point = Clock::time_point;
  static time_point now() {
    static time_point shown = Clock::time_point(std::chrono::hours(1));
    return shown += Nanoseconds(step_ns);
  }
};

template <typename Time>
std::int64_t looks_of(Nanoseconds budget) {
  std::int64_t looks = 0;
  CHECK(!spin<Time>(budget, [&] {
    ++looks;
    return false;
  }));
  return looks;
}

void a_spin_ends_although_the_clock_stands_still_or_goes_back() {
  constexpr auto budget = std::chrono::microseconds(30);
  for (const auto looks : {looks_of<Odd<0>>(budget), looks_of<Odd<-1'000'000'000>>(budget)}) {
    CHECK(looks > 32 && looks <= 32 * 304);
  }
  CHECK((looks_of<Odd<1'000'000'000>>(budget)) == 2 * 32 + 1);
  CHECK(looks_of<Clock>(Nanoseconds(0)) == 32 + 1);
}

void a_spin_ends_when_what_it_waits_for_comes() {
  int looks = 0;
  CHECK(spin(std::chrono::hours(1), [&] { return ++looks == 100; }));
  CHECK(yield(5, [&] { return ++looks == 103; }));
  CHECK(looks == 103);
  CHECK(!yield(0, [] { return true; }));
}

void costs_are_measured_on_cpus_that_are_there_only() {
  WaitCosts costs;
  for (const int missing : {-1, 100'000, CPU_SETSIZE - 1}) {
    CHECK(!measure_wait_costs(missing, 0, std::chrono::milliseconds(20), costs));
    CHECK(!measure_wait_costs(0, missing, std::chrono::milliseconds(20), costs));
  }
  CHECK(!measure_wait_costs(0, 1, Nanoseconds(-1), costs));
  CHECK(costs.wake_us == 0 && costs.slowed_by_spinning == 1);
  if (measure_wait_costs(0, 1, std::chrono::milliseconds(200), costs)) {
    CHECK(costs.wake_us > 0 && costs.slowed_by_spinning > 0);
  }
}

}  // namespace

int main() {
  a_spin_ends_although_the_clock_stands_still_or_goes_back();
  a_spin_ends_when_what_it_waits_for_comes();
  costs_are_measured_on_cpus_that_are_there_only();
}
