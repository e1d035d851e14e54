// What a rank is told when another one is gone, late or done, and what happens to its operations then.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "ranks.hpp"

using namespace lockstep;

namespace {

// Two or more ranks whose `has_ended` and `while_waiting` the test decides.
struct Scene {
  std::atomic<bool> is_dead[3] = {};
  std::atomic<int> looks = 0;  // how often rank 0 has looked around
  std::atomic<int> stage = 0;
  std::atomic<std::size_t> num_joined = 0;
  std::function<void()> while_others_wait = [] {};
  void reach(int wanted) const {
    while (stage < wanted) std::this_thread::yield();
  }
  void play(std::size_t world_size, const std::function<void(Group&)>& body) {
    Block block(world_size);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        Settings settings;
        settings.patience = std::chrono::seconds(5);
        settings.has_ended = [this](std::size_t peer) { return is_dead[peer].load(); };
        settings.while_waiting = [this, rank] { rank == 0 ? void(++looks) : while_others_wait(); };
        Group group(block.data(), rank, world_size, std::move(settings));
        ++num_joined;
        while (num_joined < world_size) std::this_thread::yield();  // nobody breaks the group before all are in
        body(group);
      });
    }
    for (auto& thread : threads) thread.join();
  }
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const GroupError& error) {
    return error.what();
  }
  return "";
}

Request sum_of(std::vector<float>& data) {
  Request request;
  request.kind = Kind::all_reduce;
  request.dtype = Dtype::float32;
  request.count = data.size();
  request.inputs = {data.data()};
  request.outputs = {data.data()};
  return request;
}

// A ring with less room than a header holds is not one that could go on.
void an_almost_full_ring_does_not_hide_that_its_reader_is_dead() {
  Scene scene;
  std::string error;
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) return scene.reach(1);
    const std::size_t header = 24, left = 8;
    std::vector<std::byte> filling(Layout::for_ranks(2).ring_bytes - header - left), more(10);
    group.wait(*group.send(filling.data(), filling.size(), Dtype::uint8, 1, 0));
    const auto second = group.send(more.data(), more.size(), Dtype::uint8, 1, 0);
    scene.is_dead[1] = true;
    error = error_of([&] { group.wait(*second); });
    scene.stage = 1;
  });
  CHECK(error.find("Rank 1 ended while rank 0 waits for a message") != std::string::npos);
}

void who_only_asks_is_told_of_a_dead_rank_too() {
  Scene scene;
  std::string error;
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) return scene.reach(1);
    const auto barrier = group.begin(Request{});
    scene.is_dead[1] = true;
    const auto end = Clock::now() + std::chrono::seconds(5);
    error = error_of([&] {
      while (!group.test(*barrier) && Clock::now() < end) std::this_thread::yield();
    });
    scene.stage = 1;
  });
  CHECK(error.find("Rank 1 ended") != std::string::npos);
}

void who_only_asks_is_told_that_the_group_is_broken() {
  Scene scene;
  std::string error;
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) {
      scene.reach(1);
      return group.abort("enough");
    }
    const auto end = Clock::now() + std::chrono::seconds(5);
    error = error_of([&] {
      const auto barrier = group.begin(Request{});
      scene.stage = 1;
      while (!group.test(*barrier) && Clock::now() < end) std::this_thread::yield();
    });
  });
  CHECK(error.find("enough") != std::string::npos);
}

// As in a container of its own, where process ids are of no use.
void a_process_that_was_killed_is_noticed_without_its_number() {
  const auto control = std::make_shared<Memory>(Memory::create(Layout::for_ranks(2).total(), false));
  const auto settings = [] {
    Settings found;
    found.named_memory = true;
    found.patience = std::chrono::seconds(5);
    return found;
  };
  const pid_t child = ::fork();
  if (child == 0) {
    Group group(control, 1, 2, settings());
    group.run(Request{});
    ::raise(SIGKILL);
  }
  Group group(control, 0, 2, settings());
  group.run(Request{});
  const std::string error = error_of([&] { group.run(Request{}); });
  ::waitpid(child, nullptr, 0);
  CHECK(error.find("Rank 1 ended while rank 0 waits for it") != std::string::npos);
}

// Rank 1 has sent its message and is done, which is no reason not to wait for rank 2.
void a_receive_from_anybody_waits_for_those_who_are_still_there() {
  Scene scene;
  int sum = 0;
  scene.play(3, [&](Group& group) {
    int number = static_cast<int>(group.rank());
    if (group.rank() == 0) {
      for (int i = 0; i < 2; ++i) {
        group.wait(*group.receive(&number, sizeof number, Dtype::int32, 3, 0));
        sum += number;
        ++scene.stage;
      }
    } else {
      if (group.rank() == 2) {
        scene.reach(1);
        const int before = scene.looks;
        while (scene.looks < before + 3) std::this_thread::yield();
      }
      group.wait(*group.send(&number, sizeof number, Dtype::int32, 0, 0));
    }
  });
  CHECK(sum == 3);
}

void a_receive_from_anybody_ends_when_everybody_has_left() {
  Scene scene;
  std::string error;
  scene.play(3, [&](Group& group) {
    if (group.rank() != 0) return;
    int number = 0;
    error = error_of([&] { group.wait(*group.receive(&number, sizeof number, Dtype::int32, 3, 0)); });
  });
  CHECK(error.find("left the group while rank 0 waits for a message") != std::string::npos);
}

// Its tensors may be gone as soon as the error is there.
void an_operation_that_was_given_up_writes_nothing_any_more() {
  Scene scene;
  bool raised = false;
  std::vector<float> data;
  scene.while_others_wait = [&] {  // rank 1 has begun, and looks again only when rank 0 has lost its patience
    if (scene.num_joined < 2) return;
    if (scene.stage == 0) scene.stage = 1;
    scene.reach(2);
  };
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) {
      std::vector<float> mine(100000, 1);
      CHECK(error_of([&] { group.run(sum_of(mine)); }).find("did not come in time") != std::string::npos);
      scene.stage = 3;
      return;
    }
    scene.reach(1);
    data.assign(100000, 2);
    const auto operation = group.begin(sum_of(data));
    CHECK(error_of([&] { group.wait(*operation, std::chrono::milliseconds(1)); }).find("did not come in time") !=
          std::string::npos);
    std::fill(data.begin(), data.end(), 7.0f);
    scene.stage = 2;
    scene.reach(3);
    raised = !error_of([&] { group.test(*operation); }).empty();
  });
  CHECK(raised);
  for (const float number : data) CHECK(number == 7.0f);
}

}  // namespace

int main() {
  a_process_that_was_killed_is_noticed_without_its_number();
  an_almost_full_ring_does_not_hide_that_its_reader_is_dead();
  who_only_asks_is_told_of_a_dead_rank_too();
  who_only_asks_is_told_that_the_group_is_broken();
  a_receive_from_anybody_waits_for_those_who_are_still_there();
  a_receive_from_anybody_ends_when_everybody_has_left();
  an_operation_that_was_given_up_writes_nothing_any_more();
}
