// What waiting costs on this machine, measured: how a rank should wait follows from it (docs/design/0032).
#pragma once

#include <chrono>

namespace lockstep {

struct WaitCosts {
  double wake_us = 0;  // from the wake-up call to the first instruction of one that has slept for a while
  // How many times as long a core's work takes while its neighbour spins as while it sleeps: 1 on cores of their own.
  double slowed_by_spinning = 1;
};

// Measures with two threads on these CPUs, on an otherwise idle machine for some 20 ms, and never longer than
// `at_most`. False when there was not enough to go by: the CPUs are not this process's, no threads, a busy machine.
bool measure_wait_costs(int cpu, int other_cpu, std::chrono::nanoseconds at_most, WaitCosts& costs);

}  // namespace lockstep
