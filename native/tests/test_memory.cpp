// Private views of a shared memory, also where the process has locked its pages.
#include <sys/mman.h>

#include "checks.hpp"
#include "memory.hpp"

using namespace lockstep;

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

}  // namespace

int main() {
  if (!PrivateView::can_tell_writes()) return 0;
  a_view_shows_what_it_wrote_until_it_forgets();
  a_view_that_was_locked_forgets_too();
}
