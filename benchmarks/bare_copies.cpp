// The least number of copies with which a collective can move ordinary tensors, which only their own process can see,
// through shared memory: nothing is described, compared or watched, and a rank that waits does nothing else. Right sums
// come out, so it is a program that exists, and the limit of what ordinary tensors can reach by these copies. Compiled
// by bare.py.
//
//   all_reduce      others' shares into staging; the own share added up into tensor and staging; the others' sums out
//   reduce_scatter  others' shares into staging; the own share added up into the result
//   all_to_all      others' shares into staging; out of the others' staging; the own share once
//   all_gather      the part into staging; out of the others' staging; the own part once
//   broadcast       the root's tensor into staging; out of it
//   send            to the neighbour and back: into staging, and out of it, twice
//
// Two ranks that both have something for the other one swap slots: each fills the one that it has read. Then an
// all_reduce is the whole tensor into a slot, and the other's added to the own one.
//
// Piece by piece: while a piece is read, the next one is staged. `piece` bytes and streaming stores are the caller's to
// try.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#ifdef __SSE2__
#include <immintrin.h>
#endif

extern "C" void stream_copy(std::byte* target, const std::byte* source, std::size_t num_bytes);

namespace {

constexpr std::size_t num_slots = 3, line = 128, most_ranks = 64, head = most_ranks * line;
constexpr int looks_before_yield = 2000;

struct alignas(line) Counters {
  std::atomic<std::uint64_t> staged, reduced, read;
};

enum Kind { all_reduce, reduce_scatter, all_to_all, all_gather, broadcast, send };

struct Slice {
  std::size_t start, size;  // floats
};

// Ranks share `count` floats in whole cache lines.
Slice slice_of(std::size_t count, std::size_t rank, std::size_t num_ranks) {
  const std::size_t step = ((count + num_ranks - 1) / num_ranks + 15) / 16 * 16, start = std::min(count, rank * step);
  return {start, std::min(count - start, step)};
}

struct Bare {
  std::byte* shared;                               // Counters of each rank, then each rank's slots
  std::size_t rank, num_ranks, slot_bytes, piece;  // piece: floats of one step
  bool streams, swaps;
  std::uint64_t first;

  Counters& of(std::size_t peer) const { return reinterpret_cast<Counters*>(shared)[peer]; }
  float* slot(std::size_t peer, std::uint64_t number) const {
    const std::size_t at = swaps ? number % 2 * 2 + (number / 2 + peer) % 2 : peer * num_slots + number % num_slots;
    return reinterpret_cast<float*>(shared + head + at * slot_bytes);
  }
  void copy_out(float* target, const float* source, std::size_t count) const {
    const bool aligned =
        (reinterpret_cast<std::uintptr_t>(target) | reinterpret_cast<std::uintptr_t>(source)) % 64 == 0;
    if (streams && aligned) {
      stream_copy(reinterpret_cast<std::byte*>(target), reinterpret_cast<const std::byte*>(source),
                  count * sizeof(float));
    } else {
      std::memcpy(target, source, count * sizeof(float));
    }
  }
  void wait(std::atomic<std::uint64_t> Counters::* counter, std::uint64_t value, std::size_t only) const {
    for (std::size_t peer = 0; peer < num_ranks; ++peer) {
      if (only != num_ranks && peer != only) continue;
      int looks = 0;
      while ((of(peer).*counter).load(std::memory_order_acquire) < value) {
        if (++looks > looks_before_yield) std::this_thread::yield();
#ifdef __SSE2__
        _mm_pause();
#endif
      }
    }
  }
};

// own += another's, or the first two of more; into one or two places at once.
void add(float* target, float* second, const float* a, const float* b, std::size_t count) {
  if (second == nullptr) {
    for (std::size_t i = 0; i < count; ++i) target[i] = a[i] + b[i];
    return;
  }
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    target[i] = sum;
    second[i] = sum;
  }
}

// In the order of the ranks' tree this would be the engine's; here any order will do for the whole numbers that are
// checked.
void reduce(const Bare& bare, std::uint64_t number, float* target, float* second, const float* own, std::size_t at,
            std::size_t count) {
  const float* from = own;
  for (std::size_t step = 1; step < bare.num_ranks; ++step) {
    const std::size_t peer = (bare.rank + step) % bare.num_ranks;
    const bool is_last = step + 1 == bare.num_ranks;
    add(target, is_last ? second : nullptr, from, bare.slot(peer, number) + at, count);
    from = target;
  }
}

// The steps of every kind: staged ahead by one, then worked on; all_reduce has a third.
template <typename Stage, typename Work, typename Finish>
void pieces(const Bare& bare, std::size_t count, std::size_t only, Stage stage, Work work, Finish finish) {
  const std::size_t num_pieces = (count + bare.piece - 1) / bare.piece;
  Counters& own = bare.of(bare.rank);
  const auto begin = [&](std::size_t index) {
    if (index >= num_pieces) return;
    const std::uint64_t number = bare.first + index;
    if (number >= num_slots) bare.wait(&Counters::read, number + 1 - num_slots, only);
    stage(number, index * bare.piece, std::min(bare.piece, count - index * bare.piece));
    own.staged.store(number + 1, std::memory_order_release);
  };
  begin(0);
  for (std::size_t index = 0; index < num_pieces; ++index) {
    const std::uint64_t number = bare.first + index;
    const std::size_t start = index * bare.piece, size = std::min(bare.piece, count - start);
    if constexpr (Finish::is_needed) {
      bare.wait(&Counters::staged, number + 1, only);
      work(number, start, size);
      own.reduced.store(number + 1, std::memory_order_release);
      begin(index + 1);
      bare.wait(&Counters::reduced, number + 1, only);
      finish(number, start, size);
    } else {
      begin(index + 1);
      bare.wait(&Counters::staged, number + 1, only);
      work(number, start, size);
    }
    own.read.store(number + 1, std::memory_order_release);
  }
}

struct Nothing {
  static constexpr bool is_needed = false;
};

template <typename Function>
struct Finish : Function {
  static constexpr bool is_needed = true;
};
template <typename Function>
Finish(Function) -> Finish<Function>;

void sum_of_all(const Bare& bare, float* data, std::size_t count) {
  const auto own_part = [&](std::size_t size) { return slice_of(size, bare.rank, bare.num_ranks); };
  pieces(
      bare, count, bare.num_ranks,
      [&](std::uint64_t number, std::size_t start, std::size_t size) {
        const Slice own = own_part(size);
        float* const slot = bare.slot(bare.rank, number);
        const std::size_t after = own.start + own.size;
        std::memcpy(slot, data + start, own.start * sizeof(float));
        std::memcpy(slot + after, data + start + after, (size - after) * sizeof(float));
      },
      [&](std::uint64_t number, std::size_t start, std::size_t size) {
        const Slice own = own_part(size);
        float* const target = data + start + own.start;
        reduce(bare, number, target, bare.slot(bare.rank, number) + own.start, target, own.start, own.size);
      },
      Finish{[&](std::uint64_t number, std::size_t start, std::size_t size) {
        for (std::size_t step = 1; step < bare.num_ranks; ++step) {
          const std::size_t peer = (bare.rank + step) % bare.num_ranks;
          const Slice theirs = slice_of(size, peer, bare.num_ranks);
          bare.copy_out(data + start + theirs.start, bare.slot(peer, number) + theirs.start, theirs.size);
        }
      }});
}

void sum_of_two(const Bare& bare, float* data, std::size_t count) {
  pieces(
      bare, count, bare.num_ranks,
      [&](std::uint64_t number, std::size_t start, std::size_t size) {
        std::memcpy(bare.slot(bare.rank, number), data + start, size * sizeof(float));
      },
      [&](std::uint64_t number, std::size_t start, std::size_t size) {
        reduce(bare, number, data + start, nullptr, data + start, 0, size);
      },
      Nothing{});
}

// reduce_scatter and all_to_all: `count` floats for each rank, side by side in a slot.
void shares(const Bare& bare, Kind kind, const float* in, float* out, std::size_t count) {
  Bare narrow = bare;
  if (!bare.swaps) narrow.piece = std::max<std::size_t>(16, bare.piece / bare.num_ranks / 16 * 16);
  const auto part_of = [&](std::size_t peer) { return bare.swaps ? 0 : peer * narrow.piece; };
  if (kind == all_to_all) {
    bare.copy_out(out + bare.rank * count, in + bare.rank * count, count);
  }
  pieces(
      narrow, count, bare.num_ranks,
      [&](std::uint64_t number, std::size_t start, std::size_t size) {
        for (std::size_t peer = 0; peer < bare.num_ranks; ++peer) {
          if (peer == bare.rank) continue;
          std::memcpy(bare.slot(bare.rank, number) + part_of(peer), in + peer * count + start, size * sizeof(float));
        }
      },
      [&](std::uint64_t number, std::size_t start, std::size_t size) {
        const std::size_t at = part_of(bare.rank);
        if (kind == reduce_scatter) {
          reduce(bare, number, out + start, nullptr, in + bare.rank * count + start, at, size);
          return;
        }
        for (std::size_t step = 1; step < bare.num_ranks; ++step) {
          const std::size_t peer = (bare.rank + step) % bare.num_ranks;
          bare.copy_out(out + peer * count + start, bare.slot(peer, number) + at, size);
        }
      },
      Nothing{});
}

// all_gather and broadcast: one tensor of `count` floats for everybody.
void share(const Bare& bare, Kind kind, const float* in, float* out, std::size_t count) {
  const bool is_source = kind == all_gather || bare.rank == 0;
  if (kind == all_gather) bare.copy_out(out + bare.rank * count, in, count);
  pieces(
      bare, count, bare.num_ranks,
      [&](std::uint64_t number, std::size_t start, std::size_t size) {
        if (is_source) std::memcpy(bare.slot(bare.rank, number), in + start, size * sizeof(float));
      },
      [&](std::uint64_t number, std::size_t start, std::size_t size) {
        for (std::size_t step = 1; step < bare.num_ranks; ++step) {
          const std::size_t peer = (bare.rank + step) % bare.num_ranks;
          if (kind == broadcast && peer != 0) continue;
          bare.copy_out(out + (kind == all_gather ? peer * count : 0) + start, bare.slot(peer, number), size);
        }
      },
      Nothing{});
}

void there_and_back(Bare bare, float* data, std::size_t count) {
  const std::size_t peer = bare.rank ^ 1;
  for (std::size_t turn = 0; turn < 2; ++turn) {
    const bool sends = bare.rank % 2 == turn;
    pieces(
        bare, count, peer,
        [&](std::uint64_t number, std::size_t start, std::size_t size) {
          if (sends) std::memcpy(bare.slot(bare.rank, number), data + start, size * sizeof(float));
        },
        [&](std::uint64_t number, std::size_t start, std::size_t size) {
          if (!sends) bare.copy_out(data + start, bare.slot(peer, number), size);
        },
        Nothing{});
    bare.first += (count + bare.piece - 1) / bare.piece;
  }
}

}  // namespace

extern "C" {

// What `shared` must have, zeroed, for pieces of at most this many bytes.
std::size_t bare_bytes(std::size_t num_ranks, std::size_t most_piece_bytes) {
  return head + num_ranks * num_slots * most_piece_bytes;
}

// Collective, on ranks that call with the same numbers. `count`: floats of `in`, where it is the same on all ranks and
// for all (all_reduce, broadcast, send), else of one share. In-place kinds work on `out`.
void bare_exchange(std::byte* shared, int kind, std::size_t rank, std::size_t num_ranks, const float* in, float* out,
                   std::size_t count, std::size_t piece_bytes, std::size_t slot_bytes, bool streams) {
  const bool swaps = num_ranks == 2 && kind != broadcast && kind != send;
  Bare bare{shared, rank, num_ranks, slot_bytes, piece_bytes / sizeof(float), streams, swaps, 0};
  bare.first = bare.of(rank).read.load(std::memory_order_relaxed);
  switch (kind) {
    case all_reduce:
      return swaps ? sum_of_two(bare, out, count) : sum_of_all(bare, out, count);
    case reduce_scatter:
    case all_to_all:
      return shares(bare, static_cast<Kind>(kind), in, out, count);
    case all_gather:
    case broadcast:
      return share(bare, static_cast<Kind>(kind), in, out, count);
    default:
      return there_and_back(bare, out, count);
  }
}
}
