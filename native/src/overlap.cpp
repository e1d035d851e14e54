#include "overlap.hpp"

#include <algorithm>

namespace lockstep {
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
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const std::uint64_t count =
        i < request.sends.size() ? request.sends[i] : request.count * (in_parts ? world_size : 1);
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

}  // namespace

bool depends_on(const Request& later, const Request& earlier, std::size_t world_size) {
  const auto written = written_by(earlier, world_size), writes = written_by(later, world_size);
  return any_overlap(read_by(later, world_size), written) || any_overlap(writes, written) ||
         any_overlap(writes, read_by(earlier, world_size));
}

}  // namespace lockstep
