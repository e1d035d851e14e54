// A generator of random numbers for each device; it draws what a CPU's generator with this state draws.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "memory.hpp"

namespace pretend {

class Random final : public c10::GeneratorImpl {
 public:
  explicit Random(c10::DeviceIndex index)
      : GeneratorImpl(device_at(index), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        inner_(at::detail::createCPUGenerator()) {}
  static c10::DeviceType device_type() { return c10::DeviceType::CUDA; }

  void set_current_seed(uint64_t seed) override {
    count("seed");
    inner_.set_current_seed(seed);
  }
  uint64_t current_seed() const override { return inner_.current_seed(); }
  uint64_t seed() override { return inner_.seed(); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { inner_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  Random* clone_impl() const override {
    auto* copy = new Random(device().index());
    copy->inner_ = inner_.clone();
    return copy;
  }
  at::Generator inner_;
};

inline const at::Generator& generator_of(c10::DeviceIndex index) {
  static std::vector<at::Generator> generators;
  std::lock_guard hold(everything);
  while (static_cast<int>(generators.size()) < num_devices)
    generators.push_back(at::make_generator<Random>(static_cast<c10::DeviceIndex>(generators.size())));
  return generators[device_at(index).index()];
}

}  // namespace pretend
