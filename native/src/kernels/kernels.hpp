// Element-wise reductions of several arrays into several arrays, with the same bits in every variant.
//
// A variant is the same source compiled for a set of instructions (kernels/variant.cpp); which one runs is decided
// once, from the processor. Elements are combined one by one in the order that a Program says, so neither the width of
// the registers nor the number of ranks moves a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace samebits {

// The values are part of what ranks compare and of what Python passes: never renumber.
enum class Dtype : std::uint8_t { float64, float32, float16, bfloat16, int8, int16, int32, int64, uint8, boolean };
enum class ReduceOp : std::uint8_t { sum, average, minimum, maximum, product, bit_and, bit_or, bit_xor };

std::size_t size_of(Dtype dtype);
std::string_view name_of(Dtype dtype);
std::string_view name_of(ReduceOp op);

// What happens to the combined value, once, before it is rounded to the dtype.
enum class Scale : std::uint8_t { none, multiply, divide };

// In which order leaves are combined, in postfix: a byte below 255 puts that leaf on the stack, `combine` replaces the
// two on top by left (op) right. At most 255 leaves. One leaf alone is a copy.
constexpr std::uint8_t combine = 255;
using Program = std::span<const std::uint8_t>;

// Whether `program` is well formed for `num_leaves` leaves: leaves one value and uses every leaf exactly once.
bool is_valid(Program program, std::size_t num_leaves);

struct Reduction {
  Dtype dtype;
  ReduceOp op;      // average is sum, then divide by `factor`, whatever `scale` says; of booleans it is sum alone
  Program program;  // is_valid for the number of inputs
  Scale scale = Scale::none;  // floating point only; integers and booleans ignore it
  double factor = 1.0;        // rounded to the type of the arithmetic; for the average of integers a whole number > 0
};

// Combine `count` elements of the `inputs` and write the result to every one of `outputs`.
//
// - float16 and bfloat16 are combined and scaled in float32 and rounded once (to nearest even).
// - NaN wins in minimum and maximum, where -0.0 is less than +0.0 (IEEE 754-2019), in whatever order they come.
// - A result that is NaN is the positive quiet NaN without payload (float32: 7fc00000): processors and compilers differ
//   in which payload and sign they keep. Only a single leaf without scale is copied with every bit.
// - Integers wrap around; their average is the wrapped sum, divided and rounded towards zero.
// - Booleans: sum and maximum are "or", product and minimum are "and". Any byte but 0 is true, the result is 0 or 1.
// - Only integers and booleans have bitwise operations.
//
// An output may be one of the inputs (the same address) but may not overlap one otherwise. Any alignment of at least
// the dtype's; of a cache line is faster. When all arrays together are large (`stream_from`, 32 MiB) and no output is
// an input, the outputs are written past the caches.
void reduce(const Reduction& reduction, std::span<const void* const> inputs, std::span<void* const> outputs,
            std::size_t count);

// A copy, a part of one of `whole` bytes. It does not displace what is in the caches when that is large (half of
// `stream_from`); else memcpy.
void copy(void* target, const void* source, std::size_t bytes, std::size_t whole = 0);

// From how many bytes of all arrays together results go past the caches, for this process from now on.
void stream_from(std::size_t bytes);

// The variants that this processor can run, the best last ("portable", "avx2", "avx512"); and which one runs.
std::span<const std::string_view> variants();
std::string_view variant();
// For tests: run this one from now on. False when the processor cannot.
bool choose_variant(std::string_view name);

}  // namespace samebits
