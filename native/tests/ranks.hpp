// Ranks as threads of one process, over one control block.
#pragma once

#include <sys/mman.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "checks.hpp"
#include "group.hpp"

namespace samebits {

class Block {
 public:
  explicit Block(std::size_t world_size) : bytes_(Layout::for_ranks(world_size).total()) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(data_ != MAP_FAILED);
  }
  ~Block() { ::munmap(data_, bytes_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

inline Tuning short_spin(std::size_t) {
  Tuning tuning;
  tuning.waiting.spin = std::chrono::microseconds(2);
  return tuning;
}

inline Request sum_of(float* data, std::size_t count) {
  Request request;
  request.kind = Kind::all_reduce;
  request.dtype = Dtype::float32;
  request.count = count;
  request.inputs = {data};
  request.outputs = {data};
  return request;
}

// Runs `body(group)` in a thread for each rank. Every rank must return within a group's patience.
inline void on_ranks(
    std::size_t world_size, const std::function<void(Group&)>& body,
    const std::function<Tuning(std::size_t)>& tuning_of = short_spin,
    const std::function<void(std::size_t, Settings&)>& change = [](std::size_t, Settings&) {}) {
  Block block(world_size);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      Settings settings;
      settings.patience = std::chrono::seconds(60);
      settings.tuning = tuning_of(rank);
      settings.has_ended = [](std::size_t) { return false; };
      settings.where = [rank] { return "train.py:" + std::to_string(rank); };
      change(rank, settings);
      Group group(block.data(), rank, world_size, std::move(settings));
      body(group);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace samebits
