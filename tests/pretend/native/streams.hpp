// Streams: kernels run at once, copies that need nobody to wait are made when somebody waits for them, and not before.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>

#include "faults.hpp"
#include "memory.hpp"

namespace pretend {

struct Queue {
  std::deque<std::function<void()>> copies;
  uint64_t begun = 0, queued = 0;
};
inline std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Queue> queues;
inline std::atomic<c10::StreamId> next_stream{1};
inline thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;

struct Mark {  // of an event
  c10::Stream stream;
  uint64_t upto;
};

inline void enqueue(c10::DeviceIndex device, c10::StreamId stream, std::function<void()> copy) {
  std::lock_guard hold(everything);
  auto& queue = queues[{device, stream}];
  ++queue.queued;
  queue.copies.push_back(std::move(copy));
}

inline void make_copies(c10::DeviceIndex device, c10::StreamId stream, uint64_t upto = UINT64_MAX) {
  std::lock_guard hold(everything);
  auto& queue = queues[{device, stream}];
  while (queue.begun < upto && !queue.copies.empty()) {
    auto copy = std::move(queue.copies.front());
    queue.copies.pop_front();
    ++queue.begun;
    Inside inside;
    copy();
  }
}

inline void make_all_copies() {
  std::lock_guard hold(everything);
  for (auto& [place, queue] : queues) make_copies(place.first, place.second);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return device_at(present); }
  void setDevice(c10::Device device) const override {
    check_ordinal(device.index());
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) present = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(num_devices); }

  c10::Stream getStream(c10::Device device) const override {
    auto place = device_at(device.index());
    return c10::Stream(c10::Stream::UNSAFE, place, current_streams[place.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device_at(device.index()), 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, device_at(device.index()), next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    std::lock_guard hold(everything);
    return queues[{stream.device_index(), stream.id()}].copies.empty();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_for_device("stream");
    make_copies(stream.device_index(), stream.id());
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    wait_for_device("device");
    make_all_copies();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard hold(everything);
    delete static_cast<Mark*>(*event);
    *event = new Mark{stream, queues[{stream.device_index(), stream.id()}].queued};
  }
  void block(void* event, const c10::Stream&) const override {
    count("stream waits for event");
    reach(event);
  }
  void synchronizeEvent(void* event) const override {
    wait_for_device("event");
    reach(event);
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    auto* mark = static_cast<Mark*>(event);
    std::lock_guard hold(everything);
    return queues[{mark->stream.device_index(), mark->stream.id()}].begun >= mark->upto;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Mark*>(event); }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1.0; }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override { count("record_stream"); }

 private:
  static void reach(void* event) {
    if (!event) return;
    auto* mark = static_cast<Mark*>(event);
    make_copies(mark->stream.device_index(), mark->stream.id(), mark->upto);
  }
};

}  // namespace pretend
