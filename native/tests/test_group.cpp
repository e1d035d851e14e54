// Random sequences of operations on 1 to 5 ranks against a straightforward reference.
#include <cstring>
#include <random>

#include "ranks.hpp"

using namespace samebits;

namespace {

// What rank `rank` puts in as element `index` of operation `number`. Small integers: exact in every order.
float value(std::size_t rank, std::uint32_t number, std::size_t index) {
  return static_cast<float>((rank * 7 + number * 13 + index * 3) % 101);
}

std::vector<float> values(std::size_t rank, std::uint32_t number, std::size_t count) {
  std::vector<float> found(count);
  for (std::size_t i = 0; i < count; ++i) found[i] = value(rank, number, i);
  return found;
}

Request request_for(Kind kind, std::size_t count, std::vector<const void*> inputs, std::vector<void*> outputs,
                    int root = -1) {
  Request request;
  request.kind = kind;
  request.dtype = Dtype::float32;
  request.count = count;
  request.inputs = std::move(inputs);
  request.outputs = std::move(outputs);
  request.root = root;
  return request;
}

std::size_t some_count(std::mt19937& random) {
  const std::size_t limits[] = {1, 20, 1100, 9000, 70000, 300000};
  return random() % limits[random() % 6];
}

float sum(std::size_t world, std::uint32_t number, std::size_t index) {
  float total = 0;
  for (std::size_t rank = 0; rank < world; ++rank) total += value(rank, number, index);
  return total;
}

struct Flight {  // an operation that has begun, and how to check it
  std::shared_ptr<Operation> operation;
  std::function<void()> check;
};

Flight begin_one(Group& group, std::mt19937& random, std::uint32_t number, std::byte* window, std::size_t& window_used,
                 std::size_t window_bytes) {
  const std::size_t world = group.world_size(), rank = group.rank();
  const auto kind = static_cast<Kind>(random() % 9);
  const std::size_t count = some_count(random) / (kind == Kind::all_to_all ? world : 1);
  const int root = static_cast<int>(random() % world);
  const bool in_window = random() % 2 == 0;
  // The same on every rank, so that windows are taken alike.
  const auto array = [&](std::size_t size) {
    struct Array {
      float* data;
      std::shared_ptr<std::vector<float>> owner;
    };
    const std::size_t bytes = (size * sizeof(float) + 63) / 64 * 64;
    if (in_window && window_used + bytes <= window_bytes) {
      auto* data = reinterpret_cast<float*>(window + window_used);
      window_used += bytes;
      return Array{data, nullptr};
    }
    auto owner = std::make_shared<std::vector<float>>(size + 1);
    return Array{owner->data(), owner};
  };
  const auto fill = [&](float* data, std::size_t size, std::size_t offset = 0) {
    for (std::size_t i = 0; i < size; ++i) data[i] = value(rank, number, i + offset);
  };
  switch (kind) {
    case Kind::all_reduce:
    case Kind::reduce: {
      const auto data = array(count);
      fill(data.data, count);
      auto operation =
          group.begin(request_for(kind, count, {data.data}, {data.data}, kind == Kind::reduce ? root : -1));
      return {operation, [=] {
                if (kind == Kind::reduce && root != static_cast<int>(rank)) return;
                for (std::size_t i = 0; i < count; ++i) CHECK(data.data[i] == sum(world, number, i));
              }};
    }
    case Kind::reduce_scatter: {
      const auto data = array(count * world), out = array(count);
      fill(data.data, count * world);
      auto operation = group.begin(request_for(kind, count, {data.data}, {out.data}));
      return {operation, [=] {
                for (std::size_t i = 0; i < count; ++i) CHECK(out.data[i] == sum(world, number, rank * count + i));
                (void)data;  // kept until here
              }};
    }
    case Kind::broadcast: {
      const auto data = array(count);
      fill(data.data, count);
      auto operation = group.begin(request_for(kind, count, {data.data}, {data.data}, root));
      return {operation, [=] {
                for (std::size_t i = 0; i < count; ++i) CHECK(data.data[i] == value(root, number, i));
              }};
    }
    case Kind::all_gather:
    case Kind::gather: {
      const auto data = array(count), out = array(count * world);
      fill(data.data, count);
      auto operation = group.begin(request_for(kind, count, {data.data}, {out.data}, kind == Kind::gather ? root : -1));
      return {operation, [=] {
                if (kind == Kind::gather && root != static_cast<int>(rank)) return;
                for (std::size_t peer = 0; peer < world; ++peer) {
                  for (std::size_t i = 0; i < count; ++i) CHECK(out.data[peer * count + i] == value(peer, number, i));
                }
                (void)data;
              }};
    }
    case Kind::scatter: {
      const auto data = array(count * world), out = array(count);
      fill(data.data, count * world);
      std::vector<const void*> inputs;
      for (std::size_t peer = 0; peer < world; ++peer) inputs.push_back(data.data + peer * count);
      auto operation = group.begin(request_for(kind, count, inputs, {out.data}, root));
      return {operation, [=] {
                for (std::size_t i = 0; i < count; ++i) CHECK(out.data[i] == value(root, number, rank * count + i));
                (void)data;
              }};
    }
    case Kind::all_to_all: {  // rank r sends (r + to) % 3 thirds to `to`
      const auto size = [=](std::size_t from, std::size_t to) { return (from + to) % 3 * (count / 2); };
      struct Parts {
        decltype(array(0)) in, out;
      };
      std::vector<Parts> parts;
      Request request = request_for(kind, 0, {}, {});
      for (std::size_t peer = 0; peer < world; ++peer) {
        parts.push_back(
            {array(count), array(count)});  // some of it may stay empty; all ranks take as much of the window
        const auto sent = values(rank * 5 + peer, number, size(rank, peer));
        std::copy(sent.begin(), sent.end(), parts[peer].in.data);
        request.inputs.push_back(parts[peer].in.data);
        request.outputs.push_back(parts[peer].out.data);
        request.sends.push_back(size(rank, peer));
        request.receives.push_back(size(peer, rank));
      }
      auto operation = group.begin(std::move(request));
      return {operation, [=] {
                for (std::size_t peer = 0; peer < world; ++peer) {
                  const auto expected = values(peer * 5 + rank, number, size(peer, rank));
                  CHECK(std::equal(expected.begin(), expected.end(), parts[peer].out.data));
                }
              }};
    }
    default: {
      Request request;
      return {group.begin(std::move(request)), [] {}};
    }
  }
}

void random_operations(std::size_t world, unsigned seed, int num_operations) {
  on_ranks(world, [=](Group& group) {
    std::mt19937 random(seed);
    constexpr std::size_t window_bytes = 16 << 20;
    const auto shared = group.allocate(window_bytes);
    std::byte* const window = shared->region(group.rank());
    std::size_t used = 0;
    std::deque<Flight> flights;
    for (int i = 0; i < num_operations; ++i) {
      if (used > window_bytes / 2) {
        for (auto& flight : flights) {
          group.wait(*flight.operation);
          flight.check();
        }
        flights.clear();
        used = 0;
        group.run(Request{});
      }
      flights.push_back(begin_one(group, random, static_cast<std::uint32_t>(i), window, used, window_bytes));
      const std::size_t at_most = random() % 30;  // more than there are rows
      while (flights.size() > at_most) {
        const std::size_t pick = flights.size() > 1 && group.rank() % 2 ? 1 : 0;  // waits may come in any order
        group.wait(*flights[pick].operation);
        flights[pick].check();
        flights.erase(flights.begin() + static_cast<std::ptrdiff_t>(pick));
      }
    }
    for (auto& flight : flights) {
      group.wait(*flight.operation);
      flight.check();
    }
  });
}

void messages_in_any_order(std::size_t world, unsigned seed) {
  on_ranks(world, [=](Group& group) {
    std::mt19937 random(seed);
    struct One {
      std::size_t from, to, count;
      std::uint64_t tag;
    };
    std::vector<One> all;
    for (int i = 0; i < 60; ++i) all.push_back({random() % world, random() % world, some_count(random), random() % 3});
    std::vector<std::vector<float>> sent, got;
    std::vector<std::shared_ptr<Message>> pending;
    sent.reserve(all.size());
    got.reserve(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].from != group.rank()) continue;
      sent.push_back(values(group.rank(), static_cast<std::uint32_t>(i), all[i].count));
      pending.push_back(group.send(sent.back().data(), all[i].count * 4, Dtype::float32, all[i].to, all[i].tag));
    }
    group.run(Request{});  // nobody has received yet, and it still goes through
    // Tag by tag from the last to the first: another order than they were sent in.
    std::vector<std::size_t> numbers;
    for (int tag = 2; tag >= 0; --tag) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (all[i].to != group.rank() || all[i].tag != static_cast<std::uint64_t>(tag)) continue;
        got.emplace_back(all[i].count);
        numbers.push_back(i);
        pending.push_back(group.receive(got.back().data(), all[i].count * 4, Dtype::float32, all[i].from, all[i].tag));
      }
    }
    for (auto& message : pending) group.wait(*message);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const One& one = all[numbers[i]];
      CHECK(got[i] == values(one.from, static_cast<std::uint32_t>(numbers[i]), one.count));
    }
  });
}

// Rank 0 works all rows of the ring while rank 1 is away; rank 1 comes back by beginning one more.
void a_rank_that_was_away_still_finds_its_rows() {
  std::atomic<int> stage = 0;
  const auto reach = [&](int wanted) {
    while (stage < wanted) std::this_thread::yield();
  };
  on_ranks(2, [&](Group& group) {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<float> data(num_rows + 1);
    const auto begin = [&](std::size_t i) {
      data[i] = value(group.rank(), static_cast<std::uint32_t>(i), 0);
      operations.push_back(group.begin(request_for(Kind::all_reduce, 1, {&data[i]}, {&data[i]})));
    };
    if (group.rank() == 0) reach(1);
    for (std::size_t i = 0; i < num_rows; ++i) begin(i);
    if (group.rank() == 0) {
      for (const auto& operation : operations) group.wait(*operation);
    } else {
      stage = 1;
      reach(2);
    }
    if (group.rank() == 0) stage = 2;
    begin(num_rows);
    for (const auto& operation : operations) group.wait(*operation);
    for (std::size_t i = 0; i < data.size(); ++i) CHECK(data[i] == sum(2, static_cast<std::uint32_t>(i), 0));
  });
}

void a_window_once_for_all_takes_the_room_of_one() {
  on_ranks(3, [](Group& group) {
    constexpr std::size_t bytes = 100000;
    const auto window = group.allocate(bytes, true);
    CHECK(window->memory->size() < 2 * bytes);
    if (group.rank() == 0) window->region(0)[7] = std::byte{5};
    group.run(Request{});
    CHECK(window->region(group.rank())[7] == std::byte{5});
    group.release(*window);
  });
}

// Runs `wrong` on every rank and returns what each was told.
std::vector<std::string> errors_of(std::size_t world, const std::function<void(Group&)>& wrong) {
  std::vector<std::string> errors(world);
  on_ranks(world, [&](Group& group) {
    try {
      wrong(group);
    } catch (const GroupError& error) {
      errors[group.rank()] = error.what();
    }
  });
  return errors;
}

void differing_calls_raise_everywhere() {
  const auto errors = errors_of(3, [](Group& group) {
    std::vector<float> data(100000);
    if (group.rank() == 1) {
      group.run(request_for(Kind::broadcast, 100000, {data.data()}, {data.data()}, 0));
    } else {
      group.run(request_for(Kind::all_reduce, 100000, {data.data()}, {data.data()}));
    }
    std::abort();  // it must not return
  });
  for (const auto& error : errors) {
    CHECK(error == errors[0]);
    CHECK(error.find("ranks 0, 2: all_reduce(sum) of 100000 float32 at train.py:") != std::string::npos ||
          error.find("rank 0: all_reduce(sum) of 100000 float32 at train.py:0") != std::string::npos);
    CHECK(error.find("rank 1: broadcast of 100000 float32 from rank 0 at train.py:1") != std::string::npos);
  }
}

void a_rank_that_leaves_is_named() {
  const auto errors = errors_of(2, [](Group& group) {
    if (group.rank() == 0) group.run(Request{});
  });
  CHECK(errors[0].find("Rank 1 left the group") != std::string::npos);
}

void a_message_that_does_not_fit_raises() {
  const auto errors = errors_of(2, [](Group& group) {
    float data[20] = {};
    if (group.rank() == 0) {
      group.wait(*group.send(data, 40, Dtype::float32, 1, 5));
    } else {
      group.wait(*group.receive(data, 80, Dtype::float32, 0, 5));
    }
  });
  CHECK(errors[1].find("Rank 0 sends 10 float32 with tag 5, but rank 1 receives 20 float32") != std::string::npos);
}

bool is_utf8(const std::string& text) {
  std::size_t left = 0;  // bytes of a letter that are still to come
  for (const unsigned char byte : text) {
    const bool follows = (byte & 0xc0) == 0x80;
    if (follows != (left != 0)) return false;
    left = follows ? left - 1 : byte < 0x80 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  }
  return left == 0;
}

// Python accepts no text that ends within a letter.
void a_long_text_is_cut_between_letters() {
  for (std::size_t before = 0; before < 2; ++before) {
    std::string line(before, 'a');
    while (line.size() < 2000) line += "é";
    const auto errors = errors_of(2, [&](Group& group) {
      Request request;
      request.kind = group.rank() == 0 ? Kind::barrier : Kind::allocate;
      request.where = line;
      group.run(std::move(request));
    });
    for (const auto& error : errors) CHECK(error.size() > 200 && is_utf8(error));
  }
}

void a_window_larger_than_any_memory_is_an_error_on_every_rank_and_the_group_goes_on() {
  on_ranks(2, [](Group& group) {
    for (const std::size_t bytes : {~std::size_t{0}, (std::size_t{1} << 63) + 4096}) {
      bool raised = false;
      try {
        group.allocate(bytes);
      } catch (const GroupError& error) {
        raised = error.trouble == Trouble::no_memory;
      }
      CHECK(raised);
    }
    group.run(Request{});
  });
}

// For ThreadSanitizer: who a message comes from is written by the thread that moves it, and told by the one that waits.
void a_wait_is_told_while_another_thread_moves_what_is_waited_for() {
  Block block(2);
  std::atomic<int> stage = 0;
  const auto reach = [&](int wanted, Nanoseconds at_most) {
    const auto end = Clock::now() + at_most;
    while (stage.load(std::memory_order_relaxed) < wanted && Clock::now() < end) std::this_thread::yield();
  };
  std::thread sender([&] {
    Settings settings;
    settings.has_ended = [](std::size_t) { return false; };
    Group group(block.data(), 1, 2, std::move(settings));
    reach(1, std::chrono::seconds(60));
    const std::uint8_t data = 7;
    group.wait(*group.send(&data, 1, Dtype::uint8, 0, 0));
    stage.store(2, std::memory_order_relaxed);
    group.run(Request{});
  });
  Settings settings;
  settings.has_ended = [](std::size_t) { return false; };
  settings.where = [&] {  // asked when the wait is told; with the lock, nobody moves anything meanwhile
    if (stage.load(std::memory_order_relaxed) == 0) {
      stage.store(1, std::memory_order_relaxed);
      reach(3, std::chrono::milliseconds(300));
    }
    return std::string("train.py:1");
  };
  Group group(block.data(), 0, 2, std::move(settings));
  std::uint8_t data = 0;
  const auto message = group.receive(&data, 1, Dtype::uint8, 2, 0);
  std::thread mover([&] {
    std::uint8_t other = 0;
    const auto never = group.receive(&other, 1, Dtype::uint8, 1, 99);
    reach(2, std::chrono::seconds(60));
    group.test(*never);
    stage.store(3, std::memory_order_relaxed);
  });
  group.wait(*message);
  CHECK(data == 7 && message->peer == 1);
  mover.join();
  group.run(Request{});
  sender.join();
}

// Numbers of ranks that know different machines, and numbers that no rank should have.
void the_pieces_are_those_of_rank_0_within_limits() {
  constexpr std::size_t count = 1'000'003;
  for (const std::uint32_t asked : {0U, 300'000U, 4'000'000'000U}) {
    const auto tuning_of = [&](std::size_t rank) {
      Tuning tuning;
      tuning.pieces = {rank == 0 ? asked : 256U << 10, rank == 0 ? asked : 0U};
      return tuning;
    };
    const auto body = [&](Group& group) {
      CHECK(group.pieces().piece_bytes == (asked == 0 ? 128U << 10 : asked == 300'000U ? 299'008U : 1U << 20));
      for (const std::size_t size : {std::size_t{5000}, std::size_t{30'000}, count}) {
        std::vector<float> numbers(size, static_cast<float>(group.rank() + 1));
        group.all_reduce(numbers.data(), size, Dtype::float32, ReduceOp::sum);
        CHECK(std::all_of(numbers.begin(), numbers.end(), [](float number) { return number == 6.0F; }));
      }
    };
    on_ranks(3, body, tuning_of);
  }
}

void the_patience_ends() {
  Block block(2);
  std::vector<std::thread> threads;
  std::string error;
  std::atomic<bool> over = false;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Settings settings;
      settings.has_ended = [](std::size_t) { return false; };
      Group group(block.data(), rank, 2, std::move(settings));
      if (rank == 0) {
        try {
          const auto operation = group.begin(Request{});
          group.wait(*operation, std::chrono::milliseconds(100));
        } catch (const GroupError& raised) {
          error = raised.what();
        }
        over = true;
      } else {
        while (!over) std::this_thread::yield();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(error.find("Rank 1 did not come within the timeout of 0.1 s; rank 0 waits in barrier") != std::string::npos);
}

}  // namespace

int main() {
  for (std::size_t world = 1; world <= 5; ++world) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      random_operations(world, seed, 150);
      messages_in_any_order(world, seed);
    }
  }
  a_rank_that_was_away_still_finds_its_rows();
  a_window_once_for_all_takes_the_room_of_one();
  differing_calls_raise_everywhere();
  a_rank_that_leaves_is_named();
  a_message_that_does_not_fit_raises();
  a_long_text_is_cut_between_letters();
  a_window_larger_than_any_memory_is_an_error_on_every_rank_and_the_group_goes_on();
  a_wait_is_told_while_another_thread_moves_what_is_waited_for();
  the_pieces_are_those_of_rank_0_within_limits();
  the_patience_ends();
}
