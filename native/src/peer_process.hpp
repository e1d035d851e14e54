// The process of another rank, watched through one descriptor, no matter how many groups this rank shares with it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

namespace samebits {

class PeerProcess {
 public:
  // The watch over this process: the one that another group has, or a new one. Null where the system has none (pidfd).
  static std::shared_ptr<PeerProcess> watch(pid_t process);
  explicit PeerProcess(int descriptor);
  PeerProcess(const PeerProcess&) = delete;
  ~PeerProcess();

  bool has_ended() const;

 private:
  // Whether the descriptor still means this living process: ids are reused, and a script may have closed descriptors
  // that are not its own.
  bool means(pid_t process) const;

  int descriptor_;
  // The file behind the descriptor where the kernel gives each process a file of its own, whose number it never uses
  // again (pidfs, Linux 6.9); 0 elsewhere.
  std::uint64_t device_ = 0, number_ = 0;
};

// In a forked process: forget what the parent's groups watch. A thread that was not copied may hold the lock.
void forget_peer_processes();

}  // namespace samebits
