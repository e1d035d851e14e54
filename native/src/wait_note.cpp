#include "wait_note.hpp"

#include <atomic>
#include <cstring>

#include "control.hpp"

namespace samebits {
namespace {

std::atomic<WaitNote*> place = nullptr;
std::atomic<bool> taken = false;

// Readers compare the number before and after; each change of it is seen after what was written before.
void begin_writing(WaitNote& note) {
  std::atomic_ref(note.version).store(note.version | 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
}
void end_writing(WaitNote& note) { std::atomic_ref(note.version).store(note.version + 1, std::memory_order_release); }

}  // namespace

void note_waits_at(WaitNote* note) {
  taken = false;  // a forked child has none of its parent's threads
  place = note;
}

NotedWait::~NotedWait() {
  if (note_ == nullptr) return;
  begin_writing(*note_);
  note_->since_ns = 0;
  end_writing(*note_);
  taken = false;
}

void NotedWait::tell(const std::vector<std::size_t>& behind, const std::string& what) {
  told_ = true;
  WaitNote* const note = place;
  if (note == nullptr || taken.exchange(true)) return;
  note_ = note;
  write(behind, &what);
}

void NotedWait::tell(const std::vector<std::size_t>& behind) { write(behind, nullptr); }

void NotedWait::write(const std::vector<std::size_t>& behind, const std::string* what) {
  if (note_ == nullptr) return;
  constexpr std::size_t bits = 64, ranks = bits * std::size(WaitNote{}.behind);
  begin_writing(*note_);
  note_->since_ns = since_ns_;
  std::memset(note_->behind, 0, sizeof(note_->behind));
  for (const std::size_t rank : behind) {
    if (rank < ranks) note_->behind[rank / bits] |= std::uint64_t{1} << rank % bits;
  }
  if (what != nullptr) write_text(note_->what, sizeof(note_->what), *what);
  end_writing(*note_);
}

}  // namespace samebits
