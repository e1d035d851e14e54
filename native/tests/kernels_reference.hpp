// The slow and obvious way to reduce one element, to compare the kernels with. Elements are raw bits in 64-bit words.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/kernels.hpp"

namespace reference {

using samebits::Dtype;
using samebits::ReduceOp;
using samebits::Scale;
using Raw = std::uint64_t;

// A binary floating-point format of `size` bits with `mantissa` stored bits.
struct Format {
  int size;
  int mantissa;
  int smallest_exponent;  // of a normal number
};
constexpr Format half = {16, 10, -14};
constexpr Format brain = {16, 7, -126};

inline Raw infinity_of(Format f) { return ((Raw{1} << (f.size - 1 - f.mantissa)) - 1) << f.mantissa; }

inline double decode(Format f, Raw raw) {
  const Raw sign = raw >> (f.size - 1);
  const Raw magnitude = raw & ((Raw{1} << (f.size - 1)) - 1);
  const Raw fraction = magnitude & ((Raw{1} << f.mantissa) - 1);
  const int exponent = static_cast<int>(magnitude >> f.mantissa);
  double value = 0;
  if (magnitude > infinity_of(f)) {
    value = NAN;
  } else if (magnitude == infinity_of(f)) {
    value = INFINITY;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(fraction), f.smallest_exponent - f.mantissa);
  } else {
    const double significand = static_cast<double>(fraction + (Raw{1} << f.mantissa));
    value = std::ldexp(significand, exponent - 1 + f.smallest_exponent - f.mantissa);
  }
  return sign != 0 ? -value : value;
}

// Round to nearest even, by counting in units of the last place.
inline Raw encode(Format f, double value) {
  if (std::isnan(value)) return infinity_of(f) | Raw{1} << (f.mantissa - 1);
  const Raw sign = std::signbit(value) ? Raw{1} << (f.size - 1) : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | infinity_of(f);
  const int exponent = std::max(std::ilogb(magnitude), f.smallest_exponent);
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent));
  // A carry out of the mantissa goes into the exponent, out of the greatest exponent into infinity.
  const Raw above = static_cast<Raw>(exponent - f.smallest_exponent) << f.mantissa;
  return sign | std::min(infinity_of(f), above + static_cast<Raw>(units));
}

template <class Float>
Float combine_floats(ReduceOp op, Float left, Float right) {
  switch (op) {
    case ReduceOp::product:
      return left * right;
    case ReduceOp::minimum:
    case ReduceOp::maximum: {
      if (std::isnan(left) || std::isnan(right)) return NAN;
      const bool less = left < right || (left == right && std::signbit(left));
      return less == (op == ReduceOp::minimum) ? left : right;
    }
    default:
      return left + right;
  }
}

template <class Int>
Int combine_integers(ReduceOp op, Int left, Int right) {
  __extension__ using Huge = __int128;
  switch (op) {
    case ReduceOp::product:
      return static_cast<Int>(static_cast<Huge>(left) * right);
    case ReduceOp::minimum:
      return std::min(left, right);
    case ReduceOp::maximum:
      return std::max(left, right);
    case ReduceOp::bit_and:
      return left & right;
    case ReduceOp::bit_or:
      return left | right;
    case ReduceOp::bit_xor:
      return left ^ right;
    default:
      return static_cast<Int>(static_cast<Huge>(left) + right);
  }
}

template <class Value, class Combine>
Value evaluate(samebits::Program program, const std::vector<Value>& leaves, Combine combine) {
  std::vector<Value> stack;
  for (const auto byte : program) {
    if (byte != samebits::combine) {
      stack.push_back(leaves.at(byte));
      continue;
    }
    const Value right = stack.back();
    stack.pop_back();
    stack.back() = combine(stack.back(), right);
  }
  return stack.at(0);
}

template <class Value, class Decode>
std::vector<Value> decode_all(const std::vector<Raw>& raws, Decode decode) {
  std::vector<Value> values;
  for (const Raw raw : raws) values.push_back(static_cast<Value>(decode(raw)));
  return values;
}

template <class Float, class Decode>
Float reduce_floats(const samebits::Reduction& r, const std::vector<Raw>& leaves, Decode decode) {
  const auto combine = [&](Float left, Float right) { return combine_floats(r.op, left, right); };
  const Float value = evaluate<Float>(r.program, decode_all<Float>(leaves, decode), combine);
  const auto factor = static_cast<Float>(r.factor);
  if (r.op == ReduceOp::average || r.scale == Scale::divide) return value / factor;
  return r.scale == Scale::multiply ? value * factor : value;
}

template <class Int>
Raw reduce_integers(const samebits::Reduction& r, const std::vector<Raw>& leaves) {
  const auto combine = [&](Int left, Int right) { return combine_integers(r.op, left, right); };
  Int value = evaluate<Int>(r.program, decode_all<Int>(leaves, [](Raw raw) { return raw; }), combine);
  if (r.op == ReduceOp::average) value = static_cast<Int>(value / static_cast<std::int64_t>(r.factor));
  return static_cast<std::make_unsigned_t<Int>>(value);
}

inline Raw reduce_small_floats(const samebits::Reduction& r, Format format, const std::vector<Raw>& leaves) {
  return encode(format, reduce_floats<float>(r, leaves, [&](Raw raw) { return decode(format, raw); }));
}

inline Raw reduce_booleans(const samebits::Reduction& r, const std::vector<Raw>& leaves) {
  const bool all = r.op == ReduceOp::product || r.op == ReduceOp::minimum || r.op == ReduceOp::bit_and;
  const auto combine = [&](bool left, bool right) {
    return r.op == ReduceOp::bit_xor ? left != right : all ? left && right : left || right;
  };
  std::vector<char> truths;
  for (const Raw raw : leaves) truths.push_back(raw != 0);
  return static_cast<Raw>(evaluate<char>(r.program, truths, combine));
}

// The bits that the result must have.
inline Raw reduce(const samebits::Reduction& r, const std::vector<Raw>& leaves) {
  const bool scaled = r.op == ReduceOp::average || (r.scale != Scale::none && r.dtype <= Dtype::bfloat16);
  if (leaves.size() == 1 && (!scaled || r.dtype == Dtype::boolean)) return leaves[0];
  switch (r.dtype) {
    case Dtype::float64: {
      const double value = reduce_floats<double>(r, leaves, [](Raw raw) { return std::bit_cast<double>(raw); });
      return std::isnan(value) ? Raw{0x7ff8} << 48 : std::bit_cast<Raw>(value);
    }
    case Dtype::float32: {
      const auto decode = [](Raw raw) { return std::bit_cast<float>(static_cast<std::uint32_t>(raw)); };
      const float value = reduce_floats<float>(r, leaves, decode);
      return std::isnan(value) ? 0x7fc00000 : std::bit_cast<std::uint32_t>(value);
    }
    case Dtype::float16:
      return reduce_small_floats(r, half, leaves);
    case Dtype::bfloat16:
      return reduce_small_floats(r, brain, leaves);
    case Dtype::int8:
      return reduce_integers<std::int8_t>(r, leaves);
    case Dtype::int16:
      return reduce_integers<std::int16_t>(r, leaves);
    case Dtype::int32:
      return reduce_integers<std::int32_t>(r, leaves);
    case Dtype::int64:
      return reduce_integers<std::int64_t>(r, leaves);
    case Dtype::uint8:
      return reduce_integers<std::uint8_t>(r, leaves);
    default:
      return reduce_booleans(r, leaves);
  }
}

}  // namespace reference
