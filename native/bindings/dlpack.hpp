// The table of functions that torch hands out for DLPack, by which a tensor is read without torch's headers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace samebits::dlpack {

// As dlpack.h lays them out, version 1.
struct Exchange {
  std::uint32_t major_version, minor_version;
  const Exchange* older;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*read)(void* object, void* tensor);
};
struct Tensor {
  void* data;
  std::int32_t device_type, device;
  std::int32_t num_dims;
  std::uint8_t type, bits;
  std::uint16_t lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;
  std::uint64_t offset;
};
constexpr std::int32_t cpu = 1;
enum Type : std::uint8_t { integer = 0, natural = 1, floating = 2, brain = 4, boolean = 6 };

using Read = int (*)(void* object, void* tensor);

// The function of `torch.Tensor.__dlpack_c_exchange_api__`, which stays good; nothing for None and for other versions.
inline Read read_of(nanobind::object exchange) {
  if (exchange.is_none()) return nullptr;
  const auto* found = static_cast<const Exchange*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
  if (found == nullptr) throw nanobind::python_error();
  exchange.release();
  return found->major_version == 1 ? found->read : nullptr;
}

}  // namespace samebits::dlpack
