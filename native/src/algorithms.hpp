// One operation as a rank carries it out: what the algorithms share. They are in collectives.cpp and ranges.cpp.
#pragma once

#include <algorithm>
#include <coroutine>

#include "group.hpp"

namespace samebits {

inline const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
inline std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

// Some elements of a tensor, one after the other.
struct Slice {
  std::uint64_t start, size;
};

// Suspends until every rank has reached the condition.
struct Everyone {
  Group& group;
  Operation& operation;
  Condition condition;
  bool await_ready() const;
  void await_suspend(std::coroutine_handle<>) { operation.waits_for = condition; }
  void await_resume() {}
};

// A tensor operation as seen by one rank, with what the algorithms share.
struct Algorithms {
  Group& group;
  Operation& operation;
  const Request& request;
  std::size_t rank, world, size;  // size of an element in bytes
  std::uint32_t number;
  bool is_swapped;

  Algorithms(Group& group, Operation& operation)
      : group(group),
        operation(operation),
        request(operation.request),
        rank(group.rank_),
        world(group.world_size()),
        size(size_of(operation.request.dtype)),
        number(operation.number),
        is_swapped(swaps()) {}

  Everyone everyone(Counter counter, std::uint32_t target) const { return {group, operation, {counter, target}}; }
  Row& row(std::size_t of) const { return group.row(of, number); }
  bool all_placed(std::size_t of) const { return row(of).all_placed != 0; }
  bool everyone_placed() const {
    for (std::size_t peer = 0; peer < world; ++peer) {
      if (!all_placed(peer)) return false;
    }
    return true;
  }
  bool anyone_crowded() const {
    for (std::size_t peer = 0; peer < world; ++peer) {
      if (row(peer).is_crowded != 0) return true;
    }
    return false;
  }
  std::byte* placed(std::size_t of, std::size_t index) const { return group.at(row(of).places[index], of); }
  // Each of two ranks has something for the other one, of which it sends as much as it gets.
  bool swaps() const {
    if (world != 2 || request.range) return false;
    const bool is_sum = request.kind == Kind::all_reduce && most_leaves() == 1 && leaves(0) == leaves(1);
    return is_sum || request.kind == Kind::all_gather || request.kind == Kind::all_to_all ||
           request.kind == Kind::reduce_scatter;
  }
  std::byte* staging(std::size_t of, std::uint32_t piece) const {
    return is_swapped ? group.swapped(of, piece) : group.staging(of, piece);
  }
  // What this rank has for `to` lies in its piece from here on; two ranks have nothing for others in it.
  std::byte* part_of(std::size_t from, std::size_t to, std::uint32_t piece, std::uint64_t capacity) const {
    return staging(from, piece) + (is_swapped ? 0 : to * capacity * size);
  }
  // Elements of a piece of `count` that are swapped. Where waiting is dear, few large ones.
  std::uint64_t swapped_capacity(std::uint64_t count) const {
    const std::uint64_t part = std::max(count * size / Pieces::swapped_pieces, Pieces::least_swapped);
    const std::uint64_t most = anyone_crowded() ? Pieces::largest_swapped : group.pieces_.swapped_bytes;
    return std::min(anyone_crowded() ? most : part / 4096 * 4096, most) / size;
  }
  // Of `count` that are moved, of which a buffer holds `parts` pieces.
  std::uint64_t moved_capacity(std::uint64_t count, std::uint64_t parts) const {
    const std::uint64_t part = std::max(count * size / Pieces::moved_pieces, Pieces::least_moved);
    return std::min({part / 4096 * 4096, std::uint64_t{group.pieces_.moved_bytes}, group.pieces_.piece_bytes / parts}) /
           size;
  }
  void set_pieces(std::uint32_t value) const { group.set(Counter::pieces, value); }
  // Pieces are numbered across all operations of a group; returns this operation's first.
  std::uint32_t take_pieces(std::uint64_t count) const {
    const std::uint32_t first = group.piece_ + 1;
    group.piece_ += static_cast<std::uint32_t>(count);
    return first;
  }
  // This rank has read all that it needs: the next operation may go on.
  void has_worked() const {
    operation.has_worked = true;
    group.set(Counter::worked, number);
  }
  // The last step of an operation in windows. A rank that got an error may have changed its tensors while this one read
  // them.
  void trust_windows() const { group.throw_if_broken(); }

  std::size_t leaves(std::size_t of) const { return request.leaves.empty() ? 1 : request.leaves[of]; }
  std::size_t most_leaves() const {
    return request.leaves.empty() ? 1 : *std::max_element(request.leaves.begin(), request.leaves.end());
  }
  bool gets_result() const { return request.kind != Kind::reduce || request.root == static_cast<std::int32_t>(rank); }
  Reduction reduction() const {
    const auto& program = request.program.empty() ? group.default_program_ : request.program;
    return {request.dtype, request.op, program, request.scale, request.factor};
  }

  // The input for one destination, the output for one source: separate tensors, or parts of one.
  const std::byte* input(std::size_t destination, std::uint64_t offset_elements) const {
    if (request.inputs.size() == 1)
      return bytes(request.inputs[0]) + (destination * request.count + offset_elements) * size;
    return bytes(request.inputs[destination]) + offset_elements * size;
  }
  std::byte* output(std::size_t source, std::uint64_t offset_elements) const {
    if (request.outputs.size() == 1 && request.kind != Kind::broadcast) {
      return bytes(request.outputs[0]) + (source * request.count + offset_elements) * size;
    }
    return bytes(request.outputs[request.kind == Kind::broadcast ? 0 : source]) + offset_elements * size;
  }

  void end_with_arrivals();
  void tiny_reduce();
  void tiny_share();
  Task reduce_in_windows();
  Task reduce_staged();
  Task reduce_swapped();
  Task reduce_range();
  Task spread_range();
  Task reduce_scatter();
  void broadcast_in_windows() const;
  Task share();
  Task deal();

  // share: who has something, and who wants it
  bool is_source(std::size_t of) const {
    return request.kind != Kind::broadcast || request.root == static_cast<std::int32_t>(of);
  }
  bool is_reader() const { return request.kind != Kind::gather || request.root == static_cast<std::int32_t>(rank); }
  const std::byte* shared_input() const { return bytes(request.inputs[0]); }
  void stage_reduction(std::uint32_t piece, std::uint64_t start, std::uint64_t count, std::uint64_t capacity,
                       bool whole) const;
  void reduce_slice(std::uint32_t piece, std::uint64_t start, std::uint64_t capacity, Slice slice) const;
};

}  // namespace samebits
