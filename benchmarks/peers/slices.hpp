// One rank of a contestant that is written in C or C++: it serves short slices of a measurement over a socket and
// sleeps between them, so that contestants can take turns.
//
// The driver (benchmarks/peers/conversation.py) sends a line `SIDE BYTES BUFFERS OFTEN BLOCKS`; the rank answers `ok`
// and the nanoseconds of one operation in each block, or `wrong` when a sum was not right. `end` ends it.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

namespace peers {

struct Rank {
  std::string contestant;
  int rank, num_ranks;
  std::function<void(float* data, std::size_t count)> all_reduce;  // a sum, in place
  std::function<void()> barrier;
};

struct Slice {
  unsigned long side, num_bytes, num_buffers, often, num_blocks;
};

struct Freed {
  void operator()(float* data) const { std::free(data); }
};

constexpr std::size_t alignment = 64;  // torch's
constexpr std::size_t period = 61;     // of the numbers that are checked

// The numbers of the first buffer are added up and looked at; zeros from then on.
inline bool is_right(const Rank& self, float* data, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % period + self.rank);
  self.all_reduce(data, count);
  const std::size_t ranks = self.num_ranks, of_ranks = ranks * (ranks - 1) / 2;
  bool right = true;
  for (std::size_t i = 0; i < count; ++i) right &= data[i] == static_cast<float>(i % period * ranks + of_ranks);
  std::memset(data, 0, count * sizeof(float));
  return right;
}

inline std::string measured(const Rank& self, const Slice& slice) {
  const std::size_t count = slice.num_bytes / sizeof(float);
  const std::size_t stride = (slice.num_bytes + alignment - 1) / alignment * alignment / sizeof(float);
  const std::size_t whole = stride * slice.num_buffers;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, whole * sizeof(float)) != 0) return "no memory";
  const std::unique_ptr<float, Freed> kept(static_cast<float*>(memory));
  std::memset(memory, 0, whole * sizeof(float));
  float* const first = kept.get();
  if (!is_right(self, first, count)) return "wrong";
  std::size_t at = 0;
  const auto next = [&] {
    self.all_reduce(first + at * stride, count);
    at = at + 1 == slice.num_buffers ? 0 : at + 1;
  };
  for (unsigned long i = 0; i < slice.num_buffers + 1; ++i) next();
  std::string told = "ok";
  for (unsigned long block = 0; block < slice.num_blocks; ++block) {
    self.barrier();
    const auto started = std::chrono::steady_clock::now();
    for (unsigned long i = 0; i < slice.often; ++i) next();
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - started;
    told += ' ' + std::to_string(taken.count() / static_cast<double>(slice.often));
  }
  return told;
}

// Until the driver says `end`, or is gone.
inline void serve(const Rank& self, const char* socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    std::perror(socket_path);
    std::exit(1);
  }
  FILE* const talk = fdopen(fd, "r+");
  std::fprintf(talk, "%d %d %s\n", self.rank, getpid(), self.contestant.c_str());
  std::fflush(talk);
  char line[256];
  while (std::fgets(line, sizeof(line), talk) != nullptr) {
    Slice slice{};
    const int found = std::sscanf(line, "%lu %lu %lu %lu %lu", &slice.side, &slice.num_bytes, &slice.num_buffers,
                                  &slice.often, &slice.num_blocks);
    if (found != 5) break;
    std::fprintf(talk, "%s\n", measured(self, slice).c_str());
    std::fflush(talk);
  }
  std::fclose(talk);
}

}  // namespace peers
