// A tensor's shape in one word, for descriptions.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace samebits {

// 0 for one dimension and for none: a row of numbers has no particular shape. What is not too large can be read back;
// the rest is a hash.
std::uint64_t shape_code(std::span<const std::int64_t> dims);

// "2 x 3" for the code of a shape of `count` elements; the count alone where there is no shape or it cannot be read.
std::string text_of_shape(std::uint64_t code, std::uint64_t count);

}  // namespace samebits
