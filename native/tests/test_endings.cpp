// What a rank is told when another one is gone, late or done, and what happens to its operations then.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "process_descriptors.hpp"
#include "ranks.hpp"

using namespace samebits;

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
  // `while_looking` is called with the group's lock.
  void play(
      std::size_t world_size, const std::function<void(Group&)>& body,
      const std::function<void()>& while_looking = [] {}) {
    Block block(world_size);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        Settings settings;
        settings.patience = std::chrono::seconds(5);
        settings.where = [] { return "train.py:5"; };
        settings.has_ended = [&](std::size_t peer) {
          while_looking();
          return is_dead[peer].load();
        };
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

// A ring with less room than a header needs cannot go on.
void an_almost_full_ring_does_not_hide_that_its_reader_is_dead() {
  Scene scene;
  std::string error;
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) return scene.reach(1);
    const std::size_t header = 104, left = 8;
    std::vector<std::byte> filling(Layout::for_ranks(2).ring_bytes - header - left), more(10);
    group.wait(*group.send(filling.data(), filling.size(), Dtype::uint8, 1, 0));
    const auto second = group.send(more.data(), more.size(), Dtype::uint8, 1, 0);
    scene.is_dead[1] = true;
    error = error_of([&] { group.wait(*second); });
    scene.stage = 1;
  });
  CHECK(error ==
        "Rank 1 ended while rank 0 was sending a message of 10 uint8 with tag 0 to rank 1 (train.py:5). If rank 1 "
        "failed, its own error says why.");
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

// What a thread of a rank of several nodes does all the time.
void who_looks_is_told_of_a_dead_rank_and_so_is_everybody() {
  Scene scene;
  std::string error, told;
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) {
      scene.reach(1);
      told = error_of([&] { group.run(Request{}); });
      return;
    }
    group.look();
    scene.is_dead[1] = true;
    error = error_of([&] { group.look(); });
    CHECK(error_of([&] { group.look(); }) == error);
    scene.stage = 1;
  });
  CHECK(error == "Rank 1 ended. Its own error says why, if it failed." && told == error);
}

void who_looks_hears_nothing_of_a_rank_that_left() {
  Scene scene;
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) {
      group.leave();
      scene.is_dead[1] = true;
      scene.stage = 1;
    } else {
      scene.reach(1);
      group.look();
      group.abort("done");  // not broken before
      CHECK(error_of([&] { group.look(); }) == "done");
    }
  });
}

// One of them finds it first, and it is the same sentence for both.
void what_one_thread_finds_ends_the_wait_of_another() {
  Scene scene;
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) return scene.reach(1);
    std::vector<float> data(100000);
    const auto sum = group.begin(sum_of(data));
    std::string of_waiter, of_looker;
    std::thread waiter([&] { of_waiter = error_of([&] { group.wait(*sum); }); });
    scene.is_dead[1] = true;
    while (of_looker.empty()) of_looker = error_of([&] { group.look(); });
    waiter.join();
    CHECK(of_waiter.find("Rank 1 ended") == 0 && of_waiter == of_looker);
    scene.stage = 1;
  });
}

// The first reason stands, and says whether somebody died, also where nobody of this group did.
void all_hear_the_first_reason_to_give_up() {
  Scene scene;
  std::atomic<int> num_told = 0;
  scene.play(3, [&](Group& group) {
    if (group.rank() == 2) {
      scene.reach(2);
      group.abort("Rank 7 is gone.", Trouble::lost);
      group.abort("Something else.");
    } else {
      const auto barrier = group.begin(Request{});
      ++scene.stage;
      error_of([&] { group.wait(*barrier); });
    }
    try {
      group.run(Request{});
    } catch (const GroupError& error) {
      num_told += error.trouble == Trouble::lost && error.what() == std::string("Rank 7 is gone.");
    }
  });
  CHECK(num_told == 3);
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
  CHECK(error.find("Rank 1 ended while rank 0 was waiting for it") != std::string::npos);
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
  CHECK(error.find("left the group while rank 0 was waiting for a message of 1 int32 with tag 0 from any rank "
                   "(train.py:5).") != std::string::npos);
}

void a_late_message_is_named_with_its_tag_and_peer() {
  for (const bool anybody : {false, true}) {
    Scene scene;
    std::string error;
    scene.play(2, [&](Group& group) {
      if (group.rank() == 1) return scene.reach(1);
      float number = 0;
      const auto message = group.receive(&number, sizeof number, Dtype::float32, anybody ? 2 : 1, 7);
      error = error_of([&] { group.wait(*message, std::chrono::milliseconds(1)); });
      scene.stage = 1;
    });
    const std::string what =
        " did not come within the timeout of 0.001 s; rank 0 waits for a message of 1 float32 with tag 7 from ";
    CHECK(error ==
          (anybody ? "A message" + what + "any rank (train.py:5)." : "Rank 1" + what + "rank 1 (train.py:5)."));
  }
}

void a_late_rank_is_late_for_the_operation_that_is_waited_for() {
  Scene scene;
  std::string error;
  scene.play(2, [&](Group& group) {
    if (group.rank() == 1) return scene.reach(1);
    std::vector<float> data(3);
    Request request = sum_of(data);
    request.where = "train.py:8";
    const auto sum = group.begin(std::move(request));
    const auto barrier = group.begin(Request{});
    error = error_of([&] { group.wait(*sum, std::chrono::milliseconds(1)); });
    scene.stage = 1;
  });
  CHECK(
      error ==
      "Rank 1 did not come within the timeout of 0.001 s; rank 0 waits in all_reduce(sum) of 3 float32 (train.py:8).");
}

// A rank that is interrupted while the group is made is not waited for.
void a_rank_that_does_not_come_to_join_breaks_the_group() {
  Block block(2);
  Settings settings;
  settings.while_waiting = [] { throw std::domain_error("a signal"); };
  settings.has_ended = [](std::size_t) { return false; };
  bool raised = false;
  try {
    Group group(block.data(), 0, 2, settings);
  } catch (const std::domain_error&) {
    raised = true;
  }
  CHECK(raised);
  settings.while_waiting = [] {};
  Group other(block.data(), 1, 2, settings);
  CHECK(error_of([&] { other.run(Request{}); }) == "Rank 0 was interrupted while the group was made.");
}

// Killed between having mapped the control block and joining.
void a_rank_that_is_killed_before_it_joins_is_noticed() {
  for (const bool named : {false, true}) {
    const auto control = std::make_shared<Memory>(Memory::create(Layout::for_ranks(2).total(), false));
    const pid_t child = ::fork();
    if (child == 0) {
      Group::announce(*control, 1, 2);
      ::raise(SIGKILL);
    }
    Settings settings;
    settings.patience = std::chrono::seconds(5);
    settings.named_memory = named;
    CHECK(error_of([&] { Group group(control, 0, 2, settings); }) == "Rank 1 ended while the group was made.");
    ::waitpid(child, nullptr, 0);
  }
}

// A daemon, or a library that tidies up.
void a_script_that_closes_all_descriptors_does_not_make_its_peers_dead() {
  const auto control = std::make_shared<Memory>(Memory::create(Layout::for_ranks(2).total(), false));
  const auto shared = Memory::create(page_size(), false);
  auto& looks = *reinterpret_cast<std::atomic<int>*>(shared.data());
  Settings settings;
  settings.patience = std::chrono::seconds(5);
  const pid_t child = ::fork();
  if (child == 0) {
    Group group(control, 1, 2, settings);
    group.run(Request{});
    while (looks < 3) std::this_thread::yield();
    group.run(Request{});
    ::_exit(0);
  }
  settings.while_waiting = [&] { ++looks; };
  std::string error;
  {
    Group group(control, 0, 2, settings);
    group.run(Request{});
    for (const int descriptor : descriptors_of_processes()) ::close(descriptor);
    looks = 0;
    error = error_of([&] { group.run(Request{}); });
    looks = 3;
  }
  ::waitpid(child, nullptr, 0);
  CHECK(error.empty());
}

// 64 ranks with fifty groups would have 3,150 of them otherwise.
void many_groups_of_the_same_ranks_share_one_descriptor_for_each_process() {
  std::vector<std::shared_ptr<Memory>> controls;
  for (int number = 0; number < 5; ++number) {
    controls.push_back(std::make_shared<Memory>(Memory::create(Layout::for_ranks(2).total(), false)));
  }
  Settings settings;
  settings.patience = std::chrono::seconds(5);
  const pid_t child = ::fork();
  if (child == 0) {
    for (const auto& control : controls) Group(control, 1, 2, settings).run(Request{});
    ::_exit(0);
  }
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::size_t> counts;
  for (const auto& control : controls) {
    groups.push_back(std::make_unique<Group>(control, 0, 2, settings));
    counts.push_back(descriptors_of_processes().size());
    // A script that closes what is not its own: the next group watches through a new one.
    if (groups.size() == 3) ::close(descriptors_of_processes().at(0));
    groups.back()->run(Request{});
  }
  ::waitpid(child, nullptr, 0);
  for (const std::size_t count : counts) CHECK(count == 1);
  CHECK(error_of([&] { groups.back()->run(Request{}); }).find("Rank 1") != std::string::npos);
  groups.clear();
  CHECK(descriptors_of_processes().empty());
}

// A thread of the parent has the group's lock while the parent forks; in the child it would have it forever.
[[maybe_unused]] void a_forked_process_is_no_member_whatever_its_parent_was_doing() {
  Scene scene;
  int status = -1;
  scene.play(
      2,
      [&](Group& group) {
        if (group.rank() == 1) return scene.reach(3);
        std::vector<float> data(5);
        const auto sum = group.begin(sum_of(data));
        std::thread waiting([&] { error_of([&] { group.wait(*sum, std::chrono::milliseconds(500)); }); });
        scene.reach(1);
        const pid_t child = ::fork();
        if (child == 0) {
          ::alarm(10);
          bool is_right = true;
          for (const auto& call : std::vector<std::function<void()>>{
                   [&] { group.begin(Request{}); }, [&] { group.wait(*sum); }, [&] { group.test(*sum); },
                   [&] { group.abort("no"); }, [&] { group.send(nullptr, 0, Dtype::uint8, 1, 0); }}) {
            is_right = is_right && error_of(call).find("forked") != std::string::npos;
          }
          group.leave();
          ::_exit(is_right ? 0 : 1);
        }
        ::waitpid(child, &status, 0);
        scene.stage = 2;
        waiting.join();
        scene.stage = 3;
      },
      [&] {
        if (scene.stage == 0) scene.stage = 1;
        scene.reach(2);
      });
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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
      CHECK(error_of([&] { group.run(sum_of(mine)); }).find("did not come within the timeout of") != std::string::npos);
      scene.stage = 3;
      return;
    }
    scene.reach(1);
    data.assign(100000, 2);
    const auto operation = group.begin(sum_of(data));
    CHECK(error_of([&] {
            group.wait(*operation, std::chrono::milliseconds(1));
          }).find("did not come within the timeout of") != std::string::npos);
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
  who_looks_is_told_of_a_dead_rank_and_so_is_everybody();
  who_looks_hears_nothing_of_a_rank_that_left();
  what_one_thread_finds_ends_the_wait_of_another();
  all_hear_the_first_reason_to_give_up();
  a_receive_from_anybody_waits_for_those_who_are_still_there();
  a_receive_from_anybody_ends_when_everybody_has_left();
  an_operation_that_was_given_up_writes_nothing_any_more();
  a_late_message_is_named_with_its_tag_and_peer();
  a_late_rank_is_late_for_the_operation_that_is_waited_for();
  a_rank_that_does_not_come_to_join_breaks_the_group();
  a_rank_that_is_killed_before_it_joins_is_noticed();
  a_script_that_closes_all_descriptors_does_not_make_its_peers_dead();
  many_groups_of_the_same_ranks_share_one_descriptor_for_each_process();
#ifndef __SANITIZE_THREAD__  // which does not let a process with threads be forked
  a_forked_process_is_no_member_whatever_its_parent_was_doing();
#endif
}
