// Looking before sleeping: it ends whatever the clock does.
#include "checks.hpp"
#include "waiting.hpp"

using namespace samebits;

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

}  // namespace

int main() {
  a_spin_ends_although_the_clock_stands_still_or_goes_back();
  a_spin_ends_when_what_it_waits_for_comes();
}
