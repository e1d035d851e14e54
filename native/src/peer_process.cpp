#include "peer_process.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <string>

namespace lockstep {
namespace {

struct Watched {
  std::mutex mutex;
  std::map<pid_t, std::weak_ptr<PeerProcess>> processes;
};

Watched& watched() {
  static Watched* const instance = new Watched;  // outlives every group
  return *instance;
}

}  // namespace

std::shared_ptr<PeerProcess> PeerProcess::watch(pid_t process) {
  const std::lock_guard lock(watched().mutex);
  auto& processes = watched().processes;
  std::erase_if(processes, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = processes.find(process); found != processes.end()) {
    if (auto present = found->second.lock(); present != nullptr && present->means(process)) return present;
  }
  const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (descriptor < 0) return nullptr;
  auto made = std::make_shared<PeerProcess>(descriptor);
  processes[process] = made;
  return made;
}

PeerProcess::~PeerProcess() { ::close(descriptor_); }

bool PeerProcess::has_ended() const {
  // A script may have closed descriptors that are not its own: then the answer is no POLLIN.
  pollfd ended{descriptor_, POLLIN, 0};
  return ::poll(&ended, 1, 0) == 1 && (ended.revents & POLLIN) != 0;
}

bool PeerProcess::means(pid_t process) const {
  std::ifstream about("/proc/self/fdinfo/" + std::to_string(descriptor_));
  const std::string name = "Pid:", wanted = std::to_string(process);
  for (std::string word; about >> word;) {
    if (word == name) return about >> word && word == wanted;  // -1 for one that has ended
  }
  return false;
}

void forget_peer_processes() { new (&watched()) Watched; }

}  // namespace lockstep
