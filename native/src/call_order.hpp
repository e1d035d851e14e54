// Finds ranks that make the same calls in a different order, from the labels of their calls.
//
// Ranks may call one operation from different lines (`if rank == 0: ... else: ...`), so a difference says nothing. But
// when at one operation rank i calls A where rank j calls B, and at another one i calls B where j calls A, the two have
// swapped them; with more calls the differences close a circle too. Every rank sees the same labels, so all find the
// same circles at the same operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "site.hpp"

namespace samebits {

class CallOrder {
 public:
  // Differences this many operations apart do not belong to one swap.
  static constexpr std::uint32_t window = 64;

  struct Circle {
    std::size_t one, other;           // the ranks
    std::vector<const Site*> sites;   // of this rank, in the order of the operations
    std::vector<std::size_t> passed;  // the differences that close it, each followed by the next, for `accept`
  };

  // The labels of all ranks at an operation, at least two of which differ. `root`: -1 where all ranks do the same; a
  // root's call may differ from the others' by its role, so only differences with the same roles close a circle.
  std::optional<Circle> note(std::uint32_t number, std::int32_t root, const std::vector<std::uint64_t>& labels,
                             const Site* mine);
  // These calls belong together; do not find them again.
  void accept(const Circle& circle);

 private:
  static constexpr std::size_t most_differences = 32;  // older ones are forgotten
  struct Difference {
    std::uint32_t last;  // the operation at which it was last seen
    std::int32_t root;
    std::vector<std::uint64_t> labels;
    const Site* mine;
    std::size_t alone_among = 0;  // this many differences, with none of which it closed a circle
  };

  std::size_t position_of(std::uint32_t number, std::int32_t root, const std::vector<std::uint64_t>& labels,
                          const Site* mine);
  std::vector<std::size_t> circle_through(std::size_t start, std::size_t one, std::size_t other,
                                          std::uint32_t at_most_apart) const;
  bool can_follow(std::size_t from, std::size_t to, std::size_t one, std::size_t other) const;

  std::vector<Difference> differences_;
  std::vector<std::pair<std::size_t, std::size_t>> accepted_;
};

}  // namespace samebits
