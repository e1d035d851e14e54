// Private views of a shared memory, also where the process has locked its pages.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "available_memory.hpp"
#include "checks.hpp"
#include "memory.hpp"

using namespace samebits;

namespace {

using Pages = std::vector<std::size_t>;

void a_view_shows_what_it_wrote_until_it_forgets() {
  const Memory memory = Memory::create(4 * page_size(), false);
  PrivateView view(memory, 0, memory.size());
  view.data()[page_size()] = std::byte{1};
  CHECK(view.written_pages() == Pages{1});
  memory.data()[page_size()] = std::byte{2};
  CHECK(view.data()[page_size()] == std::byte{1});
  view.forget_writes();
  CHECK(view.written_pages().empty());
  CHECK(view.data()[page_size()] == std::byte{2});
}

// Locking a view copies all of its pages, and the kernel does not drop locked ones when it is asked to.
void a_view_that_was_locked_forgets_too() {
  const Memory memory = Memory::create(4 * page_size(), false);
  PrivateView view(memory, 0, memory.size());
  // Not allowed here; or a sanitizer, which does nothing instead and says that it did.
  if (::mlock(view.data(), view.size()) != 0 || view.written_pages().empty()) return;
  memory.data()[0] = std::byte{2};
  CHECK(view.data()[0] == std::byte{0});
  view.forget_writes();
  CHECK(view.data()[0] == std::byte{2});
  memory.data()[0] = std::byte{3};
  CHECK(view.data()[0] == std::byte{3});
  CHECK(view.written_pages().empty());
}

// Whether or not the kernel has huge pages left, and whether or not the view maps them as such.
void huge_pages_are_told_apart_page_by_page(bool huge) {
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  const std::size_t bytes = 3 * huge_page + 5 * page_size();
  const Memory memory = Memory::create(bytes, false);
  memory.use_huge_pages();
  PrivateView view(memory, 0, bytes, huge);
  CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % huge_page == 0);
  CHECK((reinterpret_cast<std::uintptr_t>(view.data()) % huge_page == 0) == huge);
  for (const auto* data : {memory.data(), view.data()}) {
    CHECK(std::all_of(data, data + bytes, [](std::byte byte) { return byte == std::byte{0}; }));
  }
  CHECK(view.written_pages().empty());
  Pages written;
  for (const std::size_t at : {huge_page - 1, huge_page + 7 * page_size(), 2 * huge_page, bytes - 1}) {
    view.data()[at] = std::byte{1};
    written.push_back(at / page_size());
  }
  CHECK(view.written_pages() == written);
  std::fill(memory.data(), memory.data() + bytes, std::byte{2});
  CHECK(view.data()[huge_page - 1] == std::byte{1} && view.data()[3] == std::byte{2});
  view.forget_writes();
  CHECK(view.written_pages().empty());
  CHECK(std::all_of(view.data(), view.data() + bytes, [](std::byte byte) { return byte == std::byte{2}; }));
}

// What was read from files counts as used until the kernel needs the room.
void files_in_the_cache_are_no_used_memory() {
  char folder[] = "/tmp/samebits-test-XXXXXX";
  CHECK(::mkdtemp(folder) != nullptr);
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(std::string(folder) + name) << text;
  };
  CHECK(left_in_control_group(folder) == std::numeric_limits<std::size_t>::max());
  write("/memory.max", "max\n");
  CHECK(left_in_control_group(folder) == std::numeric_limits<std::size_t>::max());
  write("/memory.max", "1000\n");
  write("/memory.current", "990\n");
  CHECK(left_in_control_group(folder) == 10);
  write("/memory.stat", "anon 200\nfile 900\ninactive_file 500\nactive_file 90\n");
  CHECK(left_in_control_group(folder) == 600);
  for (const char* name : {"/memory.max", "/memory.current", "/memory.stat"}) {
    CHECK(::unlink((std::string(folder) + name).c_str()) == 0);
  }
  CHECK(::rmdir(folder) == 0);
}

}  // namespace

int main() {
  files_in_the_cache_are_no_used_memory();
  if (!PrivateView::can_tell_writes()) return 0;
  a_view_shows_what_it_wrote_until_it_forgets();
  a_view_that_was_locked_forgets_too();
  huge_pages_are_told_apart_page_by_page(false);
  if (PrivateView::can_tell_in_huge_pages()) huge_pages_are_told_apart_page_by_page(true);
}
