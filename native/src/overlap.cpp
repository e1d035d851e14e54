#include "overlap.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

namespace samebits {
namespace {

struct Stretch {
  const std::byte* first;
  std::uint64_t bytes;
  bool overlaps(const Stretch& other) const {
    return bytes != 0 && other.bytes != 0 && first < other.first + other.bytes && other.first < first + bytes;
  }
};

std::vector<Stretch> read_by(const Request& request, std::size_t world_size) {
  const bool in_parts = request.kind == Kind::reduce_scatter && request.inputs.size() == 1;
  std::vector<Stretch> found;
  const bool is_own = request.range && request.range->spreads;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const std::uint64_t count = is_own                     ? request.range->size
                                : i < request.sends.size() ? request.sends[i]
                                                           : request.count * (in_parts ? world_size : 1);
    found.push_back({static_cast<const std::byte*>(request.inputs[i]), count * size_of(request.dtype)});
  }
  return found;
}

std::vector<Stretch> written_by(const Request& request, std::size_t world_size) {
  const bool gathers = request.kind == Kind::all_gather || request.kind == Kind::gather;
  const bool in_parts = gathers && request.outputs.size() == 1;
  std::vector<Stretch> found;
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    const std::uint64_t count =
        i < request.receives.size() ? request.receives[i] : request.count * (in_parts ? world_size : 1);
    found.push_back({static_cast<const std::byte*>(request.outputs[i]), count * size_of(request.dtype)});
  }
  return found;
}

bool any_overlap(const std::vector<Stretch>& some, const std::vector<Stretch>& others) {
  return std::any_of(some.begin(), some.end(), [&](const Stretch& one) {
    return std::any_of(others.begin(), others.end(), [&](const Stretch& other) { return one.overlaps(other); });
  });
}

// The same cut into what comes from, or goes to, each rank.
std::vector<Stretch> cut(const std::vector<Stretch>& whole, std::size_t parts) {
  std::vector<Stretch> found;
  for (const Stretch& one : whole) {
    for (std::size_t i = 0; i < parts; ++i) found.push_back({one.first + i * (one.bytes / parts), one.bytes / parts});
  }
  return found;
}

// Whether output `to` may overwrite input `from`, which is the same memory or shares some of it.
bool is_in_place(Kind kind, std::size_t from, std::size_t to, bool is_same, std::size_t rank) {
  switch (kind) {
    case Kind::reduce_scatter:
      return is_same && from == rank;
    case Kind::all_gather:
    case Kind::gather:
      return is_same && to == rank;
    case Kind::all_to_all:  // the rank's own part is moved last
      return to == rank || (is_same && from == to);
    default:
      return is_same;
  }
}

}  // namespace

bool spoils_its_inputs(const Request& request, std::size_t rank, std::size_t world_size) {
  // Only a root writes, and its tensor is an input only if it broadcasts; one that scatters writes at the end.
  if (request.root >= 0 && request.root != static_cast<std::int32_t>(rank)) return false;
  if (request.kind == Kind::scatter) return false;
  if (request.range) return false;  // what it writes lies apart, or is exactly what it reads
  std::vector<Stretch> reads = read_by(request, world_size), writes = written_by(request, world_size);
  if (request.kind == Kind::reduce_scatter && reads.size() == 1) reads = cut(reads, world_size);
  if ((request.kind == Kind::all_gather || request.kind == Kind::gather) && writes.size() == 1) {
    writes = cut(writes, world_size);
  }
  for (std::size_t from = 0; from < reads.size(); ++from) {
    for (std::size_t to = 0; to < writes.size(); ++to) {
      if (!reads[from].overlaps(writes[to])) continue;
      const bool is_same = reads[from].first == writes[to].first && reads[from].bytes == writes[to].bytes;
      if (!is_in_place(request.kind, from, to, is_same, rank)) return true;
    }
  }
  return false;
}

bool overlaps_itself(const Request& request, std::size_t world_size) {
  return any_overlap(read_by(request, world_size), written_by(request, world_size));
}

void copy_inputs(Operation& operation, std::size_t world_size) {
  const std::vector<Stretch> reads = read_by(operation.request, world_size);
  operation.copies.reserve(reads.size());
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].bytes == 0) continue;
    operation.copies.emplace_back(reads[i].first, reads[i].first + reads[i].bytes);
    operation.request.inputs[i] = operation.copies.back().data();
  }
}

bool depends_on(const Request& later, const Operation& earlier, std::size_t world_size) {
  auto written = written_by(earlier.request, world_size);
  for (std::size_t i = 0; i < earlier.targets.size(); ++i) {
    written.push_back({static_cast<const std::byte*>(earlier.targets[i]), earlier.results[i].size()});
  }
  const auto writes = written_by(later, world_size);
  return any_overlap(read_by(later, world_size), written) || any_overlap(writes, written) ||
         any_overlap(writes, read_by(earlier.request, world_size));
}

bool spoils_its_outputs(const Request& request, std::size_t world_size) {
  if (request.outputs.size() < 2) return false;
  std::vector<Stretch> writes = written_by(request, world_size);
  std::erase_if(writes, [](const Stretch& one) { return one.bytes == 0; });
  std::sort(writes.begin(), writes.end(), [](const Stretch& one, const Stretch& other) {
    return std::less<>()(one.first, other.first) || (one.first == other.first && one.bytes < other.bytes);
  });
  return std::adjacent_find(writes.begin(), writes.end(), [](const Stretch& one, const Stretch& other) {
           return one.overlaps(other);
         }) != writes.end();
}

void redirect_outputs(Operation& operation, std::size_t world_size) {
  for (const Stretch& write : written_by(operation.request, world_size)) operation.results.emplace_back(write.bytes);
  operation.targets = operation.request.outputs;
  for (std::size_t i = 0; i < operation.results.size(); ++i) {
    // An empty one keeps its address, which is nobody's memory.
    if (!operation.results[i].empty()) operation.request.outputs[i] = operation.results[i].data();
  }
}

void deliver(Operation& operation) {
  for (std::size_t i = 0; i < operation.targets.size(); ++i) {
    if (operation.results[i].empty()) continue;
    std::memcpy(operation.targets[i], operation.results[i].data(), operation.results[i].size());
  }
}

}  // namespace samebits
