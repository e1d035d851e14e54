// How the ranks of a group make a window together.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <system_error>
#include <utility>

#include "available_memory.hpp"
#include "group.hpp"

namespace samebits {
namespace {

constexpr std::size_t largest_window = std::size_t{1} << 46;  // so that sizes can be multiplied and rounded up

// The name of a memory, until all have opened it or something has gone wrong.
struct Name {
  std::string text;
  ~Name() {
    if (!text.empty()) unlink_name(text);
  }
};

// What the leader reports about a memory that it has made, or a rank about opening it.
struct Offer {
  std::int32_t process, descriptor, error, padding;
  char text[240];
};

// Memories that this process made, by descriptor: ranks that are threads share one mapping, which thread checkers need.
std::shared_ptr<Memory> made_here(int descriptor, const std::shared_ptr<Memory>& made = nullptr) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Memory>> memories;
  const std::lock_guard lock(mutex);
  if (made != nullptr) memories[descriptor] = made;
  return memories[descriptor].lock();
}

std::shared_ptr<Memory> open_memory(const Offer& leader, bool named) {
  // With names the process ids come from different namespaces, and equal ones mean nothing.
  if (!named && leader.process == ::getpid()) return made_here(leader.descriptor);
  return std::make_shared<Memory>(
      Memory::open(named ? std::string("/dev/shm/") + leader.text
                         : "/proc/" + std::to_string(leader.process) + "/fd/" + std::to_string(leader.descriptor)));
}

void note_failure(Offer& offer, const std::system_error& error) {
  offer.error = error.code().value();
  write_text(offer.text, sizeof(offer.text), error.what());
}

}  // namespace

std::string random_name() {
  std::random_device source;
  std::string name = "samebits-";
  for (int i = 0; i < 32; ++i) name += "0123456789abcdef"[source() % 16];
  return name;
}

std::shared_ptr<Window> Group::allocate(std::size_t bytes, bool once) {
  Request agreement;
  agreement.kind = Kind::allocate;
  agreement.count = bytes;
  agreement.factor = once ? 1 : 2;  // compared by all
  run(agreement);

  if (bytes > largest_window / world_size()) {
    throw GroupError(Trouble::no_memory, "A window of " + mebibytes(bytes) + " for each rank is too large.");
  }
  const std::size_t region = (std::max<std::size_t>(bytes, 1) + page_size() - 1) / page_size() * page_size();
  const std::size_t total = once ? region : region * world_size();
  std::shared_ptr<Memory> memory;
  std::vector<Offer> offers(world_size());
  const auto exchange = [&](const Offer& mine) {
    Request request;
    request.kind = Kind::all_gather;
    request.count = sizeof(Offer);
    request.inputs = {&mine};
    request.outputs = {offers.data()};
    run(std::move(request));
  };
  Offer mine{};
  Name name;
  if (rank_ == 0) {
    try {
      if (const std::size_t room = available_memory(); total > room) {
        throw std::system_error(ENOMEM, std::generic_category(),
                                "there is no room for " + mebibytes(total) + " of shared memory beside " +
                                    mebibytes(room) + " that this machine or its control group has left");
      }
      if (settings_.named_memory) {
        name.text = random_name();
        memory = std::make_shared<Memory>(Memory::create_named(name.text, total, true));
        write_text(mine.text, sizeof(mine.text), name.text);
      } else {
        memory = std::make_shared<Memory>(Memory::create(total, false));
      }
      memory->use_huge_pages();
      mine.process = static_cast<std::int32_t>(::getpid());
      mine.descriptor = memory->descriptor();
      made_here(mine.descriptor, memory);
    } catch (const std::system_error& error) {
      note_failure(mine, error);
    }
  }
  exchange(mine);
  const Offer leader = offers[0];
  Offer opened{};
  if (leader.error != 0) throw GroupError(Trouble::no_memory, leader.text);
  if (rank_ != 0) {
    try {
      memory = open_memory(leader, settings_.named_memory);
    } catch (const std::system_error& error) {
      note_failure(opened, error);
    }
  }
  exchange(opened);
  if (!name.text.empty()) unlink_name(std::exchange(name.text, {}));
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    if (offers[peer].error != 0)
      throw GroupError(Trouble::no_memory, "Rank " + settings_.name_of(peer) + ": " + offers[peer].text);
  }
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<std::uint32_t>(windows_.size() + 1);
  windows_.push_back(std::make_shared<Window>(Window{std::move(memory), number, bytes, once ? 0 : region}));
  return windows_.back();
}

void Group::release(const Window& window) {
  check_process();
  const std::lock_guard lock(mutex_);
  windows_.at(window.number - 1) = nullptr;
}

}  // namespace samebits
