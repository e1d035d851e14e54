#include "memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

namespace samebits {
namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

void set_size(int descriptor, std::size_t bytes, bool reserve) {
  if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    fail(errno, mebibytes(bytes) + " of shared memory cannot be created");
  }
  if (!reserve || bytes == 0) return;
  int error = 0;
  do {  // allocates the pages, or fails with ENOSPC
    error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == ENOSPC) fail(error, "there is no room for " + mebibytes(bytes) + " of shared memory");
  if (error != 0) fail(error, mebibytes(bytes) + " of shared memory cannot be reserved");
}

constexpr std::size_t huge_page = std::size_t{2} << 20;

// Like mmap with no address, but `past` bytes after a multiple of a huge page where the mapping has room for one.
void* map_past(std::size_t past, std::size_t bytes, int flags, int descriptor, std::size_t offset) {
  constexpr int access = PROT_READ | PROT_WRITE;
  if (bytes < huge_page) return ::mmap(nullptr, bytes, access, flags, descriptor, static_cast<off_t>(offset));
  void* room = ::mmap(nullptr, bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return MAP_FAILED;
  auto* begin = static_cast<std::byte*>(room);
  const std::size_t before = (huge_page + past - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
  const std::size_t used = (bytes + page_size() - 1) / page_size() * page_size();
  void* data = ::mmap(begin + before, bytes, access, flags | MAP_FIXED, descriptor, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    const int error = errno;
    ::munmap(room, bytes + huge_page);
    errno = error;
    return MAP_FAILED;
  }
  if (before != 0) ::munmap(begin, before);
  ::munmap(begin + before + used, huge_page - before);
  return data;
}

constexpr const char* shared_folder = "/dev/shm/";
constexpr std::size_t maker = 1024;  // the mark of a named memory's maker; ranks are below

struct flock lock_of(std::size_t number) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(number);
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::string mebibytes(std::size_t bytes) { return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB"; }

std::size_t page_size() {
  static const std::size_t size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

Memory Memory::map(int descriptor, std::size_t bytes) {
  void* data = map_past(0, bytes, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (data == MAP_FAILED) fail(errno, mebibytes(bytes) + " of shared memory cannot be mapped");
  return Memory(descriptor, static_cast<std::byte*>(data), bytes);
}

Memory Memory::create(std::size_t bytes, bool reserve) {
  constexpr unsigned plain = MFD_CLOEXEC | MFD_ALLOW_SEALING, no_exec = 0x8;  // MFD_NOEXEC_SEAL, of Linux 6.3
  Descriptor made(
      ::memfd_create("samebits", plain | no_exec));  // else the kernel warns, or refuses (vm.memfd_noexec = 2)
  if (made.get() < 0) made = Descriptor(::memfd_create("samebits", plain));
  if (made.get() < 0) fail(errno, "memfd_create");
  ::fchmod(made.get(), 0600);
  set_size(made.get(), bytes, reserve);
  // Nobody can truncate it under another rank's feet, which would be a SIGBUS there.
  ::fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  Memory memory = map(made.get(), bytes);
  made.release();
  return memory;
}

Memory Memory::create_named(const std::string& name, std::size_t bytes, bool reserve) {
  const std::string path = shared_folder + name;
  const auto finish = [&](Descriptor& made) {
    if (made.get() < 0) fail(errno, path);
    struct flock lock = lock_of(maker);
    ::fcntl(made.get(), F_SETLK, &lock);
    set_size(made.get(), bytes, reserve);
    Memory memory = map(made.get(), bytes);
    made.release();
    return memory;
  };
  // The name comes last, when all is done: nobody finds a file without the mark.
  if (Descriptor made(::open(shared_folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)); made.get() >= 0) {
    Memory memory = finish(made);
    const std::string nameless = "/proc/self/fd/" + std::to_string(memory.descriptor());
    if (::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) return memory;
    if (errno == EEXIST) fail(errno, path);
  }
  Descriptor made(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (made.get() < 0) fail(errno, path);
  try {
    return finish(made);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

Memory Memory::open(const std::string& path) {
  Descriptor found(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (found.get() < 0) fail(errno, path);
  Memory memory = adopt(found.get());
  found.release();
  return memory;
}

Memory Memory::adopt(int descriptor) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) fail(errno, "fstat");
  return map(descriptor, static_cast<std::size_t>(status.st_size));
}

Memory::Memory(Memory&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Memory::~Memory() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool Memory::use_huge_pages() const {
  constexpr int collapse = 25;  // MADV_COLLAPSE, of Linux 6.1
  const auto began = std::chrono::steady_clock::now();
  auto allowed = std::chrono::milliseconds(20);
  for (std::size_t begin = 0; begin + huge_page <= size_; begin += huge_page) {
    // On virtual machines that give free memory back, a huge page may cost more than all small ones in it
    // (private_memory.py, "huge pages that come slowly").
    if (std::chrono::steady_clock::now() - began > allowed) return false;
    allowed += std::chrono::milliseconds(1);
    // A huge page of nothing but holes cannot be collapsed.
    if (::fallocate(descriptor_, 0, static_cast<off_t>(begin), static_cast<off_t>(page_size())) != 0) return false;
    if (::madvise(data_ + begin, huge_page, collapse) != 0) return false;
  }
  return true;
}

bool Memory::mark(std::size_t number) const {
  struct flock lock = lock_of(number);
  return ::fcntl(descriptor_, F_SETLK, &lock) == 0;
}

bool Memory::is_marked(std::size_t number) const {
  struct flock lock = lock_of(number);
  return ::fcntl(descriptor_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void unlink_name(const std::string& name) { ::unlink((shared_folder + name).c_str()); }

PrivateView::PrivateView(const Memory& memory, std::size_t offset, std::size_t bytes, bool huge) : size_(bytes) {
  // The kernel maps a huge page as one where address and offset are at the same place in it.
  const std::size_t past = (offset + (huge ? 0 : page_size())) % huge_page;
  void* data = map_past(past, bytes, MAP_PRIVATE | MAP_NORESERVE, memory.descriptor(), offset);
  if (data == MAP_FAILED) fail(errno, "a private view of " + mebibytes(bytes) + " cannot be mapped");
  data_ = static_cast<std::byte*>(data);
}

PrivateView::~PrivateView() { ::munmap(data_, size_); }

void PrivateView::forget_writes() {
  if (::madvise(data_, size_, MADV_DONTNEED) == 0) return;
  ::munlock(data_, size_);  // after mlockall no page may go; one that stayed would show old numbers forever
  if (::madvise(data_, size_, MADV_DONTNEED) != 0) fail(errno, "the pages of a private view cannot be dropped");
}

std::vector<std::size_t> PrivateView::written_pages() const {
  Descriptor map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (map.get() < 0) fail(errno, "/proc/self/pagemap");
  const std::size_t first = reinterpret_cast<std::uintptr_t>(data_) / page_size();
  const std::size_t num_pages = (size_ + page_size() - 1) / page_size();
  constexpr std::uint64_t present = 1ull << 63, swapped = 1ull << 62, of_the_file = 1ull << 61;
  std::vector<std::size_t> written;
  std::vector<std::uint64_t> entries(4096);
  for (std::size_t page = 0; page < num_pages;) {
    const std::size_t wanted = std::min(entries.size(), num_pages - page) * sizeof(std::uint64_t);
    const ssize_t got =
        ::pread(map.get(), entries.data(), wanted, static_cast<off_t>((first + page) * sizeof(std::uint64_t)));
    if (got <= 0) fail(got < 0 ? errno : EIO, "/proc/self/pagemap");
    const std::size_t count = static_cast<std::size_t>(got) / sizeof(std::uint64_t);
    for (std::size_t i = 0; i < count; ++i) {
      // A page of ours is anonymous: there, or swapped out, and not of the file.
      if ((entries[i] & (present | swapped)) != 0 && (entries[i] & of_the_file) == 0) written.push_back(page + i);
    }
    page += count;
  }
  return written;
}

bool PrivateView::can_tell_in_huge_pages() {
  static const bool can = [] {
    try {
      const Memory memory = Memory::create(huge_page, false);
      if (!memory.use_huge_pages()) return false;
      const PrivateView view(memory, 0, huge_page, true);
      volatile std::byte seen = view.data()[0];
      (void)seen;
      return view.written_pages().empty();
    } catch (const std::system_error&) {
      return false;
    }
  }();
  return can;
}

bool PrivateView::can_tell_writes() {
  try {
    Memory memory = Memory::create(2 * page_size(), false);
    memory.data()[0] = memory.data()[page_size()] = std::byte{1};
    PrivateView view(memory, 0, memory.size());
    volatile std::byte seen = view.data()[0];
    (void)seen;
    view.data()[page_size()] = std::byte{2};
    if (view.written_pages() != std::vector<std::size_t>{1}) return false;
    view.forget_writes();
    return view.data()[page_size()] == std::byte{1};
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace samebits
