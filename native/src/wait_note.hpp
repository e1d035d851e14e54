// What a rank waits for, written into its journal, where others can read it even when this process is stopped or dead.
// src/samebits/protocol/journal/gauges.py has the same layout, waiting_note.py the other writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace samebits {

struct WaitNote {
  static constexpr std::size_t text_bytes = 368;
  std::uint64_t version;     // odd while it is written
  std::uint64_t since_ns;    // steady clock; 0: nothing is waited for
  std::uint64_t behind[16];  // a bit for each rank that is waited for
  char what[text_bytes];     // for people
};
static_assert(sizeof(WaitNote) == 512);

// From here on waits of this process are noted there; null: nowhere. The memory must stay mapped.
void note_waits_at(WaitNote* note);

// One wait of this thread. Notes nothing before `tell`; ends the note when it goes. While one thread has a note, others
// of the process have none.
class NotedWait {
 public:
  explicit NotedWait(std::uint64_t since_ns) : since_ns_(since_ns) {}
  NotedWait(const NotedWait&) = delete;
  ~NotedWait();

  // Whether the text is still missing.
  bool is_new() const { return !told_; }
  void tell(const std::vector<std::size_t>& behind, const std::string& what);
  // Once told: the same wait, for others.
  void tell(const std::vector<std::size_t>& behind);

 private:
  void write(const std::vector<std::size_t>& behind, const std::string* what);

  std::uint64_t since_ns_;
  bool told_ = false;
  WaitNote* note_ = nullptr;  // null: another thread has it
};

}  // namespace samebits
