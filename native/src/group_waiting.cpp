// How a rank waits: it moves what can be moved, spins a little, sleeps, and looks around now and then.
#include <sched.h>

#include <optional>
#include <utility>
#include <vector>

#include "busy_groups.hpp"
#include "group.hpp"

namespace samebits {
namespace {

constexpr Nanoseconds longest_sleep = std::chrono::milliseconds(50);
constexpr Nanoseconds look_interval = std::chrono::milliseconds(20);
constexpr Nanoseconds short_sleep = std::chrono::microseconds(200);  // while other groups have something under way

}  // namespace

bool Group::test(Pending& pending) {
  check_process();
  Awaited awaited;
  {
    const std::lock_guard lock(mutex_);
    progress();
    if (pending.error) std::rethrow_exception(pending.error);
    if (pending.finished) return true;
    if (Clock::now() - last_test_look_ < look_interval) return false;
    last_test_look_ = Clock::now();
    awaited = what_to_wait_for(pending);
  }
  if (!awaited.nothing) look_around(pending, awaited, {});
  return false;
}

void Group::wait(Pending& pending, Nanoseconds patience) {
  check_process();
  auto deadline = Clock::time_point::max(), last_look = deadline;
  bool has_looked = false;  // since the group is broken
  std::optional<NotedWait> noted;
  try {
    while (true) {
      Awaited awaited;
      {
        const std::lock_guard lock(mutex_);
        progress();
        if (pending.error) std::rethrow_exception(pending.error);
        if (pending.finished) return;
        awaited = what_to_wait_for(pending);
      }
      if (awaited.nothing) continue;
      if (deadline == Clock::time_point::max()) {
        last_look = Clock::now();
        noted.emplace(last_look.time_since_epoch().count());
        deadline =
            patience > std::chrono::hours(24 * 365) ? Clock::time_point::max() - Nanoseconds(1) : last_look + patience;
      }
      awaited.others_busy = busy_groups().move_others(this, [](Group& other) {
        const std::unique_lock lock(other.mutex_, std::try_to_lock);
        if (lock) other.move_on();
      });
      if (wait_a_while(awaited)) continue;
      const bool is_broken = header_->broken.load(std::memory_order_acquire) != 0;
      // Whoever broke it may have finished this operation before: then it is finished here too.
      if (is_broken && !std::exchange(has_looked, true)) continue;
      if (!is_broken && Clock::now() - last_look < look_interval) continue;
      settings_.while_waiting();
      look_around(pending, awaited, {deadline, patience});
      note(*noted, pending, awaited);
      last_look = Clock::now();
    }
  } catch (const GroupError&) {
    throw;
  } catch (...) {  // Python's signals: this rank will not come back to its operations
    const std::lock_guard lock(mutex_);
    break_quietly(Trouble::aborted,
                  "Rank " + settings_.name_of(rank_) + " was interrupted in the middle of an exchange.");
    throw;
  }
}

// Says for whom this rank waits; only waits that are long enough to be looked around in come here.
void Group::note(NotedWait& noted, const Pending& pending, const Awaited& awaited) {
  const std::lock_guard lock(mutex_);  // another thread may move what is told here
  std::vector<std::size_t> behind;
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    const bool is_behind = awaited.word != nullptr
                               ? !has_reached(word(awaited.condition.counter, peer).value.load(), awaited.target)
                               : awaited.message_peer == peer || awaited.message_peer == world_size();
    if (is_behind && peer != rank_) behind.push_back(settings_.names.empty() ? peer : settings_.names.at(peer));
  }
  if (!noted.is_new()) return noted.tell(behind);
  const auto* message = dynamic_cast<const Message*>(&pending);
  noted.tell(behind, message != nullptr ? text_of(*message) : text_of(static_cast<const Operation&>(pending)));
}

Group::Awaited Group::what_to_wait_for(const Pending& pending) const {
  Awaited awaited;
  awaited.has_messages = !messages_->idle();
  if (const auto* message = dynamic_cast<const Message*>(&pending)) {
    awaited.message_peer = message->peer;
    return awaited;
  }
  // The first operation that cannot go on holds up those behind it.
  for (const auto& operation : queue_) {
    const std::size_t behind = first_behind(operation->waits_for);
    if (operation->finished || behind == world_size()) continue;
    awaited.condition = operation->waits_for;
    awaited.word = &word(operation->waits_for.counter, behind).value;
    awaited.target = operation->waits_for.target;
    awaited.peer = behind;
    awaited.peer_plus_one = awaited.has_messages ? Bell::waits_for_any : static_cast<std::uint32_t>(behind) + 1;
    return awaited;
  }
  awaited.nothing = !awaited.has_messages;
  return awaited;
}

// Whether the rank that is waited for was last seen on the CPU on which this one runs.
bool Group::is_on_this_cpu(const Awaited& awaited) const {
  const std::size_t peer = awaited.word != nullptr ? awaited.peer : awaited.message_peer;
  if (peer >= world_size() || (awaited.word != nullptr && awaited.has_messages)) return false;  // it may be anybody
  const int here = ::sched_getcpu() + 1;  // 0 where the system does not tell
  return here != 0 && blocks_[peer].core_plus_one.load(std::memory_order_relaxed) == here;
}

// Whether it came while this rank was looking.
bool Group::wait_a_while(const Awaited& awaited) {
  const auto something_came = [&] {
    if (awaited.word != nullptr && has_reached(awaited.word->load(std::memory_order_acquire), awaited.target))
      return true;
    if (!awaited.has_messages) return false;
    const std::lock_guard lock(mutex_);
    return messages_->could_progress();
  };
  const Waiting& waiting = settings_.tuning.waiting;
  // A rank that shares this one's CPU can do nothing while this one spins.
  const bool shares_cpu = is_on_this_cpu(awaited);
  if (shares_cpu ? something_came() : spin(waiting.spin, something_came)) return true;
  if ((shares_cpu || waiting.is_crowded) && yield(waiting.yields, something_came)) return true;
  Bell& bell = blocks_[rank_].bell;
  std::uint32_t before;
  {
    const std::lock_guard lock(mutex_);
    before = bell.lie_down(awaited.peer_plus_one);
  }
  if (!something_came() && header_->broken.load(std::memory_order_seq_cst) == 0) {
    bell.sleep(before, awaited.others_busy ? short_sleep : longest_sleep);
  }
  const std::lock_guard lock(mutex_);
  bell.get_up();
  return false;
}

}  // namespace samebits
