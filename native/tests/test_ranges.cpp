// Sums of which each rank wants, or has, a range of its own: their bits against the program, term by term, on 1 to 5
// ranks, beside other operations; several threads of one rank, as sums over nodes have them; and what ends them.
#include <deque>
#include <future>
#include <numeric>
#include <random>

#include "algorithms.hpp"
#include "ranks.hpp"

using namespace samebits;

namespace {

// Any number of 24 bits between -1 and 1: a sum in another order has other bits.
float value(std::size_t who, std::uint32_t number, std::size_t index) {
  std::uint64_t x = who * 0x9e3779b97f4a7c15u + number * 0xbf58476d1ce4e5b9u + index * 0x94d049bb133111ebu;
  x = (x ^ (x >> 31)) * 0xd6e8feb86659fd93u;
  return static_cast<float>(static_cast<std::int32_t>(x >> 40) - (1 << 23)) / (1 << 23);
}

using Program = std::vector<std::uint8_t>;

// A tree over the leaves, in any order.
Program some_program(std::mt19937& random, std::size_t num_leaves) {
  std::vector<std::uint8_t> left(num_leaves);
  std::iota(left.begin(), left.end(), std::uint8_t{0});
  std::shuffle(left.begin(), left.end(), random);
  Program found;
  for (std::size_t depth = 0; !left.empty() || depth > 1;) {
    if (depth > 1 && (left.empty() || random() % 2 == 0)) {
      found.push_back(combine);
      --depth;
    } else {
      found.push_back(left.back());
      left.pop_back();
      ++depth;
    }
  }
  return found;
}

float folded(const Program& program, const std::function<float(std::size_t)>& leaf) {
  std::vector<float> stack;
  for (const std::uint8_t step : program) {
    if (step != combine) {
      stack.push_back(leaf(step));
      continue;
    }
    const float right = stack.back();
    stack.pop_back();
    stack.back() += right;
  }
  return stack.back();
}

Request sum_of(std::size_t count, std::vector<const void*> inputs, std::vector<void*> outputs) {
  Request request;
  request.kind = Kind::all_reduce;
  request.dtype = Dtype::float32;
  request.count = count;
  request.inputs = std::move(inputs);
  request.outputs = std::move(outputs);
  return request;
}

Request range_of_sum(std::size_t count, std::vector<const void*> inputs, Slice wanted, void* output, Program program,
                     std::vector<std::uint8_t> leaves) {
  Request request = sum_of(count, std::move(inputs), {});
  request.program = std::move(program);
  request.leaves = std::move(leaves);
  request.range = Range{wanted.start, wanted.size, output};
  return request;
}

Request spread(std::size_t count, std::vector<const void*> terms, Slice held, void* output, Program program) {
  Request request = sum_of(count, std::move(terms), {output});
  request.program = std::move(program);
  request.range = Range{held.start, held.size, nullptr, true};
  return request;
}

// Cuts `count` elements into a part for each rank, some of them empty.
std::vector<Slice> some_parts(std::mt19937& random, std::size_t world, std::size_t count) {
  std::vector<std::uint64_t> bounds = {0, count};
  while (bounds.size() <= world) bounds.push_back(random() % 4 == 0 ? 0 : random() % (count + 1));
  std::sort(bounds.begin(), bounds.end());
  std::vector<Slice> found;
  for (std::size_t rank = 0; rank < world; ++rank) found.push_back({bounds[rank], bounds[rank + 1] - bounds[rank]});
  std::shuffle(found.begin(), found.end(), random);
  return found;
}

struct Flight {  // an operation that has begun, and how to check it
  std::shared_ptr<Operation> operation;
  std::function<void()> check;
};

// Arrays of one rank, in its window while there is room.
class Arrays {
 public:
  Arrays(Group& group, std::size_t bytes)
      : window_(group.allocate(bytes)), data_(reinterpret_cast<float*>(window_->region(group.rank()))) {}
  float* get(std::size_t count, bool in_window) {
    if (in_window && (used_ + count) * sizeof(float) <= window_->bytes) {
      used_ += count;
      return data_ + used_ - count;
    }
    own_.push_back(std::make_unique<float[]>(count));
    return own_.back().get();
  }
  void clear() {
    used_ = 0;
    own_.clear();
  }

 private:
  std::shared_ptr<Window> window_;
  float* data_;
  std::size_t used_ = 0;
  std::vector<std::unique_ptr<float[]>> own_;
};

// `random` gives the same numbers on every rank.
Flight begin_range(Group& group, std::mt19937& random, std::uint32_t number, std::size_t count, Arrays& arrays,
                   bool in_window) {
  const std::size_t world = group.world_size(), rank = group.rank();
  std::vector<std::uint8_t> leaves(world);
  for (auto& each : leaves) each = random() % 4;
  leaves[random() % world] += 1;
  const auto total = std::accumulate(leaves.begin(), leaves.end(), std::size_t{0});
  const std::size_t first = std::accumulate(leaves.begin(), leaves.begin() + rank, std::size_t{0});
  const Program program = some_program(random, total);
  const Slice wanted = some_parts(random, world, count)[rank];
  std::vector<const void*> inputs;
  for (std::size_t leaf = first; leaf < first + leaves[rank]; ++leaf) {
    float* const data = arrays.get(count, in_window);
    for (std::size_t i = 0; i < count; ++i) data[i] = value(leaf, number, i);
    inputs.push_back(data);
  }
  const float guard = 7;
  const auto output = std::make_shared<std::vector<float>>(wanted.size + 1, guard);
  auto operation =
      group.begin(range_of_sum(count, std::move(inputs), wanted, output->data(), program, std::move(leaves)));
  return {operation, [=] {
            for (std::size_t i = 0; i < wanted.size; ++i) {
              const auto leaf = [&](std::size_t which) { return value(which, number, wanted.start + i); };
              CHECK((*output)[i] == folded(program, leaf));
            }
            CHECK(output->back() == guard);
          }};
}

Flight begin_spread(Group& group, std::mt19937& random, std::uint32_t number, std::size_t count, Arrays& arrays,
                    bool in_window) {
  const std::size_t world = group.world_size(), rank = group.rank();
  const std::size_t num_terms = 1 + random() % 3;
  const Program program = some_program(random, num_terms);
  const std::vector<Slice> parts = some_parts(random, world, count);
  const Slice mine = parts[rank];
  const float factor = random() % 2 ? 1.0F : 0.3F;
  const std::size_t in_place = random() % 4;  // this term lies where its sum goes
  float* const out = arrays.get(count, in_window);
  std::fill_n(out, count, 7.0F);
  std::vector<const void*> terms;
  for (std::size_t term = 0; term < num_terms; ++term) {
    float* const data = term == in_place ? out + mine.start : arrays.get(mine.size, in_window);
    for (std::size_t i = 0; i < mine.size; ++i) data[i] = value(rank * 8 + term, number, i);
    terms.push_back(data);
  }
  Request request = spread(count, std::move(terms), mine, out, program);
  if (factor != 1.0F) {
    request.scale = Scale::multiply;
    request.factor = static_cast<double>(factor);
  }
  return {group.begin(std::move(request)), [=] {
            for (std::size_t peer = 0; peer < world; ++peer) {
              for (std::size_t i = 0; i < parts[peer].size; ++i) {
                const auto leaf = [&](std::size_t which) { return value(peer * 8 + which, number, i); };
                CHECK(out[parts[peer].start + i] == folded(program, leaf) * factor);
              }
            }
          }};
}

// Its pieces lie in the same staging buffers as those of ranges.
Flight begin_whole(Group& group, std::uint32_t number, std::size_t count, Arrays& arrays, bool in_window) {
  float* const data = arrays.get(count, in_window);
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>((group.rank() + number + i) % 100);
  const std::size_t world = group.world_size();
  return {group.begin(sum_of(count, {data}, {data})), [=] {
            for (std::size_t i = 0; i < count; ++i) {
              std::size_t total = 0;
              for (std::size_t rank = 0; rank < world; ++rank) total += (rank + number + i) % 100;
              CHECK(data[i] == static_cast<float>(total));
            }
          }};
}

void random_ranges(std::size_t world, unsigned seed, std::uint32_t num_operations) {
  on_ranks(world, [=](Group& group) {
    std::mt19937 random(seed), own(static_cast<unsigned>(group.rank()));
    Arrays arrays(group, 16 << 20);
    std::deque<Flight> flights;
    const auto land = [&](std::size_t which) {
      group.wait(*flights[which].operation);
      flights[which].check();
      flights.erase(flights.begin() + static_cast<std::ptrdiff_t>(which));
    };
    for (std::uint32_t number = 0; number < num_operations; ++number) {
      if (number % 16 == 15) {  // the arrays are used again, on all ranks
        while (!flights.empty()) land(0);
        arrays.clear();
        group.run(Request{});
      }
      const std::size_t limits[] = {1, 20, 1100, 9000, 70000, 200000};
      const std::size_t limit = limits[random() % 6], count = 1 + random() % limit;
      const bool is_mixed = random() % 3 == 0;  // some ranks have theirs in windows
      const bool in_window = is_mixed ? own() % 2 : random() % 2;
      if (is_mixed) random();
      const std::size_t kind = random() % 5;
      if (kind < 2) {
        flights.push_back(begin_range(group, random, number, count, arrays, in_window));
      } else if (kind < 4) {
        flights.push_back(begin_spread(group, random, number, count, arrays, in_window));
      } else {
        flights.push_back(begin_whole(group, number, count, arrays, in_window));
      }
      const std::size_t at_most = random() % 8;
      while (flights.size() > at_most) land(own() % flights.size());
    }
    while (!flights.empty()) land(0);
  });
}

// As a sum over nodes goes: one thread of a rank begins ranges and spreads what comes of them, another waits for the
// ranges, and a third one looks whether all are there.
void three_threads_of_a_rank_share_a_sum_in_chunks(std::size_t world, bool in_window) {
  constexpr std::size_t num_chunks = 6, count = 70000;
  on_ranks(world, [=](Group& group) {
    const std::size_t rank = group.rank(), first = count * rank / world, end = count * (rank + 1) / world;
    const Slice mine = {first, end - first};
    Program in_order = {0};
    for (std::size_t peer = 1; peer < world; ++peer) {
      in_order.insert(in_order.end(), {static_cast<std::uint8_t>(peer), combine});
    }
    Arrays arrays(group, 16 << 20);
    std::vector<float*> chunks;
    for (std::size_t number = 0; number < num_chunks; ++number) {
      chunks.push_back(arrays.get(count, in_window));
      for (std::size_t i = 0; i < count; ++i) chunks[number][i] = value(rank, static_cast<std::uint32_t>(number), i);
    }
    std::vector<std::vector<float>> sums(num_chunks, std::vector<float>(mine.size));
    std::vector<std::promise<std::shared_ptr<Operation>>> begun(num_chunks);
    std::vector<std::promise<void>> added(num_chunks);
    std::atomic<bool> is_over = false;
    std::thread sender([&] {
      for (std::size_t number = 0; number < num_chunks; ++number) {
        group.wait(*begun[number].get_future().get());
        added[number].set_value();
      }
    });
    std::thread watch([&] {
      while (!is_over) {
        group.look();
        std::this_thread::yield();
      }
    });
    for (std::size_t number = 0; number < num_chunks; ++number) {
      const std::vector<std::uint8_t> leaves(world, 1);
      begun[number].set_value(
          group.begin(range_of_sum(count, {chunks[number]}, mine, sums[number].data(), in_order, leaves)));
    }
    std::vector<std::shared_ptr<Operation>> spreads;
    for (std::size_t number = 0; number < num_chunks; ++number) {
      added[number].get_future().wait();
      spreads.push_back(group.begin(spread(count, {sums[number].data()}, mine, chunks[number], {0})));
    }
    for (const auto& operation : spreads) group.wait(*operation);
    is_over = true;
    sender.join();
    watch.join();
    for (std::uint32_t number = 0; number < num_chunks; ++number) {
      for (std::size_t i = 0; i < count; ++i) {
        const auto leaf = [&](std::size_t peer) { return value(peer, number, i); };
        CHECK(chunks[number][i] == folded(in_order, leaf));
      }
    }
  });
}

// Rank 0 does its part in the windows, gives up, and uses its tensor for something else before rank 1 has read it.
void no_range_comes_from_the_tensor_of_a_rank_that_gave_up(bool spreads) {
  constexpr std::size_t count = 10000, half = count / 2;
  std::promise<void> begun, given_up;
  bool has_raised = false;
  on_ranks(2, [&](Group& group) {
    const auto window = group.allocate(count * sizeof(float));
    auto* const data = reinterpret_cast<float*>(window->region(group.rank()));
    std::fill_n(data, count, 1.0F);
    std::vector<float> sum(half);
    const auto begin = [&] {
      const Slice mine = {group.rank() * half, half};
      return group.begin(spreads ? spread(count, {data + mine.start}, mine, data, {0})
                                 : range_of_sum(count, {data}, mine, sum.data(), {0, 1, combine}, {1, 1}));
    };
    if (group.rank() == 0) {
      begun.get_future().wait();
      const auto operation = begin();
      CHECK(!operation->finished);
      group.abort("Rank 0 gave up.");
      std::fill_n(data, count, 1000.0F);
      given_up.set_value();
      return;
    }
    const auto operation = begin();
    begun.set_value();
    given_up.get_future().wait();
    try {
      group.wait(*operation);
    } catch (const GroupError& error) {
      has_raised = error.what() == std::string("Rank 0 gave up.");
    }
  });
  CHECK(has_raised);
}

void a_range_that_does_not_fit_is_refused_and_the_group_goes_on() {
  on_ranks(2, [](Group& group) {
    std::vector<float> data(10), sum(10);
    const Program of_two = {0, 1, combine};
    const std::vector<std::uint8_t> leaves = {1, 1};
    const auto most = ~std::uint64_t{0};
    const std::vector<Request> wrong = {
        range_of_sum(10, {data.data()}, {8, 3}, sum.data(), of_two, leaves),
        range_of_sum(10, {data.data()}, {most, 2}, sum.data(), of_two, leaves),
        range_of_sum(10, {data.data(), data.data()}, {0, 5}, sum.data(), of_two, leaves),
        range_of_sum(10, {data.data()}, {0, 5}, sum.data(), {0}, leaves),
        range_of_sum(10, {data.data()}, {0, 5}, sum.data(), of_two, {2}),
        spread(10, {data.data()}, {8, 3}, sum.data(), {0}),
        spread(10, {data.data()}, {3, most}, sum.data(), {0}),
        spread(10, {data.data()}, {0, 5}, sum.data(), of_two),
    };
    for (const Request& request : wrong) {
      bool is_refused = false;
      try {
        group.begin(request);
      } catch (const BadCall&) {
        is_refused = true;
      }
      CHECK(is_refused);
    }
    group.run(Request{});
  });
}

// A range, a spread and a whole sum of the same size and order.
void ranks_that_differ_in_what_a_sum_is_all_learn_it() {
  for (int first = 0; first < 3; ++first) {
    std::atomic<int> num_told = 0;
    on_ranks(2, [&](Group& group) {
      std::vector<float> data(5000), more(5000), sum(5000);
      const Program of_two = {0, 1, combine};
      Request whole = sum_of(5000, {data.data()}, {data.data()});
      whole.program = of_two;
      const Request all[] = {std::move(whole), range_of_sum(5000, {data.data()}, {0, 50}, sum.data(), of_two, {}),
                             spread(5000, {data.data(), more.data()}, {0, 50}, sum.data(), of_two)};
      try {
        group.run(all[(static_cast<std::size_t>(first) + group.rank()) % 3]);
      } catch (const GroupError& error) {
        if (error.trouble == Trouble::disagreement) ++num_told;
      }
    });
    CHECK(num_told == 2);
  }
}

}  // namespace

int main() {
  for (const std::size_t world : {1, 2, 3, 5}) {
    for (unsigned seed = 0; seed < 4; ++seed) random_ranges(world, seed, 80);
  }
  for (const bool in_window : {false, true}) {
    for (const std::size_t world : {2, 3}) three_threads_of_a_rank_share_a_sum_in_chunks(world, in_window);
  }
  no_range_comes_from_the_tensor_of_a_rank_that_gave_up(false);
  no_range_comes_from_the_tensor_of_a_rank_that_gave_up(true);
  a_range_that_does_not_fit_is_refused_and_the_group_goes_on();
  ranks_that_differ_in_what_a_sum_is_all_learn_it();
}
