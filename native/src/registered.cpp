#include "registered.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <system_error>

#include "available_memory.hpp"

namespace lockstep {
namespace {

constexpr std::size_t room = std::size_t{16} << 30;  // of addresses; pages are allocated when something is registered
constexpr std::size_t most_bytes = std::size_t{256} << 20;  // registered at a time: a forked process has copies of all
constexpr std::size_t spare_maps = 64;                      // of the kernel's limit of mappings
constexpr std::uint64_t is_of_a_file = std::uint64_t{1} << 61;  // in /proc/self/pagemap; shared memory is a file

// Others (jemalloc, tcmalloc) count on freed pages being zeroed by MADV_DONTNEED, which shared ones are not.
bool has_usual_malloc() {
  if (::dlsym(RTLD_DEFAULT, "gnu_get_libc_version") == nullptr) return false;
  Dl_info of_malloc{}, of_libc{};
  const bool known = ::dladdr(::dlsym(RTLD_DEFAULT, "malloc"), &of_malloc) != 0 &&
                     ::dladdr(::dlsym(RTLD_DEFAULT, "gnu_get_libc_version"), &of_libc) != 0;
  return known && of_malloc.dli_fbase == of_libc.dli_fbase;
}

std::size_t most_maps() {
  std::ifstream file("/proc/sys/vm/max_map_count");
  std::size_t most = 0;
  return file >> most ? most : 65530;
}

struct Maps {
  std::size_t count = 0;
  std::size_t private_bytes = 0;  // of the range: private memory of no file, which may be read and written
  bool has_file = false;          // some of the range belongs to the file
};

Maps maps_of(std::uintptr_t first, std::uintptr_t last, ino_t file) {
  Maps found;
  std::ifstream lines("/proc/self/maps");
  for (std::string line; std::getline(lines, line);) {
    ++found.count;
    std::uintptr_t start = 0, end = 0;
    std::uint64_t inode = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %" SCNu64, &start, &end, access, &inode) != 4)
      continue;
    if (end <= first || start >= last) continue;
    const std::size_t part = std::min(end, last) - std::max(start, first);
    if (inode == 0 && std::strcmp(access, "rw-p") == 0) found.private_bytes += part;
    found.has_file = found.has_file || (inode != 0 && inode == file);
  }
  return found;
}

bool is_shared_page(int pages, const std::byte* page) {
  std::uint64_t entry = 0;
  const auto at = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(page) / edge_bytes * sizeof(entry));
  return ::pread(pages, &entry, sizeof(entry), at) == sizeof(entry) && (entry & is_of_a_file) != 0;
}

void* private_pages(std::size_t length) {
  return ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// Puts private pages with the same numbers in the place of shared ones. Calls what a forked process may call, too.
bool make_private(std::byte* first, std::size_t length) {
  void* const copy = private_pages(length);
  if (copy == MAP_FAILED) return false;
  std::memcpy(copy, first, length);
  if (::mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, first) != MAP_FAILED) return true;
  ::munmap(copy, length);
  return false;
}

}  // namespace

// A forked process shares these pages with its parent, and must have copies like of all others, as they are at the
// fork: the parent waits for it. The end of a pipe says that it has them, or is gone.
struct AroundFork {
  static inline int pipe[2] = {-1, -1};

  static void before() {
    Registered& here = Registered::here();
    here.mutex_.lock();
    if (here.ranges_.empty() || ::pipe2(pipe, O_CLOEXEC) != 0) pipe[0] = pipe[1] = -1;
  }
  static void in_parent() {
    const int error = errno;
    if (pipe[0] >= 0) {
      ::close(pipe[1]);
      char nothing;
      while (::read(pipe[0], &nothing, 1) < 0 && errno == EINTR) {
      }
      ::close(pipe[0]);
    }
    errno = error;
    Registered::here().mutex_.unlock();
  }
  // The kernel has no entry for a shared page that this process has not touched.
  static bool is_shared(int pages, std::byte* page) {
    unsigned char in_core;
    if (::mincore(page, edge_bytes, &in_core) != 0) return false;  // nothing is there any more
    static_cast<void>(*reinterpret_cast<volatile char*>(page));
    return is_shared_page(pages, page);
  }
  static void in_child() {
    Registered& here = Registered::here();
    const int pages = here.ranges_.empty() ? -1 : ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    for (const auto& [_, range] : here.ranges_) {
      if (!is_shared(pages, range.first) || !is_shared(pages, range.first + range.length - edge_bytes)) continue;
      if (!make_private(range.first, range.length)) {
        constexpr char text[] = "lockstep: there is no memory left for a forked process\n";
        static_cast<void>(!::write(2, text, sizeof(text) - 1));
        ::_exit(1);
      }
    }
    if (pages >= 0) ::close(pages);
    if (pipe[0] >= 0) {
      ::close(pipe[0]);
      ::close(pipe[1]);
    }
    if (here.memory_ != nullptr) {
      ::munmap(here.memory_->data(), here.memory_->size());
      ::close(here.memory_->descriptor());
      ::close(here.pages_);
      static_cast<void>(here.memory_.release());
    }
    new (&here) Registered;  // its ranges are the parent's
    here.is_impossible_ = true;
  }
};

Registered& Registered::here() {
  static Registered* const instance = new Registered;  // outlives every group
  return *instance;
}

std::byte* Registered::map(std::int32_t process, int descriptor) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return nullptr;
  struct stat file{};
  const bool fits = ::fstat(opened, &file) == 0 && static_cast<std::size_t>(file.st_size) == room;
  constexpr int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_NORESERVE;
  void* const memory = fits ? ::mmap(nullptr, room, access, flags, opened, 0) : MAP_FAILED;
  ::close(opened);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

void Registered::unmap(std::byte* memory) { ::munmap(memory, room); }

// With the mutex held.
bool Registered::begin() {
  if (memory_ != nullptr || is_impossible_) return !is_impossible_;
  is_impossible_ = true;
  if (page_size() != edge_bytes || !has_usual_malloc()) return false;
  pages_ = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pages_ < 0) return false;
  try {
    memory_ = std::make_unique<Memory>(Memory::create(room, false));
  } catch (const std::system_error&) {
    return false;
  }
  if (::pthread_atfork(AroundFork::before, AroundFork::in_parent, AroundFork::in_child) != 0) return false;
  used_[0] = edge_bytes;  // so that no place is 0, nor an edge before the beginning
  is_impossible_ = false;
  return true;
}

std::uint64_t Registered::room_for(std::size_t length) const {
  std::uint64_t at = 0;
  for (const auto& [offset, used] : used_) {
    if (offset - at >= length) return at;
    at = offset + used;
  }
  return room - at >= length ? at : 0;
}

bool Registered::add(const void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto start = reinterpret_cast<std::uintptr_t>(data), end = start + bytes;
  const std::uintptr_t first = (start + edge_bytes - 1) / edge_bytes * edge_bytes, last = end / edge_bytes * edge_bytes;
  if (bytes < least_bytes || last <= first || !begin()) return false;
  const std::size_t length = last - first;
  std::size_t together = length;
  for (const auto& [_, other] : ranges_) {
    const auto others = reinterpret_cast<std::uintptr_t>(other.first);
    if (first < others + other.length && others < last) return false;
    together += other.length;
  }
  if (together > most_bytes) return false;
  struct stat file{};
  if (length > available_memory() / 2 || ::fstat(memory_->descriptor(), &file) != 0) return false;
  const Maps maps = maps_of(first, last, file.st_ino);
  if (maps.private_bytes != length || maps.count + spare_maps > most_maps()) return false;
  const std::uint64_t offset = room_for(length);
  if (offset == 0) return false;
  const Range range{bytes, reinterpret_cast<std::byte*>(first), length, offset};
  used_[offset] = length;
  int error = 0;
  do {  // too little memory is an answer here, and a SIGBUS later
    error = ::posix_fallocate(memory_->descriptor(), static_cast<off_t>(offset), static_cast<off_t>(length));
  } while (error == EINTR);
  if (error == 0) {
    std::memcpy(memory_->data() + offset, range.first, length);
    constexpr int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
    if (::mmap(range.first, length, PROT_READ | PROT_WRITE, flags, memory_->descriptor(), static_cast<off_t>(offset)) !=
        MAP_FAILED) {
      ranges_[data] = range;
      return true;
    }
  }
  give_up(range);
  return false;
}

// Whether the pages are still there: the kernel may have them no more since the memory was given back.
bool Registered::is_here(const Range& range) const {
  return is_shared_page(pages_, range.first) && is_shared_page(pages_, range.first + range.length - edge_bytes);
}

// With the mutex held. What somebody else's memory lies in now stays as it is.
void Registered::give_up(const Range& range) {
  struct stat file{};
  const auto first = reinterpret_cast<std::uintptr_t>(range.first);
  if (::fstat(memory_->descriptor(), &file) != 0 || maps_of(first, first + range.length, file.st_ino).has_file) return;
  ::fallocate(memory_->descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.offset),
              static_cast<off_t>(range.length));
  used_.erase(range.offset);
}

void Registered::remove(const void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(data);
  if (found == ranges_.end()) return;
  const Range range = found->second;
  if (is_here(range) && !make_private(range.first, range.length)) return;
  ranges_.erase(found);
  give_up(range);
}

std::uint64_t Registered::find(const void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(data);
  if (found == ranges_.end() || found->second.bytes != bytes || !is_here(found->second)) return 0;
  const Range& range = found->second;
  return range.offset - static_cast<std::uint64_t>(range.first - static_cast<const std::byte*>(data));
}

int Registered::descriptor() {
  const std::lock_guard lock(mutex_);
  return memory_ == nullptr ? -1 : memory_->descriptor();
}

}  // namespace lockstep
