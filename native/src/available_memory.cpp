#include "available_memory.hpp"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <string_view>

namespace samebits {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

// The number in a file like memory.max; the largest one when there is none ("max").
std::size_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t number = 0;
  return file >> number ? number : unlimited;
}

// The sum of some entries in a group's file of lines like "inactive_file 123".
std::size_t sum_in(const std::string& path, std::initializer_list<std::string_view> names) {
  std::ifstream file(path);
  std::size_t sum = 0, number = 0;
  for (std::string name; file >> name >> number;) {
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += number;
  }
  return sum;
}

}  // namespace

std::size_t left_in_control_group(const std::string& folder) {
  const std::size_t limit = number_in(folder + "/memory.max"), used = number_in(folder + "/memory.current");
  if (limit == unlimited) return unlimited;
  // Cached files fill a group up to its limit; the kernel drops them when it needs the room.
  const std::size_t cached = sum_in(folder + "/memory.stat", {"active_file", "inactive_file"});
  return limit - std::min(limit, used - std::min(used, cached));
}

namespace {

std::size_t left_in_control_groups() {
  std::size_t left = unlimited;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    for (std::string group = line.substr(3);; group.resize(group.rfind('/'))) {
      left = std::min(left, left_in_control_group("/sys/fs/cgroup" + group));
      if (group.empty() || group == "/") break;  // the root too: in a container it has a limit
    }
  }
  return left;
}

}  // namespace

std::size_t available_memory() {
  std::size_t left = left_in_control_groups();
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::size_t kibibytes = 0;
    if (word == "MemAvailable:" && file >> kibibytes) left = std::min(left, kibibytes << 10);
  }
  return left;
}

}  // namespace samebits
