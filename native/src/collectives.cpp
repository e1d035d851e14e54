#include "collectives.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "algorithms.hpp"

namespace samebits {
namespace {

bool is_reduction(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

bool needs_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter;
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

// The part of `count` elements that rank `index` of `parts` adds up. Starts at whole cache lines.
Slice slice_of(std::uint64_t count, std::size_t index, std::size_t parts) {
  const std::uint64_t step = round_up((count + parts - 1) / parts, 64);
  const std::uint64_t start = std::min(count, index * step);
  return {start, std::min(count - start, step)};
}

void append_tree(std::vector<std::uint8_t>& program, std::size_t start, std::size_t end) {
  if (end - start == 1) {
    program.push_back(static_cast<std::uint8_t>(start));
    return;
  }
  const std::size_t middle = start + std::bit_floor(end - start - 1);
  append_tree(program, start, middle);
  append_tree(program, middle, end);
  program.push_back(combine);
}

}  // namespace

std::vector<std::uint8_t> tree_program(std::size_t num_leaves) {
  std::vector<std::uint8_t> program;
  append_tree(program, 0, num_leaves);
  return program;
}

bool Everyone::await_ready() const { return group.first_behind(condition) == group.world_size(); }

void Algorithms::tiny_reduce() {
  if (gets_result()) {
    const std::uint64_t first = request.kind == Kind::reduce_scatter ? rank * request.count * size : 0;
    Few<const void*> inputs;
    for (std::size_t peer = 0; peer < world; ++peer) {
      for (std::size_t leaf = 0; leaf < leaves(peer); ++leaf) {
        inputs.push_back(row(peer).payload + leaf * request.count * size + first);
      }
    }
    void* const output = request.outputs[0];
    samebits::reduce(reduction(), inputs, {&output, 1}, request.count);
  }
  has_worked();
}

void Algorithms::end_with_arrivals() {
  switch (request.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
    case Kind::reduce_scatter:
      return tiny_reduce();
    case Kind::broadcast:
    case Kind::all_gather:
    case Kind::gather:
      return tiny_share();
    default:
      return has_worked();
  }
}

void Algorithms::tiny_share() {
  for (std::size_t peer = 0; is_reader() && peer < world; ++peer) {
    if (is_source(peer)) std::memmove(output(peer, 0), row(peer).payload, request.count * size);
  }
  has_worked();
}

// Every rank adds up one slice of everybody's tensors, and writes it to everybody who gets the result.
Task Algorithms::reduce_in_windows() {
  const Slice mine = slice_of(request.count, rank, world);
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (std::size_t peer = 0; peer < world; ++peer) {
    for (std::size_t leaf = 0; leaf < leaves(peer); ++leaf) inputs.push_back(placed(peer, leaf) + mine.start * size);
    const bool gets = request.kind != Kind::reduce || request.root == static_cast<std::int32_t>(peer);
    if (gets) outputs.push_back(placed(peer, leaves(peer)) + mine.start * size);
  }
  samebits::reduce(reduction(), inputs, outputs, mine.size);
  has_worked();
  co_await everyone(Counter::worked, number);
  trust_windows();
}

// Copies elements [start, start + count) of this rank's partial sums into staging, each leaf at a multiple of
// `capacity`.
void Algorithms::stage_reduction(std::uint32_t piece, std::uint64_t start, std::uint64_t count, std::uint64_t capacity,
                                 bool whole) const {
  const Slice mine = whole ? Slice{count, 0} : slice_of(count, rank, world);  // nobody else reads this rank's slice
  for (std::size_t leaf = 0; leaf < leaves(rank); ++leaf) {
    std::byte* const target = staging(rank, piece) + leaf * capacity * size;
    const std::byte* const source = bytes(request.inputs[leaf]) + start * size;
    const std::uint64_t after = mine.start + mine.size;
    std::memcpy(target, source, mine.start * size);
    std::memcpy(target + after * size, source + after * size, (count - after) * size);
  }
}

void Algorithms::reduce_slice(std::uint32_t piece, std::uint64_t start, std::uint64_t capacity, Slice slice) const {
  std::vector<const void*> inputs;
  for (std::size_t peer = 0; peer < world; ++peer) {
    for (std::size_t leaf = 0; leaf < leaves(peer); ++leaf) {
      inputs.push_back(peer == rank ? bytes(request.inputs[leaf]) + (start + slice.start) * size
                                    : staging(peer, piece) + (leaf * capacity + slice.start) * size);
    }
  }
  std::vector<void*> outputs{staging(rank, piece) + slice.start * size};
  if (gets_result()) outputs.push_back(bytes(request.outputs[0]) + (start + slice.start) * size);
  samebits::reduce(reduction(), inputs, outputs, slice.size);
}

// Piece by piece through staging, in two steps: everybody's values, then the sums. The next piece is staged meanwhile.
Task Algorithms::reduce_staged() {
  const std::uint64_t capacity = group.pieces_.piece_bytes / most_leaves() / size / 64 * 64;
  const std::uint64_t num_pieces = (request.count + capacity - 1) / capacity;
  const std::uint32_t first = take_pieces(num_pieces);
  if (num_pieces == 1 && request.count * size * most_leaves() <= group.pieces_.whole_bytes && anyone_crowded()) {
    stage_reduction(first, 0, request.count, capacity, true);
    set_pieces(2 * first);
    co_await everyone(Counter::pieces, 2 * first);
    if (gets_result()) {
      std::vector<const void*> inputs;
      for (std::size_t peer = 0; peer < world; ++peer) {
        for (std::size_t leaf = 0; leaf < leaves(peer); ++leaf)
          inputs.push_back(staging(peer, first) + leaf * capacity * size);
      }
      void* const output = request.outputs[0];
      samebits::reduce(reduction(), inputs, {&output, 1}, request.count);
    }
    has_worked();
    co_return;
  }
  const auto size_of_piece = [&](std::uint64_t index) { return std::min(capacity, request.count - index * capacity); };
  stage_reduction(first, 0, size_of_piece(0), capacity, false);
  set_pieces(2 * first);
  for (std::uint64_t index = 0; index < num_pieces; ++index) {
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, count = size_of_piece(index);
    co_await everyone(Counter::pieces, 2 * piece);
    reduce_slice(piece, start, capacity, slice_of(count, rank, world));
    set_pieces(2 * piece + 1);
    if (index + 1 < num_pieces) {
      stage_reduction(piece + 1, start + capacity, size_of_piece(index + 1), capacity, false);
      set_pieces(2 * piece + 2);
    }
    co_await everyone(Counter::pieces, 2 * piece + 1);
    for (std::size_t peer = 0; gets_result() && peer < world; ++peer) {
      const Slice slice = slice_of(count, peer, world);
      if (peer == rank || slice.size == 0) continue;
      std::memcpy(bytes(request.outputs[0]) + (start + slice.start) * size, staging(peer, piece) + slice.start * size,
                  slice.size * size);
    }
  }
  has_worked();
}

// Two ranks swap all that they have, and each adds up all of it: the caches move as many bytes as if each added up a
// half and handed the sums over, but there is one wait for a piece, and no line is asked for twice.
Task Algorithms::reduce_swapped() {
  const std::uint64_t capacity = swapped_capacity(request.count);
  const std::uint64_t num_pieces = (request.count + capacity - 1) / capacity;
  const std::uint32_t first = take_pieces(num_pieces);
  const auto stage = [&](std::uint64_t index) {
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, count = std::min(capacity, request.count - start);
    std::memcpy(staging(rank, piece), shared_input() + start * size, count * size);
    set_pieces(2 * piece);
  };
  if (num_pieces > 0) stage(0);
  for (std::uint64_t index = 0; index < num_pieces; ++index) {
    if (index + 1 < num_pieces) stage(index + 1);
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, count = std::min(capacity, request.count - start);
    co_await everyone(Counter::pieces, 2 * piece);
    const void* inputs[] = {shared_input() + start * size, shared_input() + start * size};
    inputs[1 - rank] = staging(1 - rank, piece);
    void* const target = bytes(request.outputs[0]) + start * size;
    samebits::reduce(reduction(), inputs, {&target, 1}, count);
  }
  has_worked();
}

Task Algorithms::reduce_scatter() {
  std::vector<const void*> inputs(world);
  void* output = request.outputs[0];
  if (everyone_placed()) {
    for (std::size_t peer = 0; peer < world; ++peer) {
      const bool one = row(peer).num_inputs == 1;
      inputs[peer] = placed(peer, one ? 0 : rank) + (one ? rank * request.count * size : 0);
    }
    samebits::reduce(reduction(), inputs, {&output, 1}, request.count);
    has_worked();
    co_await everyone(Counter::worked, number);
    trust_windows();
    co_return;
  }
  const std::uint64_t capacity =
      is_swapped ? swapped_capacity(request.count) : group.pieces_.piece_bytes / world / size / 64 * 64;
  const std::uint64_t num_pieces = (request.count + capacity - 1) / capacity;
  const std::uint32_t first = take_pieces(num_pieces);
  const auto stage = [&](std::uint64_t index) {
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, count = std::min(capacity, request.count - start);
    for (std::size_t peer = 0; peer < world; ++peer) {
      if (peer != rank) std::memcpy(part_of(rank, peer, piece, capacity), input(peer, start), count * size);
    }
    set_pieces(2 * piece);
  };
  if (num_pieces > 0) stage(0);
  for (std::uint64_t index = 0; index < num_pieces; ++index) {
    if (index + 1 < num_pieces) stage(index + 1);
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, count = std::min(capacity, request.count - start);
    co_await everyone(Counter::pieces, 2 * piece);
    for (std::size_t peer = 0; peer < world; ++peer) {
      inputs[peer] = peer == rank ? input(rank, start) : part_of(peer, rank, piece, capacity);
    }
    void* const target = bytes(output) + start * size;
    samebits::reduce(reduction(), inputs, {&target, 1}, count);
  }
  has_worked();
}

// Of a broadcast in windows: the root writes a rank's part of the tensor to every reader, who copies the rest
// meanwhile.
void Algorithms::broadcast_in_windows() const {
  const auto root = static_cast<std::size_t>(request.root);
  const std::uint64_t whole = request.count * size, pushed = slice_of(whole, 0, world).size;
  const std::byte* const source = placed(root, 0);
  if (rank != root) {
    const std::uint64_t start = all_placed(rank) ? pushed : 0;
    return samebits::copy(output(root, start / size), source + start, whole - start, whole);
  }
  for (std::size_t peer = 0; peer < world; ++peer) {
    if (peer != root && all_placed(peer)) samebits::copy(placed(peer, 1), source, pushed, whole);
  }
  if (output(root, 0) != source) samebits::copy(output(root, 0), source, whole);
}

// broadcast, all_gather, gather: sources show one tensor, readers copy it.
Task Algorithms::share() {
  const std::uint64_t written = request.count * size * (request.kind == Kind::broadcast ? 1 : world);
  bool placed_sources = true;
  for (std::size_t peer = 0; peer < world; ++peer)
    placed_sources = placed_sources && (!is_source(peer) || all_placed(peer));
  if (placed_sources) {
    if (request.kind == Kind::broadcast) broadcast_in_windows();
    for (std::size_t peer = 0; request.kind != Kind::broadcast && is_reader() && peer < world; ++peer) {
      const std::byte* const source = is_source(peer) ? placed(peer, 0) : nullptr;
      if (source != nullptr && source != output(peer, 0))
        samebits::copy(output(peer, 0), source, request.count * size, written);
    }
    has_worked();
    co_await everyone(Counter::worked, number);
    trust_windows();
    co_return;
  }
  const std::uint64_t capacity = is_swapped ? swapped_capacity(request.count) : moved_capacity(request.count, 1);
  const std::uint64_t num_pieces = (request.count + capacity - 1) / capacity;
  const std::uint32_t first = take_pieces(num_pieces);
  const auto stage = [&](std::uint64_t index) {
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, count = std::min(capacity, request.count - start);
    if (is_source(rank)) std::memcpy(staging(rank, piece), shared_input() + start * size, count * size);
    set_pieces(2 * piece);
    // Now, while the caches have the piece.
    if (is_reader() && is_source(rank) && output(rank, 0) != shared_input())
      samebits::copy(output(rank, start), shared_input() + start * size, count * size, written);
  };
  if (num_pieces > 0) stage(0);
  for (std::uint64_t index = 0; index < num_pieces; ++index) {
    if (index + 1 < num_pieces) stage(index + 1);
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    const std::uint64_t start = index * capacity, count = std::min(capacity, request.count - start);
    co_await everyone(Counter::pieces, 2 * piece);
    for (std::size_t peer = 0; is_reader() && peer < world; ++peer) {
      if (peer != rank && is_source(peer))
        samebits::copy(output(peer, start), staging(peer, piece), count * size, written);
    }
  }
  has_worked();
}

// scatter, all_to_all: sources have a separate tensor for each destination.
Task Algorithms::deal() {
  const bool is_scatter = request.kind == Kind::scatter;
  const auto has = [&](std::size_t of) { return !is_scatter || request.root == static_cast<std::int32_t>(of); };
  const auto sent = [&](std::size_t from, std::size_t to) -> std::uint64_t {
    if (is_scatter) return has(from) ? request.count : 0;
    std::uint64_t count;
    std::memcpy(&count, row(from).payload + to * sizeof(count), sizeof(count));
    return count;
  };
  std::uint64_t most = 0, written = 0;
  for (std::size_t from = 0; from < world; ++from) {
    written += sent(from, rank) * size;
    for (std::size_t to = 0; to < world; ++to) {
      most = std::max(most, sent(from, to));
      if (!is_scatter) group.check_expected(operation, from, to, sent(from, to));
    }
  }
  const auto keep_own = [&] {
    const std::uint64_t own = sent(rank, rank) * size;
    if (own == 0) return;
    std::byte* const target = bytes(request.outputs[is_scatter ? 0 : rank]);
    const std::byte* const source = bytes(request.inputs[rank]);
    const bool apart = target + own <= source || source + own <= target;
    apart ? samebits::copy(target, source, own, written) : static_cast<void>(std::memmove(target, source, own));
  };
  bool placed_sources = true;
  for (std::size_t from = 0; from < world; ++from) placed_sources = placed_sources && (!has(from) || all_placed(from));
  if (placed_sources) {
    for (std::size_t from = 0; from < world; ++from) {
      if (from == rank || sent(from, rank) == 0) continue;
      samebits::copy(bytes(request.outputs[is_scatter ? 0 : from]), placed(from, rank), sent(from, rank) * size,
                     written);
    }
    if (!is_scatter) keep_own();
    has_worked();
    co_await everyone(Counter::worked, number);
    trust_windows();
    if (is_scatter) keep_own();  // into what may be another rank's input
    co_return;
  }
  const std::uint64_t capacity = is_swapped ? swapped_capacity(most) : moved_capacity(most, world);
  const std::uint64_t num_pieces = (most + capacity - 1) / capacity;
  const std::uint32_t first = take_pieces(num_pieces);
  const auto part = [&](std::uint64_t total, std::uint64_t index) {
    const std::uint64_t start = std::min(total, index * capacity);
    return Slice{start, std::min(capacity, total - start)};
  };
  const auto stage = [&](std::uint64_t index) {
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    for (std::size_t to = 0; has(rank) && to < world; ++to) {
      const Slice slice = part(sent(rank, to), index);
      if (to == rank || slice.size == 0) continue;
      std::memcpy(part_of(rank, to, piece, capacity), bytes(request.inputs[to]) + slice.start * size,
                  slice.size * size);
    }
    set_pieces(2 * piece);
  };
  if (num_pieces > 0) stage(0);
  for (std::uint64_t index = 0; index < num_pieces; ++index) {
    if (index + 1 < num_pieces) stage(index + 1);
    const std::uint32_t piece = first + static_cast<std::uint32_t>(index);
    co_await everyone(Counter::pieces, 2 * piece);
    for (std::size_t from = 0; from < world; ++from) {
      const Slice slice = part(sent(from, rank), index);
      if (from == rank || slice.size == 0) continue;
      samebits::copy(bytes(request.outputs[is_scatter ? 0 : from]) + slice.start * size,
                     part_of(from, rank, piece, capacity), slice.size * size, written);
    }
  }
  keep_own();
  has_worked();
}

bool is_tiny(const Request& request, std::size_t world_size) {
  const std::uint64_t one = request.count * size_of(request.dtype);
  if (request.range) return false;
  switch (request.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      return one * (request.leaves.empty() ? 1 : *std::max_element(request.leaves.begin(), request.leaves.end())) <=
             payload_bytes;
    case Kind::reduce_scatter:
      return one * world_size <= payload_bytes;
    case Kind::broadcast:
    case Kind::all_gather:
    case Kind::gather:
      return one <= payload_bytes;
    default:
      return false;
  }
}

bool ends_with_arrivals(const Request& request, std::size_t world_size) {
  const bool has_no_numbers =
      request.kind == Kind::barrier || request.kind == Kind::allocate || request.kind == Kind::new_group;
  return has_no_numbers || is_tiny(request, world_size);
}

std::size_t write_payload(const Request& request, std::size_t rank, std::size_t world_size, std::byte* payload) {
  if (request.kind == Kind::all_to_all) {  // what each rank sends and expects
    const std::size_t size = request.sends.size() * sizeof(std::uint64_t);
    std::memcpy(payload, request.sends.data(), size);
    std::memcpy(payload + size, request.receives.data(), size);
    return 2 * size;
  }
  if (request.range) {  // where its part of the sum is
    const std::uint64_t bounds[] = {request.range->start, request.range->size};
    std::memcpy(payload, bounds, sizeof(bounds));
    return sizeof(bounds);
  }
  if (request.kind == Kind::broadcast && request.root != static_cast<std::int32_t>(rank)) return 0;
  const std::size_t num_parts = request.kind == Kind::reduce_scatter && request.inputs.size() == 1 ? world_size : 1;
  const std::size_t one = request.count * size_of(request.dtype) * num_parts;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) std::memcpy(payload + i * one, request.inputs[i], one);
  return one * request.inputs.size();
}

Task start(Group& group, Operation& operation) {
  const Request& request = operation.request;
  if (ends_with_arrivals(request, group.world_size())) {
    Algorithms(group, operation).end_with_arrivals();
    return {};
  }
  const auto kept = std::make_shared<Algorithms>(group, operation);  // coroutines refer to it
  Algorithms& algorithms = *kept;
  operation.kept = kept;
  if (request.range) return request.range->spreads ? algorithms.spread_range() : algorithms.reduce_range();
  switch (request.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      if (algorithms.everyone_placed()) return algorithms.reduce_in_windows();
      return algorithms.is_swapped ? algorithms.reduce_swapped() : algorithms.reduce_staged();
    case Kind::reduce_scatter:
      return algorithms.reduce_scatter();
    case Kind::broadcast:
    case Kind::all_gather:
    case Kind::gather:
      return algorithms.share();
    case Kind::scatter:
    case Kind::all_to_all:
      return algorithms.deal();
    default:
      throw BadCall("unknown operation");
  }
}

void check_request(const Request& request, std::size_t rank, std::size_t world_size) {
  const bool has_root = needs_root(request.kind);
  if (has_root != (request.root >= 0) || request.root >= static_cast<std::int32_t>(world_size)) {
    throw BadCall("there is no rank " + std::to_string(request.root) + " in a group of " + std::to_string(world_size));
  }
  if (!is_reduction(request.kind)) return;
  if (request.range && (request.range->size > request.count ||
                        request.range->start > request.count - request.range->size)) {  // their sum may not fit
    throw BadCall("the range ends behind the sum");
  }
  const bool is_floating = request.dtype <= Dtype::bfloat16;
  if (!is_floating && request.scale != Scale::none) throw BadCall("only floating-point numbers can be scaled");
  if (request.dtype == Dtype::boolean && request.op == ReduceOp::average) throw BadCall("booleans have no average");
  if (is_floating && request.op >= ReduceOp::bit_and) {
    throw BadCall(std::string(name_of(request.dtype)) + " has no bits to combine");
  }
  std::size_t num_leaves = world_size;
  if (request.range && request.range->spreads) {
    num_leaves = request.inputs.size();
  } else if (!request.leaves.empty()) {
    if (request.leaves.size() != world_size) throw BadCall("the number of partial sums is needed for each rank");
    num_leaves = 0;
    for (const std::uint8_t count : request.leaves) num_leaves += count;
    if (request.inputs.size() != request.leaves[rank]) throw BadCall("this rank has the wrong number of partial sums");
  }
  const bool fits = request.program.empty() ? num_leaves == world_size : is_valid(request.program, num_leaves);
  if (!fits) throw BadCall("the order of the sum does not fit its terms");
}

}  // namespace samebits
