// Arrays to reduce: of any alignment, with guards around them, and full of awkward numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels_reference.hpp"

namespace arrays {

using reference::Raw;
using samebits::Dtype;

inline std::mt19937_64 random_bits(20240607);

inline std::size_t random_below(std::size_t limit) { return random_bits() % limit; }

// Memory of exactly the size of the elements after `skip` elements, with a guard behind them.
class Array {
 public:
  Array(Dtype dtype, std::size_t count)
      : size_(samebits::size_of(dtype)),
        count_(count),
        skip_(random_below(9)),
        bytes_((skip_ + count + 1) * size_, 0xa5) {}
  unsigned char* data() { return bytes_.data() + skip_ * size_; }
  Raw get(std::size_t i) const {
    Raw raw = 0;
    std::memcpy(&raw, bytes_.data() + (skip_ + i) * size_, size_);
    return raw;
  }
  void set(std::size_t i, Raw raw) { std::memcpy(data() + i * size_, &raw, size_); }
  std::size_t count() const { return count_; }
  bool guards_stand() const {
    const auto stands = [](unsigned char byte) { return byte == 0xa5; };
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(skip_ * size_);
    const auto end = bytes_.end() - static_cast<std::ptrdiff_t>(size_);
    return std::all_of(bytes_.begin(), begin, stands) && std::all_of(end, bytes_.end(), stands);
  }

 private:
  std::size_t size_, count_, skip_;
  std::vector<unsigned char> bytes_;
};

// Zeros, infinities, quiet and signalling NaNs, subnormals, the greatest and their neighbours, of either sign; for
// integers these are as good as any others.
inline Raw random_special(Dtype dtype) {
  const int bits = static_cast<int>(samebits::size_of(dtype)) * 8;
  const int mantissa = dtype == Dtype::float64 ? 52 : dtype == Dtype::float32 ? 23 : dtype == Dtype::float16 ? 10 : 7;
  const Raw sign = random_below(2) << (bits - 1);
  if (dtype > Dtype::bfloat16) {
    const Raw specials[] = {0, 1, 2, ~Raw{0}, Raw{1} << (bits - 1), (Raw{1} << (bits - 1)) - 1};
    return specials[random_below(6)];
  }
  const Raw infinity = reference::infinity_of({bits, mantissa, 0});
  const Raw one = (infinity >> 1) & ~((Raw{1} << mantissa) - 1);
  const Raw smallest_normal = Raw{1} << mantissa;
  const Raw specials[] = {0,
                          1,
                          smallest_normal - 1,
                          smallest_normal,
                          one,
                          one + 1,
                          infinity - 1,
                          infinity - 2,
                          infinity,
                          infinity + 1,
                          infinity + (Raw{1} << (mantissa - 1)) + 3};
  return sign | specials[random_below(11)];
}

inline Raw random_element(Dtype dtype) {
  if (random_below(3) == 0) return random_special(dtype);
  if (dtype == Dtype::boolean) return random_below(2);
  Raw raw = random_bits() >> (64 - 8 * samebits::size_of(dtype));
  // Numbers around 1, so that most sums have something to round.
  if (dtype == Dtype::float64 && random_below(2)) raw = std::bit_cast<Raw>(1.0 + static_cast<double>(raw) * 0x1p-63);
  if (dtype == Dtype::float32 && random_below(2)) raw = 0x3f000000 + (raw & 0x00ffffff);
  if (dtype == Dtype::float16 && random_below(2)) raw = 0x3800 + (raw & 0x0fff);
  if (dtype == Dtype::bfloat16 && random_below(2)) raw = 0x3f00 + (raw & 0x01ff);
  return raw;
}

using Arrays = std::vector<std::unique_ptr<Array>>;

inline Arrays random_arrays(Dtype dtype, std::size_t num_arrays, std::size_t count) {
  Arrays arrays;
  for (std::size_t k = 0; k < num_arrays; ++k) {
    arrays.push_back(std::make_unique<Array>(dtype, count));
    for (std::size_t i = 0; i < count; ++i) arrays.back()->set(i, random_element(dtype));
  }
  return arrays;
}

}  // namespace arrays
