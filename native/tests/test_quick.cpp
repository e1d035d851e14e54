// The short way of tiny operations: what it leaves to the long one, and that both give the same numbers.
#include <future>
#include <numeric>
#include <random>
#include <thread>

#include "few.hpp"
#include "ranks.hpp"

using namespace samebits;

namespace {

// Runs it; returns how often the caller was told to let go.
int run_counted(Group& group, Request request) {
  int times = 0;
  group.run(std::move(request), [&] { ++times; });
  return times;
}

void a_rank_lets_go_only_where_it_has_to_wait() {
  std::promise<void> waits;
  on_ranks(2, [&](Group& group) {
    float number = 1;
    if (group.rank() == 0) {
      int times = 0;
      group.run(sum_of(&number, 1), [&] {
        ++times;
        waits.set_value();
      });
      CHECK(times == 1);
    } else {
      waits.get_future().wait();  // rank 0 has come
      CHECK(run_counted(group, sum_of(&number, 1)) == 0);
    }
    CHECK(number == 2);
  });
}

void what_is_not_tiny_or_not_alone_goes_the_long_way() {
  on_ranks(1, [](Group& group) {
    std::vector<float> large(payload_bytes), one(1, 3.0F);
    CHECK(run_counted(group, sum_of(one.data(), 1)) == 0);
    CHECK(run_counted(group, sum_of(large.data(), large.size())) == 1);
    float received = 0;
    const auto message = group.receive(&received, sizeof(float), Dtype::float32, 0, 0);  // under way
    CHECK(run_counted(group, sum_of(one.data(), 1)) == 1);
    group.wait(*group.send(one.data(), sizeof(float), Dtype::float32, 0, 0));
    group.wait(*message);
    CHECK(received == 3 && run_counted(group, sum_of(one.data(), 1)) == 0);
  });
}

// Some calls wait, some go on; ranks are late at random; a piece may be added up by all ranks or in slices.
void both_ways_in_any_order_give_the_same_numbers(std::size_t world, Nanoseconds spin) {
  on_ranks(
      world,
      [](Group& group) {
        std::mt19937 common(17), own(static_cast<unsigned>(group.rank()));
        std::vector<std::shared_ptr<Operation>> begun;
        std::vector<std::vector<float>> kept;
        for (int i = 0; i < 300; ++i) {
          const std::size_t counts[] = {0, 1, 7, payload_bytes / 4, payload_bytes / 4 + 1, 5000};
          std::vector<float> numbers(counts[common() % 6]);
          for (std::size_t at = 0; at < numbers.size(); ++at)
            numbers[at] = static_cast<float>(group.rank() + at % 50 + i);
          const std::size_t ranks = group.world_size();
          const auto expected = [=](std::size_t at) {
            return static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (at % 50 + i));
          };
          if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 100));
          if (own() % 3 == 0) {  // each rank as it likes
            kept.push_back(std::move(numbers));
            begun.push_back(group.begin(sum_of(kept.back().data(), kept.back().size())));
            if (own() % 2 == 0) group.wait(*begun.back());
            continue;
          }
          group.run(sum_of(numbers.data(), numbers.size()));
          for (std::size_t at = 0; at < numbers.size(); ++at) CHECK(numbers[at] == expected(at));
        }
        for (const auto& operation : begun) group.wait(*operation);
      },
      [spin](std::size_t) {
        Tuning tuning;
        tuning.waiting.spin = spin;
        tuning.waiting.is_crowded = spin < std::chrono::microseconds(10);
        return tuning;
      });
}

// Which way a piece goes is the same for all, although they wait in different ways.
void ranks_that_wait_differently_agree() {
  Block block(3);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Settings settings;
      settings.patience = std::chrono::seconds(60);
      settings.tuning.waiting.is_crowded = rank == 1;
      settings.has_ended = [](std::size_t) { return false; };
      Group group(block.data(), rank, 3, std::move(settings));
      for (int i = 0; i < 20; ++i) {
        std::vector<float> numbers(3000, static_cast<float>(rank + 1));
        group.run(sum_of(numbers.data(), numbers.size()));
        for (const float each : numbers) CHECK(each == 6);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

void ranks_that_differ_say_so() {
  on_ranks(2, [](Group& group) {
    float number = 1;
    for (int i = 0; i < 5; ++i) group.run(sum_of(&number, 1));
    Request request = sum_of(&number, 1);
    request.op = group.rank() == 0 ? ReduceOp::sum : ReduceOp::product;
    try {
      group.run(std::move(request));
      CHECK(false);
    } catch (const GroupError& error) {
      CHECK(error.trouble == Trouble::disagreement);
      CHECK(std::string(error.what()).find("train.py:0") != std::string::npos);
      CHECK(std::string(error.what()).find("train.py:1") != std::string::npos);
    }
  });
}

void a_short_list_grows() {
  Few<int> list{1, 2};
  for (int i = 3; i <= 40; ++i) {
    list.push_back(i);
    CHECK(list.size() == static_cast<std::size_t>(i) && list[i - 1] == i && list[0] == 1);
    CHECK(std::accumulate(list.begin(), list.end(), 0) == i * (i + 1) / 2);
    const Few<int> copy = list;
    Few<int> moved = Few<int>(copy);
    CHECK(std::equal(copy.begin(), copy.end(), moved.begin(), moved.end()));
  }
  list.clear();
  list.push_back(5);
  CHECK(list.size() == 1 && list[0] == 5 && Few<int>(std::vector<int>{4, 5, 6, 7, 8, 9})[5] == 9);
}

}  // namespace

int main() {
  a_short_list_grows();
  a_rank_lets_go_only_where_it_has_to_wait();
  what_is_not_tiny_or_not_alone_goes_the_long_way();
  for (const std::size_t world : {1, 2, 3, 5}) {
    for (const int spin_us : {2, 30}) {
      both_ways_in_any_order_give_the_same_numbers(world, std::chrono::microseconds(spin_us));
    }
  }
  ranks_that_wait_differently_agree();
  ranks_that_differ_say_so();
}
