// What the model in native/model found, played by two ranks in the order that it takes.
#include <future>
#include <numeric>

#include "ranks.hpp"

using namespace samebits;

namespace {

// Rank 1 has worked all operations, and rank 0 none of them, when rank 0 begins one more than there are rows.
void a_rank_does_not_overwrite_a_row_that_it_has_not_worked_itself() {
  std::promise<void> begun, ended, one_more;
  on_ranks(2, [&](Group& group) {
    std::vector<float> numbers(num_rows + 1);
    std::iota(numbers.begin(), numbers.end(), 1.0F);
    std::vector<std::shared_ptr<Operation>> operations;
    for (std::size_t i = 0; i < num_rows; ++i) {
      if (group.rank() == 1 && i == 0) begun.get_future().wait();
      operations.push_back(group.begin(sum_of(&numbers[i], 1)));
    }
    if (group.rank() == 1) {
      for (const auto& operation : operations) group.wait(*operation);
      ended.set_value();
      one_more.get_future().wait();
    } else {
      begun.set_value();
      ended.get_future().wait();
    }
    operations.push_back(group.begin(sum_of(&numbers[num_rows], 1)));
    if (group.rank() == 0) one_more.set_value();
    for (const auto& operation : operations) group.wait(*operation);
    for (std::size_t i = 0; i <= num_rows; ++i) CHECK(numbers[i] == 2.0F * static_cast<float>(i + 1));
  });
}

// Rank 0 does its part in the windows, gives up, and uses its tensor for something else before rank 1 has read it.
void no_number_comes_from_the_tensor_of_a_rank_that_gave_up(const std::function<void(Group&)>& give_up) {
  constexpr std::size_t count = 10000;
  std::promise<void> begun, given_up;
  bool has_raised = false;
  on_ranks(2, [&](Group& group) {
    const auto window = group.allocate(count * sizeof(float));
    auto* const data = reinterpret_cast<float*>(window->region(group.rank()));
    std::fill_n(data, count, 1.0F);
    if (group.rank() == 0) {
      begun.get_future().wait();
      const auto operation = group.begin(sum_of(data, count));
      CHECK(!operation->finished);
      give_up(group);
      std::fill_n(data, count, 1000.0F);
      given_up.set_value();
    } else {
      const auto operation = group.begin(sum_of(data, count));
      begun.set_value();
      given_up.get_future().wait();
      try {
        group.wait(*operation);
      } catch (const GroupError&) {
        has_raised = true;
      }
    }
  });
  CHECK(has_raised);
}

// An operation that had to wait for an earlier one on the same memory is published as soon as that one is finished,
// not only when its rank calls again.
void what_an_operation_held_up_is_told_at_once() {
  std::atomic<int> stage = 0;
  const auto reach = [&](int wanted) {
    while (stage < wanted) std::this_thread::yield();
  };
  on_ranks(2, [&](Group& group) {
    float one = 1, other = 1;
    float& second = group.rank() == 0 ? one : other;
    if (group.rank() == 1) reach(1);
    const auto first = group.begin(sum_of(&one, 1));
    const auto next = group.begin(sum_of(&second, 1));
    if (group.rank() == 0) {
      stage = 1;
      reach(2);
      CHECK(group.test(*first));
      stage = 3;
      reach(4);
    } else {
      stage = 2;
      reach(3);
      const bool was_told = group.test(*next);
      stage = 4;
      CHECK(was_told);
    }
    group.wait(*next);
    CHECK(one == (group.rank() == 0 ? 3 : 2) && (group.rank() == 0 || other == 3));
  });
}

}  // namespace

int main() {
  a_rank_does_not_overwrite_a_row_that_it_has_not_worked_itself();
  no_number_comes_from_the_tensor_of_a_rank_that_gave_up([](Group& group) { group.abort("Rank 0 gave up."); });
  no_number_comes_from_the_tensor_of_a_rank_that_gave_up([](Group& group) { group.leave(); });
  what_an_operation_held_up_is_told_at_once();
}
