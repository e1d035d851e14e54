// Whether the ranks call the same operations, and the sentences that say where they do not.
#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "group.hpp"

namespace samebits {
namespace {

// "rank 0: one; ranks 1, 2: other": ranks with the same text together, in their order.
class Parts {
 public:
  void add(std::size_t rank, const std::string& name, const std::string& text) {
    auto& part = parts_[text];
    if (part.names.empty()) part.first = rank;
    part.names.push_back(name);
  }
  std::string text() const {
    std::map<std::size_t, std::string> ordered;
    for (const auto& [text, part] : parts_) {
      std::string names = part.names.size() == 1 ? "rank " : "ranks ";
      for (std::size_t i = 0; i < part.names.size(); ++i) names += (i == 0 ? "" : ", ") + part.names[i];
      ordered[part.first] = names + ": " + text;
    }
    std::string all;
    for (const auto& [first, text] : ordered) all += (all.empty() ? "" : "; ") + text;
    return all;
  }

 private:
  struct Part {
    std::size_t first = 0;
    std::vector<std::string> names;
  };
  std::map<std::string, Part> parts_;
};

}  // namespace

// Of what all ranks say about an operation.
Group::Sameness Group::sameness(std::uint32_t number) const {
  const Row& mine = row(rank_, number);
  Sameness same;
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    const Row& theirs = row(peer, number);
    same.labels = same.labels && mine.label == theirs.label;
    same.descriptions =
        same.descriptions && std::memcmp(&mine.description, &theirs.description, sizeof(Description)) == 0;
  }
  return same;
}

void Group::compare(Operation& operation) {
  const Sameness same = sameness(operation.number);
  // From here on every rank looks at the same rows in the same way, so all come to the same result.
  if (!same.descriptions && !are_alike(operation)) {
    throw GroupError(Trouble::disagreement, sentence_of_disagreement(operation));
  }
  operation.compared = true;
  if (!same.labels) compare_labels(operation);
}

// Where some ranks only receive, and where numbers are added one by one, a row may stand for any shape of that size.
bool Group::are_alike(const Operation& operation) const {
  const Description& first = row(0, operation.number).description;
  const bool may_be_row = first.kind == Kind::broadcast || first.kind == Kind::scatter ||
                          first.kind == Kind::all_reduce || first.kind == Kind::reduce;
  std::uint64_t shape = first.shape;
  for (std::size_t peer = 0; may_be_row && shape == 0 && peer < world_size(); ++peer) {
    shape = row(peer, operation.number).description.shape;
  }
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    Description theirs = row(peer, operation.number).description;
    if (theirs.shape == shape || (may_be_row && theirs.shape == 0)) theirs.shape = first.shape;
    if (std::memcmp(&first, &theirs, sizeof(first)) != 0) return false;
  }
  return true;
}

void Group::compare_labels(Operation& operation) {
  std::vector<std::uint64_t> labels;
  for (std::size_t peer = 0; peer < world_size(); ++peer) labels.push_back(row(peer, operation.number).label);
  operation.circle = call_order_.note(operation.number, operation.request.root, labels, operation.request.site);
  if (!operation.circle) return;
  const Verdict verdict = settings_.judge(operation.circle->sites);
  Row& mine = row(rank_, operation.number);
  mine.verdict = verdict.belong_together ? 1 : 0;
  write_text(mine.where, sizeof(mine.where), verdict.lines);
  set(Counter::judged, operation.number);
  operation.waits_for = {Counter::judged, operation.number};
}

// Of the two ranks; the others only give their lines.
void Group::hear_verdicts(Operation& operation) {
  const CallOrder::Circle& circle = *operation.circle;
  const bool belong_together =
      row(circle.one, operation.number).verdict != 0 || row(circle.other, operation.number).verdict != 0;
  if (!belong_together) throw GroupError(Trouble::disagreement, sentence_of_swap(operation));
  call_order_.accept(circle);
  operation.circle.reset();
}

std::string Group::sentence_of_swap(const Operation& operation) const {
  Parts parts;
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    parts.add(peer, settings_.name_of(peer), row(peer, operation.number).where);
  }
  return "The ranks make the same calls in different orders, so each of these operations combined unlike "
         "tensors: " +
         parts.text() + " (the last one is " + text_of(row(rank_, operation.number).description) + ").";
}

// The source line of a rank's call, as far as it is known.
std::string Group::line_of(std::size_t rank, const Operation& operation) const {
  const std::string where = row(rank, operation.number).where;
  return where.empty() ? "" : " at " + where;
}

void Group::check_expected(const Operation& operation, std::size_t from, std::size_t to, std::uint64_t sent) const {
  std::uint64_t expected;
  const std::byte* const table = row(to, operation.number).payload + (world_size() + from) * sizeof(expected);
  std::memcpy(&expected, table, sizeof(expected));
  if (expected == sent) return;
  const std::string receiver =
      from == to ? "itself and" : "rank " + settings_.name_of(to) + line_of(to, operation) + ", which";
  throw GroupError(Trouble::disagreement, "In all_to_all rank " + settings_.name_of(from) + line_of(from, operation) +
                                              " sends " + std::to_string(sent) + " elements to " + receiver +
                                              " expects " + std::to_string(expected) + ".");
}

// All ranks see the same rows, so all come here. A line that was not known when the operation began is looked up now.
std::string Group::sentence_of_disagreement(const Operation& operation) {
  RankBlock& mine = blocks_[rank_];
  write_text(mine.text, text_bytes, operation.request.line().empty() ? settings_.where() : operation.request.line());
  mine.told.store(operation.number, std::memory_order_release);
  const auto end = Clock::now() + std::chrono::seconds(1);
  const Description& first = row(0, operation.number).description;
  Parts parts;
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    const Description& theirs = row(peer, operation.number).description;
    std::string line = line_of(peer, operation);
    if (line.empty()) {  // a waiting rank gives its line now
      const auto has_told = [&] { return blocks_[peer].told.load(std::memory_order_acquire) == operation.number; };
      while (!has_told() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (has_told() && blocks_[peer].text[0] != 0) line = std::string(" at ") + blocks_[peer].text;
    }
    std::string place = text_of(theirs);
    // The same kind with other arguments, or added up in another order: that alone would not show. Nor would a long
    // shape.
    if (theirs.kind == first.kind && theirs.program_hash != first.program_hash)
      place += " with different arguments than on rank 0";
    if (theirs.shape != first.shape && place == text_of(first)) place += " in a different shape than on rank 0";
    parts.add(peer, settings_.name_of(peer), place + line);
  }
  return "The ranks call different operations. " + parts.text() + ".";
}

}  // namespace samebits
