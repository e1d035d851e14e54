// The memory of each device, and pinned memory: both lie in host memory. Fresh memory is poisoned: NaN, -1, true.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "ledger.hpp"

namespace pretend {

inline constexpr int kPoison = 0xFF;
inline constexpr size_t kAlignment = 512;  // as torch's allocator for CUDA has it
inline constexpr double kMiB = 1 << 20;

inline int num_devices = 2;
inline thread_local c10::DeviceIndex present = 0;  // the current device of this thread

inline c10::Device device_at(c10::DeviceIndex index) { return {c10::DeviceType::CUDA, index < 0 ? present : index}; }

inline void check_ordinal(c10::DeviceIndex index) {
  if (index >= num_devices)
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 101, "CUDA error: invalid device ordinal");
}

struct Usage {
  size_t now = 0, peak = 0, limit = size_t(80) << 30;
};
inline std::map<c10::DeviceIndex, Usage> usage;
inline std::map<void*, std::pair<c10::DeviceIndex, size_t>> blocks;

inline void* aligned(size_t size) {
  void* block = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  if (!block) throw std::bad_alloc();
  return block;
}

// What another program has taken of every device, in bytes.
inline size_t taken() {
  const char* told = std::getenv("PRETENDED_GPUS_TAKEN");
  return told ? std::strtoull(told, nullptr, 10) : 0;
}

inline int64_t left(c10::DeviceIndex index) {
  return int64_t(usage[index].limit) - int64_t(usage[index].now + taken());
}

inline void take(c10::DeviceIndex index, size_t size) {
  Usage& used = usage[index];
  TORCH_CHECK_WITH(OutOfMemoryError, int64_t(size) <= left(index), "CUDA out of memory. Tried to allocate ",
                   size / kMiB, " MiB. GPU ", int(index), " has a total capacity of ", used.limit / kMiB,
                   " MiB of which ", std::max<int64_t>(left(index), 0) / kMiB,
                   " MiB is free. Including non-PyTorch memory, this process has ", used.now / kMiB,
                   " MiB memory in use.");
  used.now += size;
  used.peak = std::max(used.peak, used.now);
}

class DeviceMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    std::lock_guard hold(everything);
    if (!size) return {nullptr, nullptr, &release, device_at(present)};
    take(present, size);
    void* block = aligned(size);
    std::memset(block, kPoison, size);
    blocks[block] = {present, size};
    return {block, block, &release, device_at(present)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }

 private:
  static void release(void* block) {
    if (!block) return;
    std::lock_guard hold(everything);
    auto [index, size] = blocks.at(block);
    std::memset(block, kPoison, size);  // whoever still looks at it shall see that
    usage[index].now -= size;
    blocks.erase(block);
    std::free(block);
  }
};
inline DeviceMemory device_memory;

inline std::map<uintptr_t, size_t> pinned_blocks;

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* block = aligned(std::max<size_t>(size, 1));
    std::lock_guard hold(everything);
    pinned_blocks[reinterpret_cast<uintptr_t>(block)] = std::max<size_t>(size, 1);
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }

 private:
  static void release(void* block) {
    std::lock_guard hold(everything);
    pinned_blocks.erase(reinterpret_cast<uintptr_t>(block));
    std::free(block);
  }
};
inline PinnedMemory pinned_memory;

inline bool is_pinned(const void* data) {
  std::lock_guard hold(everything);
  auto next = pinned_blocks.upper_bound(reinterpret_cast<uintptr_t>(data));
  if (next == pinned_blocks.begin()) return false;
  --next;
  return reinterpret_cast<uintptr_t>(data) < next->first + next->second;
}

}  // namespace pretend
