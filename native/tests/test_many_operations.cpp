// Operations whose numbers come to the ends of what 32 bits can count.
#include <chrono>
#include <thread>

#include "ranks.hpp"

using namespace samebits;

namespace {

constexpr std::uint32_t half = std::uint32_t{1} << 31;

void on_two_ranks(std::uint32_t operations_before, const std::function<void(Group&)>& body,
                  const std::function<void(std::size_t, Settings&)>& change) {
  on_ranks(2, body, short_spin, [&](std::size_t rank, Settings& settings) {
    settings.operations_before = operations_before;
    change(rank, settings);
  });
}

void sums_go_on_past_the_ends(std::uint32_t operations_before) {
  on_two_ranks(
      operations_before,
      [](Group& group) {
        std::vector<std::vector<float>> kept(40);
        std::vector<std::shared_ptr<Operation>> begun;
        for (std::size_t i = 0; i < kept.size(); ++i) {
          kept[i].assign(i % 2 == 0 ? 3 : 3000, static_cast<float>(i + group.rank()));
          begun.push_back(group.begin(sum_of(kept[i].data(), kept[i].size())));
        }
        for (const auto& operation : begun) group.wait(*operation);
        for (int i = 0; i < 300; ++i) {
          float number = static_cast<float>(i);
          group.all_reduce(&number, 1, Dtype::float32, ReduceOp::sum);
          CHECK(number == 2.0F * static_cast<float>(i));
        }
        for (std::size_t i = 0; i < kept.size(); ++i) {
          for (const float number : kept[i]) CHECK(number == static_cast<float>(2 * i + 1));
        }
      },
      [](std::size_t, Settings&) {});
}

// After some others two calls, which the ranks make in different orders. Rank 1 finds, after a while, that they belong
// together; rank 0 does not know, and must not go by anything but that verdict.
void verdicts_are_waited_for(std::uint32_t operations_before, int others) {
  static const Site sites[2] = {{1, "train.py:1"}, {2, "train.py:2"}};
  thread_local std::size_t calls = 0;
  on_two_ranks(
      operations_before,
      [others](Group& group) {
        float nothing = 0.0F;
        for (int i = 0; i < others; ++i) group.all_reduce(&nothing, 1, Dtype::float32, ReduceOp::sum);
        for (int i = 0; i < 2; ++i) {
          float number = 1.0F;
          Request request = sum_of(&number, 1);
          request.site = &sites[(group.rank() + calls++) % 2];
          group.run(std::move(request));
          CHECK(number == 2.0F);
        }
      },
      [](std::size_t rank, Settings& settings) {
        settings.judge = [rank](const auto&) {
          if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
          return Verdict{rank == 1, "train.py"};
        };
      });
}

}  // namespace

int main() {
  for (const std::uint32_t before : {0u, half - 200, half - 5, 0u - 200, 0u - 5}) sums_go_on_past_the_ends(before);
  verdicts_are_waited_for(0, 0);
  // Nothing was judged for 2^31 operations: what the ranks said at the beginning, zero, looks as if it were ahead.
  for (const int others : {0, 3, 20, 400}) {
    verdicts_are_waited_for(half - 5, others);
    verdicts_are_waited_for(half + 5, others);
  }
  return 0;
}
