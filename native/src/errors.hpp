// What can go wrong between ranks. Each of these breaks its group.
#pragma once

#include <stdexcept>
#include <string>

namespace samebits {

enum class Trouble : int {
  none = 0,
  lost = 1,          // a rank ended, or left the group, while others wait for it
  disagreement = 2,  // ranks called different operations
  timeout = 3,       // a rank did not come in time
  aborted = 4,       // a rank gave up: interrupted, or another error
  no_memory = 5,
};

class GroupError : public std::runtime_error {
 public:
  GroupError(Trouble trouble, const std::string& text) : std::runtime_error(text), trouble(trouble) {}
  Trouble trouble;
};

// A call that can never be right, found before any other rank is involved.
class BadCall : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace samebits
