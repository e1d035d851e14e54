// Sizes and names of what can be reduced, in the words of torch.
#include <array>

#include "kernels/kernels.hpp"

namespace samebits {

namespace {
constexpr std::array<std::size_t, 10> sizes = {8, 4, 2, 2, 1, 2, 4, 8, 1, 1};
constexpr std::array<std::string_view, 10> dtype_names = {"float64", "float32", "float16", "bfloat16", "int8",
                                                          "int16",   "int32",   "int64",   "uint8",    "bool"};
constexpr std::array<std::string_view, 8> op_names = {"sum",     "average", "minimum", "maximum",
                                                      "product", "bit and", "bit or",  "bit xor"};
}  // namespace

std::size_t size_of(Dtype dtype) { return sizes.at(static_cast<std::size_t>(dtype)); }
std::string_view name_of(Dtype dtype) { return dtype_names.at(static_cast<std::size_t>(dtype)); }
std::string_view name_of(ReduceOp op) { return op_names.at(static_cast<std::size_t>(op)); }

}  // namespace samebits
