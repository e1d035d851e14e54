// A `cuda` device in host memory, put into the empty places of a CPU build of torch: hooks, guard, memory, operations.
//
// Load it before torch is imported, which looks for the hooks once. It must never come near a torch that has CUDA.
// One file to compile: torch's headers cost more than everything here.
#define AT_PER_OPERATOR_HEADERS

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "operations.hpp"

namespace pretend {

class Hooks final : public at::CUDAHooksInterface {
 public:
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return generator_of(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Random>(device_at(index).index());
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    std::lock_guard hold(everything);
    auto found = blocks.find(data);
    return device_at(found == blocks.end() ? present : found->second.first);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  c10::DeviceIndex current_device() const override { return present; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(num_devices); }
  int getNumGPUs() const override { return num_devices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { guard_.setDevice(device_at(index)); }
  c10::DeviceIndex getCurrentDevice() const override { return present; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return guard_.exchangeDevice(device_at(index)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  void deviceSynchronize(c10::DeviceIndex index) const override { guard_.synchronizeDevice(index); }

 private:
  Guard guard_;
};

namespace {
[[maybe_unused]] const int with_memory = [] {
  c10::SetAllocator(c10::DeviceType::CUDA, &device_memory);
  return 0;
}();

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

c10::Dict<std::string, int64_t> counts() {
  std::lock_guard hold(everything);
  c10::Dict<std::string, int64_t> told;
  for (auto& [what, number] : ledger) told.insert(what, number);
  return told;
}

void resize_storage(const Tensor& tensor, int64_t size) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  On on(tensor.device());
  auto block = device_memory.allocate(static_cast<size_t>(size));
  if (const auto both = std::min(static_cast<size_t>(size), storage->nbytes()))
    std::memcpy(block.get(), storage->data(), both);
  storage->set_data_ptr_noswap(std::move(block));
  storage->set_nbytes(static_cast<size_t>(size));
}

Tensor& set_tensor(Tensor& self, const Tensor& other) {
  auto* mine = self.unsafeGetTensorImpl();
  mine->set_storage_and_dtype(other.storage(), other.dtype());
  mine->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  return self;
}
}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_",
         [](const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) -> const Tensor& {
           return at::native::resize_(self, size, format);
         });
  m.impl("set_.source_Storage_storage_offset",
         [](Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size,
            at::IntArrayRef stride) -> Tensor& { return at::cpu::set_(self, storage, offset, size, stride); });
  m.impl("set_.source_Storage",
         [](Tensor& self, at::Storage storage) -> Tensor& { return at::cpu::set_(self, storage); });
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("copy_", copy);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("record_stream", [](Tensor&, c10::Stream) { count("record_stream"); });
  m.impl("_fused_sdp_choice",
         [](const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
            std::optional<double>, bool) -> int64_t { return 0; });
  for (const auto& name : kWithoutDeterministicForm)  // CUDA has a kernel of each of these, which may be replaced
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
}

// What tests and the Python half ask.
TORCH_LIBRARY(pretend, m) {
  m.def("set_device_count(int n) -> ()", [](int64_t n) { num_devices = static_cast<int>(n); });
  m.def("device() -> int", []() -> int64_t { return present; });
  m.def("exchange_device(int index) -> int", [](int64_t index) -> int64_t {
    return Guard().exchangeDevice(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index))).index();
  });
  m.def("stream(int device) -> int", [](int64_t device) -> int64_t { return current_streams[device]; });
  m.def("generator(int device) -> Generator?", [](int64_t device) -> at::Generator { return generator_of(device); });
  m.def("synchronize() -> ()", [] { Guard().synchronizeDevice(present); });
  m.def("counts() -> Dict(str, int)", counts);
  m.def("clear_counts() -> ()", [] {
    std::lock_guard hold(everything);
    ledger.clear();
  });
  m.def("plant_fault(str operation, str words=\"device-side assert triggered\") -> ()",
        [](const std::string& operation, const std::string& words) { fault_at = operation, fault_words = words; });
  m.def("limit_memory(int device, int size) -> ()",
        [](int64_t device, int64_t size) { usage[device].limit = static_cast<size_t>(size); });
  m.def("memory(int device) -> (int, int)",
        [](int64_t device) -> std::tuple<int64_t, int64_t> { return {usage[device].now, usage[device].peak}; });
  m.def("memory_left(int device) -> (int, int)", [](int64_t device) -> std::tuple<int64_t, int64_t> {
    return {left(static_cast<c10::DeviceIndex>(device)), usage[device].limit};
  });
  m.def("forget_peak(int device) -> ()", [](int64_t device) { usage[device].peak = usage[device].now; });
  m.def("resize_storage(Tensor tensor, int size) -> ()", resize_storage);
  m.def("host(Tensor tensor) -> Tensor", [](const Tensor& tensor) -> Tensor { return host(tensor); });
}

}  // namespace pretend

namespace at {
using PretendedHooks = ::pretend::Hooks;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, PretendedHooks)
}  // namespace at
