#include "wait_costs.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "waiting.hpp"

namespace lockstep {
namespace {

constexpr int num_rounds = 11;
constexpr std::size_t least_rounds = 3;
constexpr Nanoseconds falling_asleep = std::chrono::microseconds(300);
constexpr Nanoseconds longest_nap = std::chrono::milliseconds(5);

enum class Act : std::uint32_t { sleep, spin, end };

// What the two threads share; alone in its cache lines, or reading it would slow down the one who measures.
struct alignas(cache_line) Desk {
  std::atomic<std::uint32_t> act = 0;  // what the neighbour does; its futex
  std::atomic<std::int64_t> woken_at = 0;
  std::atomic<bool> is_there = false, has_failed = false;

  void tell(Act next) {
    act.store(static_cast<std::uint32_t>(next), std::memory_order_seq_cst);
    wake_all(act);
  }
};

bool move_to(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return ::sched_setaffinity(0, sizeof(set), &set) == 0;
}

void be_the_neighbour(Desk& desk, int cpu) {
  desk.has_failed = !move_to(cpu);
  desk.is_there = true;
  while (true) {
    const auto act = static_cast<Act>(desk.act.load(std::memory_order_acquire));
    if (act == Act::end) return;
    if (act == Act::sleep) {
      sleep_on(desk.act, static_cast<std::uint32_t>(Act::sleep), longest_nap);
      desk.woken_at.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
      continue;
    }
    spin(std::chrono::microseconds(20),
         [&] { return static_cast<Act>(desk.act.load(std::memory_order_acquire)) != Act::spin; });
  }
}

// A small matrix product, which keeps a core's vector units and first cache busy: the least time of several, because
// the first ones take twice as long until the processor has woken its vector units.
double multiply_us(std::vector<float>& sums, const std::vector<float>& factors) {
  double least = 1e9;
  for (int product = 0; product < 12; ++product) {
    const auto begun = Clock::now();
    for (int repeat = 0; repeat < 16; ++repeat) {
      for (const float factor : factors) {
        for (float& sum : sums) sum = sum * 0.5F + factor;
      }
    }
    least = std::min(least, std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
  }
  return least;
}

void stay_busy(Nanoseconds span) {
  const auto end = Clock::now() + span;
  spin(span, [&] { return Clock::now() >= end; });
}

struct Samples {
  std::vector<double> wakes_us, beside_sleep_us, beside_spin_us;
};

// One look at each of the three, in turn: what disturbs the machine disturbs them alike.
void take_samples(Desk& desk, Samples& samples, std::vector<float>& sums, const std::vector<float>& factors) {
  desk.tell(Act::sleep);
  stay_busy(falling_asleep);
  samples.beside_sleep_us.push_back(multiply_us(sums, factors));
  const auto called = Clock::now().time_since_epoch().count();
  desk.tell(Act::spin);
  stay_busy(falling_asleep);
  const auto woken = desk.woken_at.load(std::memory_order_acquire);
  if (woken > called) samples.wakes_us.push_back(static_cast<double>(woken - called) / 1e3);
  samples.beside_spin_us.push_back(multiply_us(sums, factors));
}

bool judge(Samples& samples, WaitCosts& costs) {
  if (samples.wakes_us.size() < least_rounds || samples.beside_spin_us.size() < least_rounds) return false;
  const auto middle = samples.wakes_us.begin() + static_cast<std::ptrdiff_t>(samples.wakes_us.size() / 2);
  std::nth_element(samples.wakes_us.begin(), middle, samples.wakes_us.end());
  // The least of each: what else runs here can only make one longer.
  const double alone = *std::min_element(samples.beside_sleep_us.begin(), samples.beside_sleep_us.end());
  const double beside = *std::min_element(samples.beside_spin_us.begin(), samples.beside_spin_us.end());
  if (alone <= 0) return false;
  costs = {*middle, beside / alone};
  return true;
}

}  // namespace

bool measure_wait_costs(int cpu, int other_cpu, Nanoseconds at_most, WaitCosts& costs) {
  const auto end = Clock::now() + at_most;
  Samples samples{};
  for (auto* times : {&samples.wakes_us, &samples.beside_sleep_us, &samples.beside_spin_us}) times->reserve(num_rounds);
  bool is_good = false;
  const auto measure = [&] {  // in a thread of its own: the caller stays where it is
    std::vector<float> sums(256, 1.0F), factors(64, 0.25F);
    Desk desk;
    std::thread neighbour([&] { be_the_neighbour(desk, other_cpu); });
    is_good = move_to(cpu);
    while (!desk.is_there && Clock::now() < end) offer_cpu();
    is_good = is_good && desk.is_there && !desk.has_failed;
    for (int round = 0; round < num_rounds && is_good && Clock::now() < end; ++round) {
      take_samples(desk, samples, sums, factors);
    }
    desk.tell(Act::end);
    neighbour.join();
  };
  try {
    std::thread([&] {
      try {
        measure();
      } catch (const std::exception&) {  // no memory, or no second thread
        is_good = false;
      }
    }).join();
  } catch (const std::system_error&) {  // no thread at all
    return false;
  }
  return is_good && judge(samples, costs);
}

}  // namespace lockstep
