// How a rank joins its group, watches who is still there, and leaves.
#include <unistd.h>

#include <algorithm>

#include "busy_groups.hpp"
#include "forks.hpp"
#include "group.hpp"

namespace samebits {
namespace {

// Between two looks whether ranks that have not joined still live. The last one that joins wakes all.
constexpr Nanoseconds between_looks = std::chrono::milliseconds(50);

}  // namespace

std::size_t checked_size(std::size_t world_size) {
  if (world_size == 0 || world_size > 254) throw BadCall("a group has 1 to 254 ranks");
  return world_size;
}

void Group::announce(const Memory& control, std::size_t rank, std::size_t world_size) {
  const Layout layout = Layout::for_ranks(checked_size(world_size));
  if (rank >= world_size || control.size() < layout.total()) throw BadCall("this is not a control block for this rank");
  RankBlock& mine = reinterpret_cast<RankBlock*>(control.data() + layout.ranks())[rank];
  mine.is_marking.store(control.mark(rank) ? 1 : 0, std::memory_order_relaxed);
  mine.process.store(static_cast<std::int32_t>(::getpid()), std::memory_order_release);
}

// Every rank says that it is here and waits for the others, so that all of them can be watched from now on.
void Group::join() {
  if (memory_ != nullptr) announce(*memory_, rank_, world_size());
  if (rank_ == 0) header_->pieces = settings_.tuning.pieces.within_limits(world_size());
  blocks_[rank_].joined.store(control_magic, std::memory_order_seq_cst);
  if (header_->num_joined.fetch_add(1, std::memory_order_seq_cst) + 1 == world_size()) wake_all(header_->num_joined);
  const auto deadline = Clock::now() + settings_.patience;
  processes_.assign(world_size(), nullptr);
  try {
    for (std::size_t peer = 0; peer < world_size(); ++peer) wait_until_joined(peer, deadline);
  } catch (const GroupError&) {
    throw;
  } catch (...) {  // Python's signals: this rank will not come, and others need not wait
    break_quietly(Trouble::aborted, "Rank " + settings_.name_of(rank_) + " was interrupted while the group was made.");
    throw;
  }
  pieces_ = header_->pieces.within_limits(world_size());
  if (!settings_.has_ended) settings_.has_ended = [this](std::size_t peer) { return has_ended(peer); };
}

void Group::wait_until_joined(std::size_t peer, Clock::time_point deadline) {
  while (true) {
    const std::uint32_t num_joined = header_->num_joined.load(std::memory_order_seq_cst);
    if (blocks_[peer].joined.load(std::memory_order_acquire) != 0) break;
    watch(peer);
    sleep_on(header_->num_joined, num_joined, between_looks);  // many ranks that look often keep each other from coming
    settings_.while_waiting();
    throw_if_broken();
    if (has_ended(peer) && blocks_[peer].joined.load(std::memory_order_acquire) == 0)
      break_group(Trouble::lost, "Rank " + settings_.name_of(peer) + " ended while the group was made.");
    if (Clock::now() > deadline)
      break_group(Trouble::timeout, "Rank " + settings_.name_of(peer) + " did not join the group in time.");
  }
  if (blocks_[peer].joined.load(std::memory_order_acquire) != control_magic) {
    break_group(Trouble::aborted, "Rank " + settings_.name_of(peer) + " runs another version of samebits.");
  }
  watch(peer);
}

// Named memory is for ranks in other PID namespaces, whose numbers mean other processes here.
void Group::watch(std::size_t peer) {
  const std::int32_t process = blocks_[peer].process.load(std::memory_order_acquire);
  if (process == 0 || processes_[peer] || peer == rank_ || settings_.has_ended || settings_.named_memory) return;
  processes_[peer] = PeerProcess::watch(process);
}

bool Group::has_ended(std::size_t peer) const {
  if (processes_[peer] != nullptr) return processes_[peer]->has_ended();
  const bool is_marking = blocks_[peer].is_marking.load(std::memory_order_relaxed) != 0;
  return is_marking && memory_ != nullptr && !memory_->is_marked(peer);
}

Group::~Group() {
  busy_groups().remove(this);
  leave();
}

void Group::leave() {
  if (num_forks() != owner_) return;
  const std::lock_guard lock(mutex_);
  if (has_left_) return;
  has_left_ = true;
  const bool is_read = std::any_of(queue_.begin(), queue_.end(), [](const auto& operation) {
    return operation->has_worked && !operation->finished;  // others read its tensors, which may change from now on
  });
  if (is_read) {
    break_quietly(Trouble::aborted,
                  "Rank " + settings_.name_of(rank_) + " left the group while others read its tensors.");
  }
  fail_everything(std::make_exception_ptr(GroupError(Trouble::aborted, "The group was shut down on this rank.")));
  note_busy();
  blocks_[rank_].left.store(1, std::memory_order_seq_cst);
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    if (peer != rank_) blocks_[peer].bell.ring();
  }
}

// Before any lock: in a forked process, a thread that was not copied may hold it forever.
void Group::check_process() const {
  if (num_forks() == owner_) return;
  throw GroupError(Trouble::aborted, "A process that was forked from a rank is not a member of its groups.");
}

void Group::check_usable() const {
  if (has_left_) throw GroupError(Trouble::aborted, "The group was shut down on this rank.");
  if (broken_) std::rethrow_exception(broken_);
  throw_if_broken();
}

}  // namespace samebits
