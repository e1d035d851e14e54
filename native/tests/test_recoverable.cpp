// Sums over what they are made of, and real deaths at any moment of them: what is left is the sum or what it is made
// of, element by element, and each rank knows which.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "ranks.hpp"

using namespace lockstep;

namespace {

constexpr std::size_t most_ranks = 4;

// What the processes of a trial share.
struct Scene {
  std::atomic<bool> is_dead[most_ranks];
  std::atomic<std::size_t> num_stopped, num_broken;
  // Until so many have stopped.
  void stop(std::size_t wanted) {
    const auto end = Clock::now() + std::chrono::seconds(20);
    for (++num_stopped; num_stopped < wanted; ::usleep(100)) CHECK(Clock::now() < end);
  }
};

template <typename Made>
Made* shared() {
  void* const data = ::mmap(nullptr, sizeof(Made), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(data != MAP_FAILED);
  return new (data) Made{};
}

struct Plan {
  std::size_t world_size, victim;
  int dies_after_us;
  std::vector<std::uint8_t> leaves;
  std::vector<std::size_t> counts;
  std::size_t num_leaves() const {
    std::size_t sum = 0;
    for (const std::uint8_t one : leaves) sum += one;
    return sum;
  }
};

// Any number of 24 bits: a sum in another order has other bits.
float value(std::size_t leaf, std::size_t sum, std::size_t index) {
  std::uint64_t x = leaf * 0x9e3779b97f4a7c15u + sum * 0xbf58476d1ce4e5b9u + index * 0x94d049bb133111ebu;
  x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93u;
  return static_cast<float>(static_cast<std::int32_t>(x >> 40) - (1 << 23)) / (1 << 23);
}

std::vector<std::uint8_t> from_left(std::size_t num_leaves) {
  std::vector<std::uint8_t> program{0};
  for (std::size_t leaf = 1; leaf < num_leaves; ++leaf) {
    program.push_back(static_cast<std::uint8_t>(leaf));
    program.push_back(combine);
  }
  return program;
}

float expected(const Plan& plan, std::size_t sum, std::size_t index) {
  float total = value(0, sum, index);
  for (std::size_t leaf = 1; leaf < plan.num_leaves(); ++leaf) total += value(leaf, sum, index);
  return total * 0.5f;
}

// A rank without partial sums has room for the result only.
std::vector<std::vector<float*>> places_in(Group& group, const Plan& plan) {
  const std::size_t rows = std::max<std::size_t>(plan.leaves[group.rank()], 1);
  std::vector<std::vector<float*>> places;
  std::size_t most = 1;
  for (const std::uint8_t one : plan.leaves) most = std::max<std::size_t>(most, one);
  for (const std::size_t count : plan.counts) {
    const auto window = group.allocate(most * count * sizeof(float));
    places.emplace_back();
    for (std::size_t row = 0; row < rows; ++row)
      places.back().push_back(reinterpret_cast<float*>(window->region(group.rank())) + row * count);
  }
  return places;
}

Request recoverable(const Plan& plan, std::size_t rank, const std::vector<float*>& rows, std::size_t count) {
  Request request;
  request.kind = Kind::all_reduce;
  request.dtype = Dtype::float32;
  request.scale = Scale::multiply;
  request.factor = 0.5;
  request.count = count;
  request.program = from_left(plan.num_leaves());
  request.leaves = plan.leaves;
  request.is_recoverable = true;
  for (std::size_t leaf = 0; leaf < plan.leaves[rank]; ++leaf) request.inputs.push_back(rows[leaf]);
  request.outputs = {rows[0]};
  return request;
}

void check_what_is_left(Group& group, const Plan& plan, std::size_t sum, Operation& operation,
                        const std::vector<float*>& rows, Scene& scene) {
  const std::size_t rank = group.rank(), count = plan.counts[sum];
  std::size_t first = 0;
  for (std::size_t of = 0; of < rank; ++of) first += plan.leaves[of];
  std::vector<bool> is_summed(count);
  for (const auto& [start, size] : group.summed(operation)) {
    for (std::size_t index = start; index < start + size; ++index) is_summed[index] = true;
  }
  for (std::size_t index = 0; index < count; ++index) {
    if (is_summed[index]) CHECK(rows[0][index] == expected(plan, sum, index));
    for (std::size_t leaf = 0; leaf < plan.leaves[rank]; ++leaf) {
      if (leaf > 0 || !is_summed[index]) CHECK(rows[leaf][index] == value(first + leaf, sum, index));
    }
  }
  const auto done = std::count(is_summed.begin(), is_summed.end(), true);
  if (done != 0 && done != static_cast<std::ptrdiff_t>(count)) ++scene.num_broken;
}

void be_a_rank(std::byte* control, std::size_t rank, const Plan& plan, Scene& scene) {
  Settings settings;
  settings.patience = std::chrono::seconds(60);
  settings.tuning = short_spin(rank);
  settings.has_ended = [&](std::size_t peer) { return scene.is_dead[peer].load(); };
  Group group(control, rank, plan.world_size, std::move(settings));
  const auto places = places_in(group, plan);
  std::size_t first = 0;
  for (std::size_t of = 0; of < rank; ++of) first += plan.leaves[of];
  for (std::size_t sum = 0; sum < places.size(); ++sum) {
    for (std::size_t leaf = 0; leaf < plan.leaves[rank]; ++leaf) {
      for (std::size_t index = 0; index < plan.counts[sum]; ++index)
        places[sum][leaf][index] = value(first + leaf, sum, index);
    }
  }
  group.run(Request{});
  if (rank == plan.victim) {  // the alarm ends the process
    const itimerval timer{{0, 0}, {0, plan.dies_after_us}};
    CHECK(::setitimer(ITIMER_REAL, &timer, nullptr) == 0);
  }
  std::vector<std::shared_ptr<Operation>> operations;
  try {
    for (std::size_t sum = 0; sum < places.size(); ++sum)
      operations.push_back(group.begin(recoverable(plan, rank, places[sum], plan.counts[sum])));
    for (const auto& operation : operations) group.wait(*operation);
    group.run(Request{});
  } catch (const GroupError&) {
  }
  if (rank == plan.victim) std::_Exit(0);  // it was too late
  scene.stop(plan.world_size - 1);
  for (std::size_t sum = 0; sum < operations.size(); ++sum)
    check_what_is_left(group, plan, sum, *operations[sum], places[sum], scene);
  scene.stop(2 * (plan.world_size - 1));
}

// Whether a death left a sum half done.
bool one_dies(const Plan& plan) {
  const Block control(plan.world_size);
  Scene& scene = *shared<Scene>();
  std::vector<pid_t> processes;
  for (std::size_t rank = 0; rank < plan.world_size; ++rank) {
    const pid_t process = ::fork();
    CHECK(process >= 0);
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      be_a_rank(control.data(), rank, plan, scene);
      std::_Exit(0);
    }
    processes.push_back(process);
  }
  int status = 0;
  CHECK(::waitpid(processes[plan.victim], &status, 0) == processes[plan.victim]);
  CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM));
  scene.is_dead[plan.victim] = true;
  for (std::size_t rank = 0; rank < plan.world_size; ++rank) {
    if (rank == plan.victim) continue;
    CHECK(::waitpid(processes[rank], &status, 0) == processes[rank]);
    CHECK(status == 0);
  }
  const bool was_broken = scene.num_broken != 0;
  ::munmap(&scene, sizeof(Scene));
  return was_broken;
}

void what_a_death_leaves_is_known() {
  std::mt19937 random(7);
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  int num_broken = 0;
  for (int trial = 0; trial < 60; ++trial) {
    Plan plan;
    plan.world_size = 2 + below(3);
    plan.victim = below(plan.world_size);
    for (std::size_t rank = 0; rank < plan.world_size; ++rank)
      plan.leaves.push_back(static_cast<std::uint8_t>(rank == 0 ? 1 + below(2) : below(3)));
    for (std::size_t sum = 0; sum < 3; ++sum) plan.counts.push_back(sum == 1 ? 1 + below(300) : 1 + below(1 << 18));
    plan.dies_after_us = 1 + static_cast<int>(below(plan.world_size * 200));
    num_broken += one_dies(plan);
  }
  CHECK(num_broken > 0);  // otherwise it shows nothing
}

void a_sum_outside_of_windows_is_refused() {
  on_ranks(2, [](Group& group) {
    std::vector<float> data(5000, 1.0f);
    Request request = sum_of(data.data(), data.size());
    request.is_recoverable = true;
    std::string error;
    try {
      group.run(std::move(request));
    } catch (const GroupError& raised) {
      error = raised.what();
    }
    CHECK(error.find("only a sum in windows is recoverable") != std::string::npos);
  });
}

}  // namespace

int main() {
  what_a_death_leaves_is_known();
  a_sum_outside_of_windows_is_refused();
}
