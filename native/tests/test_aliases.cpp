// Operations whose tensors share memory: a result is right whatever its size, its place and the timing.
#include <memory>

#include "ranks.hpp"

using namespace samebits;

namespace {

constexpr std::size_t counts[] = {10, 5000, 200000};  // in a row, in one piece, in several

Request request_for(Kind kind, std::size_t count, std::vector<const void*> inputs, std::vector<void*> outputs) {
  Request request;
  request.kind = kind;
  request.dtype = Dtype::float32;
  request.count = count;
  request.inputs = std::move(inputs);
  request.outputs = std::move(outputs);
  return request;
}

// Rank 0 begins all of its operations before rank 1 begins any; or the other way round.
void in_turn(std::atomic<int>& stage, const Group& group, std::size_t first, const std::function<void()>& begin) {
  while (group.rank() != first && stage == 0) std::this_thread::yield();
  begin();
  stage = 1;
}

void a_sum_of_a_sum_that_is_still_under_way(std::size_t count, std::size_t first, bool in_window) {
  std::atomic<int> stage = 0;
  on_ranks(2, [&](Group& group) {
    std::vector<float> own(count);
    const auto window = group.allocate(count * sizeof(float));
    float* const data = in_window ? reinterpret_cast<float*>(window->region(group.rank())) : own.data();
    std::fill(data, data + count, static_cast<float>(group.rank() + 1));
    std::shared_ptr<Operation> one, two;
    in_turn(stage, group, first, [&] {
      one = group.begin(request_for(Kind::all_reduce, count, {data}, {data}));
      two = group.begin(request_for(Kind::all_reduce, count, {data}, {data}));
    });
    group.wait(*two);
    group.wait(*one);
    for (std::size_t i = 0; i < count; ++i) CHECK(data[i] == 6.0f);
  });
}

void a_sum_is_gathered_while_it_is_under_way(std::size_t count, std::size_t first) {
  std::atomic<int> stage = 0;
  on_ranks(2, [&](Group& group) {
    const auto window = group.allocate(count * sizeof(float));
    float* const data = reinterpret_cast<float*>(window->region(group.rank()));
    std::fill(data, data + count, static_cast<float>(group.rank() + 1));
    std::vector<float> gathered(2 * count);
    std::shared_ptr<Operation> one, two;
    in_turn(stage, group, first, [&] {
      one = group.begin(request_for(Kind::all_reduce, count, {data}, {data}));
      two = group.begin(request_for(Kind::all_gather, count, {data}, {gathered.data()}));
    });
    group.wait(*one);
    group.wait(*two);
    for (const float number : gathered) CHECK(number == 3.0f);
  });
}

void a_gather_into_its_own_input(Kind kind, std::size_t count, std::size_t place) {
  on_ranks(3, [=](Group& group) {
    std::vector<std::vector<float>> outputs(3, std::vector<float>(count));
    std::fill(outputs[place].begin(), outputs[place].end(), static_cast<float>(group.rank()));
    Request request = request_for(kind, count, {outputs[place].data()}, {});
    for (auto& output : outputs) request.outputs.push_back(output.data());
    if (kind == Kind::gather) request.root = 1;
    group.run(std::move(request));
    if (kind == Kind::gather && group.rank() != 1) return;
    for (std::size_t peer = 0; peer < 3; ++peer) {
      for (const float number : outputs[peer]) CHECK(number == static_cast<float>(peer));
    }
  });
}

float element(std::size_t rank, std::size_t index) { return static_cast<float>((rank * 5 + index * 3) % 101); }

// The output overlaps the input, `shift` elements from its beginning.
void a_sum_into_its_own_input(std::size_t count, std::size_t shift, bool in_window) {
  on_ranks(3, [=](Group& group) {
    std::vector<float> own(4 * count);
    const auto window = group.allocate(own.size() * sizeof(float));
    float* const data = in_window ? reinterpret_cast<float*>(window->region(group.rank())) : own.data();
    for (std::size_t i = 0; i < 3 * count; ++i) data[i] = element(group.rank(), i);
    group.run(request_for(Kind::reduce_scatter, count, {data}, {data + shift}));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = group.rank() * count + i;
      CHECK(data[shift + i] == element(0, index) + element(1, index) + element(2, index));
    }
  });
}

void a_gather_over_its_own_input(std::size_t count, std::size_t shift, bool in_window) {
  on_ranks(3, [=](Group& group) {
    std::vector<float> own(4 * count);
    const auto window = group.allocate(own.size() * sizeof(float));
    float* const data = in_window ? reinterpret_cast<float*>(window->region(group.rank())) : own.data();
    for (std::size_t i = 0; i < count; ++i) data[shift + i] = element(group.rank(), i);
    group.run(request_for(Kind::all_gather, count, {data + shift}, {data}));
    for (std::size_t i = 0; i < 3 * count; ++i) CHECK(data[i] == element(i / count, i % count));
  });
}

// All parts lie in one array, which the result overwrites: unequal ones, or each where the one before it was.
void an_exchange_in_place(std::size_t count, bool equal, bool in_window) {
  on_ranks(3, [=](Group& group) {
    const auto size = [=](std::size_t from, std::size_t to) {
      return equal ? count : count * (1 + (from + 2 * to) % 3) / 3;
    };
    const std::size_t rank = group.rank();
    std::vector<float> own(3 * count);
    const auto window = group.allocate(own.size() * sizeof(float));
    float* const data = in_window ? reinterpret_cast<float*>(window->region(rank)) : own.data();
    Request request = request_for(Kind::all_to_all, 0, {}, {});
    std::size_t sent = 0, received = 0;
    for (std::size_t peer = 0; peer < 3; ++peer) {
      request.inputs.push_back(&data[sent]);
      request.outputs.push_back(&data[received]);
      request.sends.push_back(size(rank, peer));
      request.receives.push_back(size(peer, rank));
      for (std::size_t i = 0; i < size(rank, peer); ++i) data[sent + i] = element(rank * 3 + peer, i);
      sent += size(rank, peer);
      received += size(peer, rank);
    }
    group.run(std::move(request));
    std::size_t next = 0;
    for (std::size_t peer = 0; peer < 3; ++peer) {
      for (std::size_t i = 0; i < size(peer, rank); ++i) CHECK(data[next++] == element(peer * 3 + rank, i));
    }
  });
}

// The root keeps its own part where another rank's part was.
void a_scatter_over_its_own_input(std::size_t count, bool in_window) {
  on_ranks(3, [=](Group& group) {
    std::vector<float> own(3 * count);
    const auto window = group.allocate(own.size() * sizeof(float));
    float* const data = in_window ? reinterpret_cast<float*>(window->region(group.rank())) : own.data();
    Request request = request_for(Kind::scatter, count, {}, {data + count});
    request.root = 0;
    for (std::size_t to = 0; group.rank() == 0 && to < 3; ++to) {
      request.inputs.push_back(data + to * count);
      for (std::size_t i = 0; i < count; ++i) data[to * count + i] = element(to, i);
    }
    group.run(std::move(request));
    for (std::size_t i = 0; i < count; ++i) CHECK(data[count + i] == element(group.rank(), i));
  });
}

}  // namespace

int main() {
  for (const std::size_t count : counts) {
    for (const std::size_t which : {0, 1}) {
      a_sum_of_a_sum_that_is_still_under_way(count, which, false);
      a_sum_of_a_sum_that_is_still_under_way(count, which, true);
      a_sum_is_gathered_while_it_is_under_way(count, which);
    }
    for (const std::size_t place : {0, 1, 2}) {
      a_gather_into_its_own_input(Kind::all_gather, count, place);
      a_gather_into_its_own_input(Kind::gather, count, place);
    }
    for (const std::size_t shift : {count * 0, count / 3, count, count * 3 / 2, count * 2}) {
      for (const bool in_window : {false, true}) {
        a_sum_into_its_own_input(count, shift, in_window);
        a_gather_over_its_own_input(count, shift, in_window);
      }
    }
    for (const bool in_window : {false, true}) {
      for (const bool equal : {false, true}) an_exchange_in_place(count, equal, in_window);
      a_scatter_over_its_own_input(count, in_window);
    }
  }
}
