// How each dtype lies in memory, in which type it is combined, and how it is converted; the operations on one element.
//
// Only for variant.cpp, which is compiled once per variant: everything is in an anonymous namespace, so that no two
// variants share a function. Everything is branch-free, so loops over it become vector instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace {

using std::int16_t, std::int32_t, std::int64_t, std::int8_t, std::size_t, std::uint16_t, std::uint32_t, std::uint64_t,
    std::uint8_t;

// Whatever NaNs went in, and whatever the processor makes of them, one NaN comes out: positive, quiet, without payload.
// (x86 keeps the payload of the first operand, and compilers may swap operands; ARM makes a positive NaN of inf - inf,
// x86 a negative one.)
template <class Value>
Value canonical(Value value) {
  return value != value ? static_cast<Value>(__builtin_nanf("")) : value;
}

// IEEE 754-2019 minimum and maximum: NaN wins, and -0.0 is less than +0.0.
template <class Value, class Bits>
Value float_minimum(Value left, Value right) {
  const Value lesser = left < right ? left : right;  // `right` if one is NaN
  const Bits either = __builtin_bit_cast(Bits, left) | __builtin_bit_cast(Bits, right);
  const Value strict = left == right ? __builtin_bit_cast(Value, either) : lesser;
  return left != left ? left : strict;
}

template <class Value, class Bits>
Value float_maximum(Value left, Value right) {
  const Value greater = left > right ? left : right;
  const Bits both = __builtin_bit_cast(Bits, left) & __builtin_bit_cast(Bits, right);
  const Value strict = left == right ? __builtin_bit_cast(Value, both) : greater;
  return left != left ? left : strict;
}

// In bits, because gcc turns some `?:` into branches and then does not vectorise the loop.
inline uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

template <class FloatType, class BitsType>
struct Floating {
  using Stored = FloatType;
  using Value = FloatType;
  using Factor = FloatType;
  static constexpr bool fused = true;
  static Value widen(Stored stored) { return stored; }
  static Stored narrow(Value value) { return value; }
  static Value settle(Value value) { return canonical(value); }
  static Value sum(Value left, Value right) { return left + right; }
  static Value product(Value left, Value right) { return left * right; }
  static Value minimum(Value left, Value right) { return float_minimum<Value, BitsType>(left, right); }
  static Value maximum(Value left, Value right) { return float_maximum<Value, BitsType>(left, right); }
};

using Float64 = Floating<double, uint64_t>;
using Float32 = Floating<float, uint32_t>;

// `fused`: one loop loads, converts, combines and stores. Otherwise blocks are converted: with instructions that
// compilers do not use on their own, or because the whole is too long for them to vectorise.
struct BFloat16 : Float32 {
  using Stored = uint16_t;
  static Value widen(Stored stored) { return __builtin_bit_cast(float, static_cast<uint32_t>(stored) << 16); }
  // Rounds to nearest even; infinity stays, and a canonical NaN has nothing to round.
  static Stored narrow(Value value) {
    const auto bits = __builtin_bit_cast(uint32_t, value);
    return static_cast<Stored>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

struct Float16 : Float32 {
  using Stored = uint16_t;

  static constexpr bool fused = false;

  static Value widen(Stored stored) {
    constexpr uint32_t exponent = 0x7c00u << 13;
    constexpr float smallest_normal = 0x1p-14f;
    const uint32_t magnitude = (stored & 0x7fffu) << 13;
    const uint32_t rebased = magnitude + ((127u - 15u) << 23);
    const uint32_t special = rebased + ((128u - 16u) << 23);  // infinity and NaN
    // A subnormal is read as if it had a leading one, which is then taken away.
    const float subnormal = __builtin_bit_cast(float, rebased + (1u << 23)) - smallest_normal;
    const uint32_t normal = select((magnitude & exponent) == exponent, special, rebased);
    const uint32_t bits = select((magnitude & exponent) == 0, __builtin_bit_cast(uint32_t, subnormal), normal);
    return __builtin_bit_cast(float, bits | (stored & 0x8000u) << 16);
  }

  // Rounds to nearest even. `value` is no NaN other than the canonical one.
  static Stored narrow(Value value) {
    constexpr float half = 0.5f;  // the last bit of its mantissa is worth as much as that of a subnormal float16
    const auto all = __builtin_bit_cast(uint32_t, value);
    const uint32_t sign = all & 0x80000000u;
    const uint32_t magnitude = all ^ sign;
    const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t subnormal =
        __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + half) - __builtin_bit_cast(uint32_t, half);
    const uint32_t special = select(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);
    const uint32_t finite = select(magnitude < ((127u - 14u) << 23), subnormal, normal);
    const uint32_t bits = select(magnitude >= ((127u + 16u) << 23), special, finite);
    return static_cast<Stored>(bits | sign >> 16);
  }

  static void widen_block(const Stored* source, Value* target, size_t count) {
    size_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8) {
      const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
      _mm256_storeu_ps(target + i, _mm256_cvtph_ps(stored));
    }
#endif
    for (; i < count; ++i) target[i] = widen(source[i]);
  }

  static void narrow_block(const Value* source, Stored* target, size_t count) {
    size_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8) {
      const __m128i stored = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), stored);
    }
#endif
    for (; i < count; ++i) target[i] = narrow(source[i]);
  }
};

// Sums and products wrap around: they are computed in `Wide`, an unsigned type that is not promoted to int.
template <class IntegerType, class Wide>
struct Integer {
  using Stored = IntegerType;
  using Value = IntegerType;
  using Factor = int64_t;
  static constexpr bool fused = true;
  static Value widen(Stored stored) { return stored; }
  static Stored narrow(Value value) { return value; }
  static Value settle(Value value) { return value; }
  static Value sum(Value left, Value right) {
    return static_cast<Value>(static_cast<Wide>(left) + static_cast<Wide>(right));
  }
  static Value product(Value left, Value right) {
    return static_cast<Value>(static_cast<Wide>(left) * static_cast<Wide>(right));
  }
  static Value minimum(Value left, Value right) { return left < right ? left : right; }
  static Value maximum(Value left, Value right) { return left > right ? left : right; }
  static Value bit_and(Value left, Value right) { return static_cast<Value>(left & right); }
  static Value bit_or(Value left, Value right) { return static_cast<Value>(left | right); }
  static Value bit_xor(Value left, Value right) { return static_cast<Value>(left ^ right); }
};

using Int8 = Integer<int8_t, uint32_t>;
using Int16 = Integer<int16_t, uint32_t>;
using Int32 = Integer<int32_t, uint32_t>;
using Int64 = Integer<int64_t, uint64_t>;
using UInt8 = Integer<uint8_t, uint32_t>;

// Any byte but 0 is true; what is combined is 0 or 1.
struct Boolean : UInt8 {
  static Value settle(Value value) { return value != 0; }
  static Value sum(Value left, Value right) { return left | right; }
  static Value product(Value left, Value right) { return static_cast<Value>((left != 0) & (right != 0)); }
  static Value minimum(Value left, Value right) { return product(left, right); }
  static Value maximum(Value left, Value right) { return sum(left, right); }
  static Value bit_and(Value left, Value right) { return product(left, right); }
  static Value bit_or(Value left, Value right) { return sum(left, right); }
  static Value bit_xor(Value left, Value right) { return static_cast<Value>((left != 0) ^ (right != 0)); }
};

// The operations, by name, for templates. `Only` is that of a program with a single leaf.
struct Sum {
  template <class Element>
  static auto apply(typename Element::Value left, typename Element::Value right) {
    return Element::sum(left, right);
  }
};
struct Product {
  template <class Element>
  static auto apply(typename Element::Value left, typename Element::Value right) {
    return Element::product(left, right);
  }
};
struct Minimum {
  template <class Element>
  static auto apply(typename Element::Value left, typename Element::Value right) {
    return Element::minimum(left, right);
  }
};
struct Maximum {
  template <class Element>
  static auto apply(typename Element::Value left, typename Element::Value right) {
    return Element::maximum(left, right);
  }
};
struct BitAnd {
  template <class Element>
  static auto apply(typename Element::Value left, typename Element::Value right) {
    return Element::bit_and(left, right);
  }
};
struct BitOr {
  template <class Element>
  static auto apply(typename Element::Value left, typename Element::Value right) {
    return Element::bit_or(left, right);
  }
};
struct BitXor {
  template <class Element>
  static auto apply(typename Element::Value left, typename Element::Value right) {
    return Element::bit_xor(left, right);
  }
};
struct Only {
  template <class Element>
  static auto apply(typename Element::Value left, typename Element::Value /*the same*/) {
    return left;
  }
};

// The scales. Floating point has no `Keep`: to multiply by 1 changes no bit and costs nothing.
struct Keep {
  template <class Value, class Factor>
  static Value apply(Value value, Factor /*none*/) {
    return value;
  }
};
struct Multiply {
  template <class Value, class Factor>
  static Value apply(Value value, Factor factor) {
    return value * factor;
  }
};
struct Divide {
  template <class Value, class Factor>
  static Value apply(Value value, Factor factor) {
    return static_cast<Value>(value / factor);
  }
};

}  // namespace
