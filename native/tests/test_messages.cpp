// Messages through the blocks of a ring.
#include <random>
#include <utility>
#include <vector>

#include "ranks.hpp"

using namespace samebits;

namespace {

// What message `number` of a rank says.
std::vector<float> values(std::size_t rank, std::uint32_t number, std::size_t count) {
  std::vector<float> found(count);
  for (std::size_t i = 0; i < count; ++i) found[i] = static_cast<float>(rank * 1000 + number + i % 997);
  return found;
}

// Blocks are used again in another order than that in which they lie: whole and half-read ones, of messages that end
// anywhere in a block, while the reader is behind by all of them or by none.
void messages_in_used_blocks(unsigned seed) {
  on_ranks(2, [=](Group& group) {
    std::mt19937 random(seed);
    const std::size_t most = Layout::for_ranks(2).ring_bytes / 4;
    std::vector<std::pair<std::shared_ptr<Message>, std::vector<float>>> under_way;
    std::size_t bytes = 0;
    for (std::uint32_t i = 0; i < 300; ++i) {
      const std::size_t from = random() % 2, count = random() % 40000;
      const bool catch_up = random() % 8 == 0;
      const auto expected = values(from, i, count);
      if (from == group.rank()) {
        under_way.emplace_back(nullptr, expected);
        auto& [message, sent] = under_way.back();
        message = group.send(sent.data(), count * 4, Dtype::float32, 1 - from, 0);
        bytes += count * 4;
      } else {
        std::vector<float> got(count);
        group.wait(*group.receive(got.data(), count * 4, Dtype::float32, from, 0));
        CHECK(got == expected);
      }
      if (!catch_up && bytes < most) continue;
      for (auto& [message, sent] : under_way) group.wait(*message);
      under_way.clear();
      bytes = 0;
    }
    for (auto& [message, sent] : under_way) group.wait(*message);
  });
}

}  // namespace

int main() {
  for (const unsigned seed : {1u, 2u, 3u}) messages_in_used_blocks(seed);
}
