#include "peer_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

namespace samebits {
namespace {

struct Watched {
  std::mutex mutex;
  std::map<pid_t, std::weak_ptr<PeerProcess>> processes;
};

Watched& watched() {
  static Watched* const instance = new Watched;  // outlives every group
  return *instance;
}

// The process that a descriptor means, as the kernel tells it; -1 for one that has ended, 0 where it means none.
pid_t process_of(int descriptor) {
  char path[64], text[1024];
  std::snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", descriptor);
  const int about = ::open(path, O_RDONLY | O_CLOEXEC);
  if (about < 0) return 0;
  const ssize_t size = ::read(about, text, sizeof(text) - 1);
  ::close(about);
  text[size < 0 ? 0 : size] = 0;
  const char* const line = std::strstr(text, "\nPid:");
  int process = 0;
  return line != nullptr && std::sscanf(line, "\nPid: %d", &process) == 1 ? process : 0;
}

}  // namespace

std::shared_ptr<PeerProcess> PeerProcess::watch(pid_t process) {
  const std::lock_guard lock(watched().mutex);
  auto& processes = watched().processes;
  if (const auto found = processes.find(process); found != processes.end()) {
    if (auto present = found->second.lock(); present != nullptr && present->means(process)) return present;
  }
  const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (descriptor < 0) return nullptr;
  std::erase_if(processes, [](const auto& entry) { return entry.second.expired(); });
  auto made = std::make_shared<PeerProcess>(descriptor);
  processes[process] = made;
  return made;
}

PeerProcess::PeerProcess(int descriptor) : descriptor_(descriptor) {
  constexpr long pidfs = 0x50494446;
  struct statfs system{};
  struct stat file{};
  if (sizeof(long) < 8 || ::fstatfs(descriptor, &system) != 0 || static_cast<long>(system.f_type) != pidfs) return;
  if (::fstat(descriptor, &file) != 0) return;
  device_ = file.st_dev;
  number_ = file.st_ino;
}

PeerProcess::~PeerProcess() { ::close(descriptor_); }

bool PeerProcess::has_ended() const {
  // A script may have closed descriptors that are not its own: then the answer is no POLLIN.
  pollfd ended{descriptor_, POLLIN, 0};
  return ::poll(&ended, 1, 0) == 1 && (ended.revents & POLLIN) != 0;
}

bool PeerProcess::means(pid_t process) const {
  if (number_ == 0) return process_of(descriptor_) == process;
  // It meant that process when it was opened, whose id no other one can have as long as it has not ended.
  struct stat file{};
  return ::fstat(descriptor_, &file) == 0 && file.st_dev == device_ && file.st_ino == number_ && !has_ended();
}

void forget_peer_processes() { new (&watched()) Watched; }

}  // namespace samebits
