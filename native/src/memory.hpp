// Shared memories: made by one process, mapped by several, gone with the last of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace samebits {

// A mapping of a file that has no name, or no longer one. Move-only; unmaps and closes when it goes.
class Memory {
 public:
  // A new memory full of zeros, without a name (memfd, its size sealed). With `reserve` its pages are allocated now:
  // too little memory is an error here instead of a SIGBUS later. Throws std::system_error.
  static Memory create(std::size_t bytes, bool reserve);
  // The same under /dev/shm/NAME, mode 0600; for ranks that cannot see each other's /proc. Call `unlink_name` soon.
  // Until its maker ends it is marked, so a name that a killed process has left is one that nobody has marked: the
  // launcher and `samebits doctor` find it by that (machine/leftovers.py).
  static Memory create_named(const std::string& name, std::size_t bytes, bool reserve);
  // Another process's memory: "/proc/PID/fd/FD", or "/dev/shm/NAME".
  static Memory open(const std::string& path);
  // That of an inherited descriptor; takes it over.
  static Memory adopt(int descriptor);

  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }

  // Put what is not touched yet into huge pages, as long as these come quickly: reading it misses less, and
  // `written_pages` of a view takes a tenth of the time. Works whatever
  // /sys/kernel/mm/transparent_hugepage/shmem_enabled says, which is "never" nearly everywhere. False when some of it
  // is left to small pages, which are made when touched.
  bool use_huge_pages() const;

  // A mark for other processes, also in other PID namespaces: the kernel takes it away when this process ends, however
  // it ends (a record lock on byte `number`; a forked child does not have it). False when locks do not work here.
  bool mark(std::size_t number) const;
  // Whether another process has marked it.
  bool is_marked(std::size_t number) const;

 private:
  Memory(int descriptor, std::byte* data, std::size_t size) : descriptor_(descriptor), data_(data), size_(size) {}
  static Memory map(int descriptor, std::size_t bytes);
  int descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

void unlink_name(const std::string& name);
// A name that nobody can guess.
std::string random_name();

// A view of a memory that nobody else sees being written: what this process writes stays its own (copy on write, page
// by page); pages that it did not write show what others write into the memory.
class PrivateView {
 public:
  // `huge`: huge pages of the memory are mapped as such.
  PrivateView(const Memory& memory, std::size_t offset, std::size_t bytes, bool huge = can_tell_in_huge_pages());
  PrivateView(const PrivateView&) = delete;
  ~PrivateView();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Whether the kernel tells which pages were written (/proc/self/pagemap).
  static bool can_tell_writes();
  // Also where the view maps huge pages as such: Linux before 6.11 reports that all of these were written. False when
  // there is no huge page to try it with.
  static bool can_tell_in_huge_pages();
  // Numbers of the pages that this process wrote. About 20 ns per page of the view.
  std::vector<std::size_t> written_pages() const;
  // Forget what this process wrote: the view shows the memory again. Throws std::system_error when the kernel keeps
  // pages.
  void forget_writes();

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

std::size_t page_size();
std::string mebibytes(std::size_t bytes);

}  // namespace samebits
