// The least work of a collective on tensors in windows, which every rank can read and write: one exchange of flags
// before it, one after it, and in between the additions or copies themselves. Nothing is described, compared or
// watched. Right numbers come out, so it is a program that exists: the limit of what operations in windows can reach
// between the same cores and caches. Compiled by bare.py.
//
//   all_reduce      each rank adds up a slice of everybody's tensors, and writes it into all of them
//   reduce_scatter  each rank adds up its share of everybody's tensors
//   all_to_all      each rank reads its shares of the others' tensors, or writes theirs
//   all_gather      the same with parts
//   broadcast       the readers read, or the root writes, or both a part of it
//   send            to the neighbour and back: the receiver reads, or the sender writes
//
// Pushing (writing into the others' tensors) and streaming stores are the caller's to try.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" void stream_copy(std::byte* target, const std::byte* source, std::size_t num_bytes);
extern "C" void exchange_flags(std::byte* flags, std::size_t rank, std::size_t num_ranks, std::uint32_t times);

namespace {

constexpr std::size_t most_ranks = 64, block = 1024;  // floats of a sum that is streamed; 4 KiB stay in the first cache

enum Kind { all_reduce, reduce_scatter, all_to_all, all_gather, broadcast, send };

// One rank's tensors as this process sees them. In-place kinds work on `out`.
struct Tensors {
  const float* in;
  float* out;
};

struct Bare {
  std::byte* flags;
  std::size_t rank, num_ranks;
  const Tensors* of;
  std::size_t count;  // floats of a whole tensor that is worked on in place, else of a share
  bool pushes, streams;

  void meet() const { exchange_flags(flags, rank, num_ranks, 1); }
  void copy(float* target, const float* source, std::size_t floats) const {
    const bool aligned =
        (reinterpret_cast<std::uintptr_t>(target) | reinterpret_cast<std::uintptr_t>(source)) % 64 == 0;
    if (streams && aligned) {
      stream_copy(reinterpret_cast<std::byte*>(target), reinterpret_cast<const std::byte*>(source),
                  floats * sizeof(float));
    } else {
      std::memcpy(target, source, floats * sizeof(float));
    }
  }
};

// Any order of terms will do for the whole numbers that are checked.
void add_into(float* target, const float* const* inputs, std::size_t num_inputs, std::size_t at, std::size_t count) {
  const float* from = inputs[0] + at;
  for (std::size_t input = 1; input < num_inputs; ++input) {
    const float* const more = inputs[input] + at;
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) target[i] = from[i] + more[i];
    from = target;
  }
}

// The tensors of two ranks, each of which gets the sum: every line is read once and written once.
void add_in_place(float* a, float* b, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

// Into all outputs, which may be inputs, by way of a little memory that stays in the first cache.
void add(const Bare& bare, float* const* outputs, std::size_t num_outputs, const float* const* inputs,
         std::size_t count) {
  alignas(64) float sums[block];
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t size = std::min(block, count - at);
    add_into(sums, inputs, bare.num_ranks, at, size);
    for (std::size_t output = 0; output < num_outputs; ++output) bare.copy(outputs[output] + at, sums, size);
  }
}

void sum_of_all(const Bare& bare) {
  const std::size_t step = ((bare.count + bare.num_ranks - 1) / bare.num_ranks + 15) / 16 * 16;
  const std::size_t start = std::min(bare.count, bare.rank * step), size = std::min(bare.count - start, step);
  float* outputs[most_ranks];
  const float* inputs[most_ranks];
  for (std::size_t peer = 0; peer < bare.num_ranks; ++peer) inputs[peer] = outputs[peer] = bare.of[peer].out + start;
  if (bare.num_ranks == 2 && !bare.streams) return add_in_place(outputs[0], outputs[1], size);
  add(bare, outputs, bare.num_ranks, inputs, size);
}

void sum_of_shares(const Bare& bare) {
  const float* inputs[most_ranks];
  for (std::size_t peer = 0; peer < bare.num_ranks; ++peer) inputs[peer] = bare.of[peer].in + bare.rank * bare.count;
  float* const output = bare.of[bare.rank].out;
  if (!bare.streams) return add_into(output, inputs, bare.num_ranks, 0, bare.count);
  add(bare, &output, 1, inputs, bare.count);
}

// all_gather and all_to_all: from one rank's share to another's place for it.
void shares(const Bare& bare, bool same_for_all) {
  for (std::size_t step = 0; step < bare.num_ranks; ++step) {
    const std::size_t peer = (bare.rank + step) % bare.num_ranks;
    const std::size_t from = bare.pushes ? bare.rank : peer, to = bare.pushes ? peer : bare.rank;
    bare.copy(bare.of[to].out + from * bare.count, bare.of[from].in + (same_for_all ? 0 : to * bare.count), bare.count);
  }
}

// With pushes the root writes an equal part into each reader's tensor, who reads the rest meanwhile.
void from_root(const Bare& bare) {
  const std::size_t pushed = bare.pushes ? bare.count / bare.num_ranks / 16 * 16 : 0;
  const float* const source = bare.of[0].out;
  if (bare.rank != 0) return bare.copy(bare.of[bare.rank].out + pushed, source + pushed, bare.count - pushed);
  for (std::size_t peer = 1; peer < bare.num_ranks; ++peer) bare.copy(bare.of[peer].out, source, pushed);
}

void there_and_back(const Bare& bare) {
  const std::size_t peer = bare.rank ^ 1;
  for (std::size_t turn = 0; turn < 2; ++turn) {
    const bool sends = bare.rank % 2 == turn;
    if (turn == 1) bare.meet();
    if (sends == bare.pushes) {
      bare.copy(bare.of[sends ? peer : bare.rank].out, bare.of[sends ? bare.rank : peer].out, bare.count);
    }
  }
}

}  // namespace

extern "C" {

// Collective, on ranks that call with the same numbers. `flags` as exchange_flags wants it; `tensors` has the addresses
// of each rank's in and out, as this process maps them.
void bare_windows(std::byte* flags, int kind, std::size_t rank, std::size_t num_ranks, const void* tensors,
                  std::size_t count, bool pushes, bool streams) {
  const Bare bare{flags, rank, num_ranks, static_cast<const Tensors*>(tensors), count, pushes, streams};
  bare.meet();
  switch (kind) {
    case all_reduce:
      sum_of_all(bare);
      break;
    case reduce_scatter:
      sum_of_shares(bare);
      break;
    case broadcast:
      from_root(bare);
      break;
    case send:
      there_and_back(bare);
      break;
    default:
      shares(bare, kind == all_gather);
  }
  bare.meet();
}
}
