#include "call_order.hpp"

#include <algorithm>

namespace samebits {
namespace {

// What a pair of ranks are to the root: nothing, or one of them is it.
int role(std::int32_t root, std::size_t one, std::size_t other) {
  if (root == static_cast<std::int32_t>(one)) return 1;
  return root == static_cast<std::int32_t>(other) ? 2 : 0;
}

bool is_edge(std::uint64_t left, std::uint64_t right) { return left != 0 && right != 0 && left != right; }

}  // namespace

std::size_t CallOrder::position_of(std::uint32_t number, std::int32_t root, const std::vector<std::uint64_t>& labels,
                                   const Site* mine) {
  for (std::size_t i = 0; i < differences_.size(); ++i) {
    if (differences_[i].root != root || differences_[i].labels != labels) continue;
    differences_[i].last = number;
    differences_[i].mine = mine;
    return i;
  }
  if (differences_.size() == most_differences) {
    differences_.clear();
    accepted_.clear();
  }
  differences_.push_back({number, root, labels, mine});
  return differences_.size() - 1;
}

// Whether `to` goes on where `from` ends: rank `one` calls there what `other` calls in `from`.
bool CallOrder::can_follow(std::size_t from, std::size_t to, std::size_t one, std::size_t other) const {
  const Difference &first = differences_[from], &second = differences_[to];
  return first.labels[other] == second.labels[one] && is_edge(second.labels[one], second.labels[other]) &&
         role(first.root, one, other) == role(second.root, one, other) &&
         std::find(accepted_.begin(), accepted_.end(), std::pair(from, to)) == accepted_.end();
}

// The shortest circle through `start` for two ranks; empty when there is none.
std::vector<std::size_t> CallOrder::circle_through(std::size_t start, std::size_t one, std::size_t other,
                                                   std::uint32_t at_most_apart) const {
  const std::size_t nobody = differences_.size();
  std::vector<std::size_t> came_from(differences_.size(), nobody), queue{start};
  for (std::size_t next = 0; next < queue.size(); ++next) {
    const std::size_t from = queue[next];
    if (from != start && can_follow(from, start, one, other)) {
      std::vector<std::size_t> found;
      for (std::size_t at = from; at != start; at = came_from[at]) found.push_back(at);
      found.push_back(start);
      std::reverse(found.begin(), found.end());
      return found;
    }
    for (std::size_t to = 0; to < differences_.size(); ++to) {
      const bool is_recent = differences_[start].last - differences_[to].last <= at_most_apart;
      if (to == start || came_from[to] != nobody || !is_recent || !can_follow(from, to, one, other)) continue;
      came_from[to] = from;
      queue.push_back(to);
    }
  }
  return {};
}

std::optional<CallOrder::Circle> CallOrder::note(std::uint32_t number, std::int32_t root,
                                                 const std::vector<std::uint64_t>& labels, const Site* mine) {
  const std::size_t here = position_of(number, root, labels, mine);
  if (differences_[here].alone_among == differences_.size()) return std::nullopt;
  bool is_alone = true;
  for (std::size_t other = 1; other < labels.size(); ++other) {
    for (std::size_t one = 0; one < other; ++one) {
      if (!is_edge(labels[one], labels[other])) continue;
      if (circle_through(here, one, other, ~std::uint32_t{0}).empty()) continue;
      is_alone = false;
      std::vector<std::size_t> passed = circle_through(here, one, other, window);
      if (passed.empty()) continue;
      Circle circle{one, other, {}, passed};
      std::sort(passed.begin(), passed.end(), [&](std::size_t a, std::size_t b) {
        return number - differences_[a].last > number - differences_[b].last;
      });
      for (const std::size_t each : passed) circle.sites.push_back(differences_[each].mine);
      return circle;
    }
  }
  if (is_alone) differences_[here].alone_among = differences_.size();
  return std::nullopt;
}

void CallOrder::accept(const Circle& circle) {
  for (std::size_t i = 0; i < circle.passed.size(); ++i) {
    accepted_.emplace_back(circle.passed[i], circle.passed[(i + 1) % circle.passed.size()]);
  }
}

}  // namespace samebits
