// How a group breaks, and the sentences that say why.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "group.hpp"
#include "shape.hpp"

namespace samebits {
namespace {

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::barrier:
      return "barrier";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::reduce:
      return "reduce";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::broadcast:
      return "broadcast";
    case Kind::all_gather:
      return "all_gather";
    case Kind::gather:
      return "gather";
    case Kind::scatter:
      return "scatter";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::allocate:
      return "allocate";
    case Kind::new_group:
      return "new_group";
  }
  return "an unknown operation";
}

std::string text_of(Nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

std::string Group::text_of(const Description& description) const {
  std::string text(name_of(description.kind));
  const bool is_reduction = description.kind == Kind::all_reduce || description.kind == Kind::reduce ||
                            description.kind == Kind::reduce_scatter;
  if (is_reduction) text.append(1, '(').append(name_of(description.op)).append(1, ')');
  if (description.kind == Kind::barrier) return text;
  if (description.kind == Kind::all_to_all) return text.append(" of ").append(name_of(description.dtype));
  if (description.kind == Kind::new_group) return text.append(" of ").append(std::to_string(description.count));
  text.append(" of ").append(text_of_shape(description.shape, description.count));
  text.append(" ").append(name_of(description.dtype));
  if (description.root >= 0) {
    text += (description.kind == Kind::broadcast || description.kind == Kind::scatter ? " from rank " : " to rank ") +
            settings_.name_of(static_cast<std::size_t>(description.root));
  }
  return text;
}

std::string Group::text_of(const Operation& operation) const {
  std::string text = text_of(describe(operation.request, operation.number, 0));
  // The shortcut begins an operation without asking for its line; then it is the line that waits.
  const std::string where = operation.request.line().empty() ? settings_.where() : operation.request.line();
  return where.empty() ? text : text + " (" + where + ")";
}

std::string Group::text_of(const Message& message) const {
  const std::string where = message.about.site == nullptr ? settings_.where() : message.about.site->where;
  return messages_->text_of(message) + (where.empty() ? "" : " (" + where + ")");
}

// If there is a reason to stop waiting, gives up what is under way, because its tensors may go now.
void Group::look_around(const Pending& pending, const Awaited& awaited, Limit limit) {
  const std::lock_guard lock(mutex_);
  // What came before the group broke may end it here too, and then it must; another thread may have moved it meanwhile.
  if (header_->broken.load(std::memory_order_acquire) != 0) progress();
  if (pending.finished || pending.error) return;
  try {
    throw_if_broken();
    for (std::size_t peer = 0; peer < world_size(); ++peer) {
      if (is_gone(peer, awaited)) break_group(Trouble::lost, sentence_of_loss(peer, pending));
    }
    if (Clock::now() <= limit.deadline) return;
    const std::size_t late = awaited.word == nullptr ? world_size() : first_behind(awaited.condition);
    if (awaited.word != nullptr && late == world_size()) return;  // it came just now
    break_group(Trouble::timeout, sentence_of_lateness(pending, late, limit.patience));
  } catch (const GroupError&) {
    fail_everything(std::current_exception());
    throw;
  }
}

// Whether what this rank waits for can no longer come because of `peer`.
bool Group::is_gone(std::size_t peer, const Awaited& awaited) const {
  if (peer == rank_) return false;
  const auto has_left = [&](std::size_t other) { return blocks_[other].left.load(std::memory_order_acquire) != 0; };
  if (!has_left(peer) && !settings_.has_ended(peer)) return false;
  if (awaited.word != nullptr) {
    return !has_reached(word(awaited.condition.counter, peer).value.load(std::memory_order_acquire), awaited.target);
  }
  if (awaited.message_peer == world_size()) {  // from anybody: those who have left had nothing more to say, others may
    for (std::size_t other = 0; has_left(peer) && other < world_size(); ++other) {
      if (other != rank_ && !has_left(other)) return false;
    }
  } else if (awaited.message_peer != peer) {
    return false;
  }
  return !messages_->could_progress();
}

std::string Group::sentence_of_loss(std::size_t peer, const Pending& pending) const {
  const bool has_left = blocks_[peer].left.load(std::memory_order_acquire) != 0;
  const std::string name = settings_.name_of(peer);
  std::string sentence =
      "Rank " + name + (has_left ? " left the group" : " ended") + " while rank " + settings_.name_of(rank_);
  if (const auto* message = dynamic_cast<const Message*>(&pending)) {
    sentence += (message->incoming ? " was waiting for " : " was sending ") + text_of(*message);
  } else {
    sentence += " was waiting for it in " + text_of(static_cast<const Operation&>(pending));
  }
  return sentence + ". If rank " + name + " failed, its own error says why.";
}

// `late` is behind; the world size: a message is.
std::string Group::sentence_of_lateness(const Pending& pending, std::size_t late, Nanoseconds patience) const {
  const auto* message = dynamic_cast<const Message*>(&pending);
  if (message != nullptr) late = message->peer;
  const std::string who = late == world_size() ? "A message" : "Rank " + settings_.name_of(late);
  const std::string start =
      who + " did not come within the timeout of " + samebits::text_of(patience) + "; rank " + settings_.name_of(rank_);
  if (message == nullptr) return start + " waits in " + text_of(static_cast<const Operation&>(pending)) + ".";
  return start + (message->incoming ? " waits for " : " sends ") + text_of(*message) + ".";
}

void Group::break_group(Trouble trouble, const std::string& text) {
  std::uint32_t expected = 0;
  if (header_->broken.compare_exchange_strong(expected, 1)) {
    header_->broken_kind = static_cast<std::int32_t>(trouble);
    write_text(header_->reason, sizeof(header_->reason), text);
    header_->broken.store(2, std::memory_order_seq_cst);
    // Before anything that this rank writes into its tensors from now on; a store alone does not hold later ones back.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (std::size_t peer = 0; peer < world_size(); ++peer) {
      if (peer != rank_) blocks_[peer].bell.ring();
    }
  }
  throw_if_broken();
  throw GroupError(trouble, text);
}

void Group::break_quietly(Trouble trouble, const std::string& text) {
  try {
    break_group(trouble, text);
  } catch (const GroupError&) {
    fail_everything(std::current_exception());
  }
}

void Group::throw_if_broken() const {
  if (header_->broken.load(std::memory_order_acquire) == 0) return;
  const auto end = Clock::now() + std::chrono::milliseconds(100);
  while (header_->broken.load(std::memory_order_acquire) != 2 && Clock::now() < end) pause();
  if (header_->broken.load(std::memory_order_acquire) != 2) throw GroupError(Trouble::aborted, "Another rank gave up.");
  throw GroupError(static_cast<Trouble>(header_->broken_kind), header_->reason);
}

void Group::abort(const std::string& reason, Trouble trouble) {
  check_process();
  const std::lock_guard lock(mutex_);
  break_quietly(trouble, reason);
}

void Group::look() {
  check_process();
  const std::lock_guard lock(mutex_);
  throw_if_broken();
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    const bool has_left = blocks_[peer].left.load(std::memory_order_acquire) != 0;
    if (peer == rank_ || has_left || !settings_.has_ended(peer)) continue;
    break_group(Trouble::lost, "Rank " + settings_.name_of(peer) + " ended. Its own error says why, if it failed.");
  }
}

}  // namespace samebits
