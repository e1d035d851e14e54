// Operations on the pretended devices: torch's own kernels for the CPU, after what CUDA would have checked.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/resize_native.h>

#include "generators.hpp"
#include "rules.hpp"
#include "streams.hpp"

namespace pretend {

using at::Tensor;

// The same memory as a tensor of the CPU.
inline Tensor host(const Tensor& tensor) {
  if (!tensor.is_cuda()) return tensor;
  auto data = c10::DataPtr(const_cast<void*>(tensor.storage().data()), c10::Device(c10::DeviceType::CPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr, false);
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      tensor.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  out._set_conj(tensor.is_conj());
  out._set_neg(tensor.is_neg());
  return out;
}

inline void poison(const Tensor& tensor) {
  if (tensor.is_contiguous() && tensor.numel()) std::memset(tensor.data_ptr(), kPoison, tensor.nbytes());
}

inline Tensor& copy(Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_same(from)) return to;
  const bool down = to.is_cpu(), up = from.is_cpu();
  const Tensor& on_host = down ? to : from;
  const bool is_late = (down || up) && non_blocking && to.numel() && is_pinned(on_host.storage().data());
  const auto device = down ? from.device().index() : to.device().index();
  const auto stream = current_streams[device];
  if (is_late)
    count(down ? "copy to the host" : "copy to the device");
  else if (down || up)
    wait_for_device(down ? "copy to the host" : "copy to the device");
  else
    launch("copy_");
  const bool is_waited_for = (down || up) && !is_late;
  if (!depth && (is_waited_for || stream)) make_copies(device, stream);
  Inside inside;
  Tensor target = host(to), source = host(from);
  if (down && is_late) {  // its source may change at once: the stream has read it by then
    source = source.clone();
    poison(target);
    enqueue(device, stream, [target, source]() mutable { target.copy_(source); });
  } else if (up && is_late && stream) {
    poison(target);
    enqueue(device, stream, [target, source, to, from]() mutable { target.copy_(source); });
  } else {
    target.copy_(source);
  }
  return to;
}

inline Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy(target, from, non_blocking);
}

inline Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  Tensor target = to;
  if (target.sizes() != from.sizes()) at::native::resize_(target, from.sizes());
  return copy(target, from, false);
}

class On {  // a device, as the current one
 public:
  explicit On(std::optional<c10::Device> device) : before_(present) {
    if (!device || !device->has_index()) return;
    check_ordinal(device->index());
    present = device->index();
  }
  ~On() { present = before_; }
  On(const On&) = delete;
  On& operator=(const On&) = delete;

 private:
  c10::DeviceIndex before_;
};

inline constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

inline Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  On on(device);
  return at::detail::empty_generic(size, &device_memory, kKeys, at::dtype_or_default(dtype), format);
}

inline Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  On on(device);
  return at::detail::empty_strided_generic(size, stride, &device_memory, kKeys, at::dtype_or_default(dtype));
}

inline at::Scalar item(const Tensor& tensor) {
  wait_for_device("item");
  make_copies(tensor.device().index(), current_streams[tensor.device().index()]);
  Inside inside;
  return host(tensor).item();
}

// The one device of a call's tensors; numbers of the CPU may take part.
class OneDevice {
 public:
  OneDevice(const c10::FunctionSchema& schema, const std::string& name, const torch::jit::Stack& stack) : name_(name) {
    for (const auto& value : torch::jit::last(stack, schema.arguments().size())) {
      if (value.isTensor())
        look(value.toTensor());
      else if (value.isTensorList())
        for (const Tensor& each : value.toTensorVector()) look(each);
    }
    TORCH_CHECK(!has_host_ || index < 0 || kTakesHostTensors.count(name), kTwo, "cuda:", int(index), " and cpu! (",
                name, ")");
  }
  c10::DeviceIndex index = -1;

 private:
  static constexpr auto kTwo = "Expected all tensors to be on the same device, but found at least two devices, ";
  void look(const Tensor& tensor) {
    if (!tensor.defined()) return;
    has_host_ = has_host_ || (tensor.is_cpu() && tensor.dim() > 0);
    if (!tensor.is_cuda()) return;
    TORCH_CHECK(index < 0 || index == tensor.device().index(), kTwo, "cuda:", int(index), " and ", tensor.device(),
                "! (", name_, ")");
    index = tensor.device().index();
  }
  const std::string& name_;
  bool has_host_ = false;
};

// Calls a drawing operation with the device's state in the place of the CPU's.
inline void draw(const c10::OperatorHandle& operation, torch::jit::Stack* stack, c10::DeviceIndex index) {
  std::lock_guard hold(everything);
  at::Generator own = generator_of(index);
  for (auto& value : torch::jit::last(*stack, operation.schema().arguments().size()))
    if (value.isGenerator()) {
      own = value.toGenerator();
      const_cast<c10::IValue&>(value) = c10::IValue();
    }
  const at::Generator& cpu = at::detail::getDefaultCPUGenerator();
  struct Restored {
    at::Generator generator;
    Tensor state;
    ~Restored() { generator.set_state(state); }
  } restored{cpu, cpu.get_state()};
  at::Generator drawing = cpu;
  drawing.set_state(own.get_state());
  at::native::cpu_fallback(operation, stack);
  own.set_state(drawing.get_state());
}

// A mask as an index has as many elements as it has ones: the host asks how many.
inline bool has_mask(const torch::jit::Stack& stack, size_t num_arguments) {
  for (const auto& value : torch::jit::last(stack, num_arguments)) {
    if (!value.isList() || value.isTensorList()) continue;
    for (const c10::IValue& each : value.toListRef())
      if (each.isTensor() && each.toTensor().defined() && each.toTensor().scalar_type() == at::kBool) return true;
  }
  return false;
}

// The running mean and variance are written to, though the schema does not say so: the kernel gets the memory itself.
inline void share_running_statistics(torch::jit::Stack* stack) {
  constexpr size_t kArguments = 8, kMean = 3, kVariance = 4;
  for (size_t place : {kMean, kVariance}) {
    c10::IValue& value = (*stack)[stack->size() - kArguments + place];
    if (value.isTensor() && value.toTensor().defined()) value = host(value.toTensor());
  }
}

inline void run(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const std::string name = operation.schema().name().substr(std::string_view("aten::").size());
  const std::string base = name.back() == '_' ? name.substr(0, name.size() - 1) : name;
  OneDevice device(operation.schema(), name, *stack);
  if (kWaits.count(base)) wait_for_device(base);
  if (kTakesHostTensors.count(name) && has_mask(*stack, operation.schema().arguments().size())) wait_for_device("mask");
  if (kOverBlas.count(base)) check_blas();
  if (kWithoutDeterministicForm.count(name)) at::globalContext().alertNotDeterministic(name + "_cuda");
  launch(name);
  if (const auto stream = current_streams[device_at(device.index).index()]; stream && !depth)
    make_copies(device_at(device.index).index(), stream);
  if (name == "native_batch_norm") share_running_statistics(stack);
  Inside inside;
  On on(device.index < 0 ? std::nullopt : std::optional(device_at(device.index)));
  if (operation.hasTag(at::Tag::nondeterministic_seeded))
    draw(operation, stack, device.index);
  else
    at::native::cpu_fallback(operation, stack);
}

}  // namespace pretend
