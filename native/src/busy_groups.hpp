// Groups that wait for something while their rank does something else.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace samebits {

class Group;

// Groups of this process with something under way; a thread that waits in one moves the others too.
class BusyGroups {
 public:
  void add(Group* group) {
    const std::lock_guard lock(mutex_);
    if (std::find(groups_.begin(), groups_.end(), group) == groups_.end()) groups_.push_back(group);
    count_.store(groups_.size(), std::memory_order_relaxed);
  }
  void remove(Group* group) {
    const std::lock_guard lock(mutex_);
    std::erase(groups_, group);
    count_.store(groups_.size(), std::memory_order_relaxed);
  }
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // Moves those besides `mine`; returns whether there are any.
  template <typename Move>
  bool move_others(const Group* mine, Move move) {
    if (empty()) return false;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return true;
    bool others = false;
    for (Group* group : groups_) {
      if (group == mine) continue;
      others = true;
      move(*group);
    }
    return others;
  }

 private:
  std::mutex mutex_;
  std::vector<Group*> groups_;
  std::atomic<std::size_t> count_ = 0;
};

// Those of this process.
inline BusyGroups& busy_groups() {
  static BusyGroups* const instance = new BusyGroups;  // outlives every group
  return *instance;
}

}  // namespace samebits
