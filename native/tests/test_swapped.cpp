// What two ranks exchange through blocks that change hands: the same bits as ever, in any order with everything else.
#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "ranks.hpp"

using namespace samebits;

namespace {

// Small blocks, so that few numbers are many pieces.
Tuning small_blocks(std::size_t) {
  Tuning tuning = short_spin(0);
  tuning.pieces.swapped_bytes = 4096;
  tuning.pieces.moved_bytes = 4096;
  return tuning;
}

// Whole numbers below 2^24, others for each rank, operation and place.
float number_of(std::size_t rank, int operation, std::size_t at) {
  return static_cast<float>((rank * 7919 + static_cast<std::size_t>(operation) * 31 + at) % 100'003);
}

std::vector<float> numbers(std::size_t rank, int operation, std::size_t count) {
  std::vector<float> made(count);
  for (std::size_t at = 0; at < count; ++at) made[at] = number_of(rank, operation, at);
  return made;
}

void add_up(Group& group, int i, std::size_t count) {
  auto mine = numbers(group.rank(), i, count);
  group.run(sum_of(mine.data(), count));
  for (std::size_t at = 0; at < count; ++at) CHECK(mine[at] == number_of(0, i, at) + number_of(1, i, at));
}

// Two terms of each rank go another way, through other memory.
void add_up_four(Group& group, int i, std::size_t count) {
  auto one = numbers(group.rank(), i, count), other = numbers(group.rank() + 2, i, count);
  std::vector<float> sum(count);
  Request request = sum_of(sum.data(), count);
  request.inputs = {one.data(), other.data()};
  request.leaves = {2, 2};
  request.program = {0, 1, combine, 2, 3, combine, combine};
  group.run(std::move(request));
  for (std::size_t at = 0; at < count; ++at) {
    float expected = 0;
    for (std::size_t term = 0; term < 4; ++term) expected += number_of(term, i, at);
    CHECK(sum[at] == expected);
  }
}

void gather(Group& group, int i, std::size_t count) {
  auto mine = numbers(group.rank(), i, count);
  std::vector<float> all(2 * count);
  Request request = sum_of(mine.data(), count);
  request.kind = Kind::all_gather;
  request.outputs = {all.data()};
  group.run(std::move(request));
  for (std::size_t at = 0; at < count; ++at)
    CHECK(all[at] == number_of(0, i, at) && all[count + at] == number_of(1, i, at));
}

void scatter_sum(Group& group, int i, std::size_t count) {
  auto mine = numbers(group.rank(), i, 2 * count);
  std::vector<float> part(count);
  Request request = sum_of(mine.data(), count);
  request.kind = Kind::reduce_scatter;
  request.outputs = {part.data()};
  group.run(std::move(request));
  for (std::size_t at = 0; at < count; ++at) {
    const std::size_t place = group.rank() * count + at;
    CHECK(part[at] == number_of(0, i, place) + number_of(1, i, place));
  }
}

// Other amounts in each direction, none included.
void deal(Group& group, int i, std::size_t count) {
  const std::size_t rank = group.rank(), sent[] = {count, static_cast<std::size_t>(i % 3) * 700};
  auto own = numbers(rank, i, 11), given = numbers(rank, i, sent[rank]);
  std::vector<float> kept(11), got(sent[1 - rank]);
  Request request;
  request.kind = Kind::all_to_all;
  request.dtype = Dtype::float32;
  for (std::size_t peer = 0; peer < 2; ++peer) {
    const bool is_own = peer == rank;
    request.inputs.push_back(is_own ? own.data() : given.data());
    request.outputs.push_back(is_own ? kept.data() : got.data());
    request.sends.push_back(is_own ? 11 : sent[rank]);
    request.receives.push_back(is_own ? 11 : sent[1 - rank]);
  }
  group.run(std::move(request));
  CHECK(kept == own && got == numbers(1 - rank, i, sent[1 - rank]));
}

void broadcast(Group& group, int i, std::size_t count) {
  auto mine = numbers(group.rank(), i, count);
  Request request = sum_of(mine.data(), count);
  request.kind = Kind::broadcast;
  request.root = i % 2;
  group.run(std::move(request));
  CHECK(mine == numbers(static_cast<std::size_t>(i % 2), i, count));
}

// Pieces are counted across all kinds, so a block comes round after any number of pieces in other memory.
void any_order_of_operations_gives_the_right_numbers(const std::function<Tuning(std::size_t)>& tuning_of) {
  on_ranks(
      2,
      [](Group& group) {
        std::mt19937 common(23), own(static_cast<unsigned>(group.rank()));
        for (int i = 0; i < 600; ++i) {
          const std::size_t counts[] = {1025, 2000, 2049, 3500, 9000, 20'000};
          const std::size_t kind = common() % 6, count = counts[common() % 6];
          if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 50));
          constexpr void (*all[])(Group&, int, std::size_t) = {add_up,      add_up_four, gather,
                                                               scatter_sum, deal,        broadcast};
          all[kind](group, i, count);
        }
      },
      tuning_of);
}

void operations_under_way_at_once_give_the_right_numbers() {
  on_ranks(
      2,
      [](Group& group) {
        for (int i = 0; i < 20; ++i) {
          std::vector<std::vector<float>> kept;
          std::vector<std::shared_ptr<Operation>> begun;
          for (int k = 0; k < 20; ++k) {
            kept.push_back(numbers(group.rank(), k, 1500 + 100 * static_cast<std::size_t>(k)));
            begun.push_back(group.begin(sum_of(kept.back().data(), kept.back().size())));
          }
          for (const auto& each : begun) group.wait(*each);
          for (int k = 0; k < 20; ++k) {
            for (std::size_t at = 0; at < kept[k].size(); ++at)
              CHECK(kept[k][at] == number_of(0, k, at) + number_of(1, k, at));
          }
        }
      },
      small_blocks);
}

// Random bits of every dtype, NaN and infinity among them: as if one rank had added them up alone.
void sums_have_the_bits_of_one_reduction() {
  on_ranks(
      2,
      [](Group& group) {
        std::mt19937_64 common(5);
        for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16, Dtype::int8,
                                  Dtype::int64, Dtype::boolean}) {
          for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::minimum, ReduceOp::product}) {
            if (dtype == Dtype::boolean && op == ReduceOp::average) continue;
            const std::size_t count = 5000 + common() % 100;
            std::vector<std::uint64_t> given[2], expected(count), sum(count);
            for (auto& each : given) {
              each.resize(count);
              for (auto& bits : each) bits = common();
            }
            const void* const inputs[] = {given[0].data(), given[1].data()};
            void* const target = expected.data();
            const std::uint8_t order[] = {0, 1, combine};
            reduce({dtype, op, order, Scale::none, 2.0}, inputs, {&target, 1}, count);
            Request request = sum_of(nullptr, count);
            request.dtype = dtype;
            request.op = op;
            request.inputs = {given[group.rank()].data()};
            request.outputs = {sum.data()};
            group.run(std::move(request));
            CHECK(std::memcmp(sum.data(), expected.data(), count * size_of(dtype)) == 0);
          }
        }
      },
      small_blocks);
}

}  // namespace

int main() {
  any_order_of_operations_gives_the_right_numbers(small_blocks);
  any_order_of_operations_gives_the_right_numbers([](std::size_t rank) {  // one of them has to share its CPU
    Tuning tuning = small_blocks(rank);
    tuning.waiting.is_crowded = rank == 1;
    return tuning;
  });
  any_order_of_operations_gives_the_right_numbers([](std::size_t rank) {  // as it is used
    return short_spin(rank);
  });
  operations_under_way_at_once_give_the_right_numbers();
  sums_have_the_bits_of_one_reduction();
  return 0;
}
