// The vector math that torch calls in MKL (VML), computed by SLEEF's AVX2 functions, which torch exports by name.
//
// MKL chooses its functions by the processor and by its vendor, and no setting of MKL holds that on every vendor. This
// library is loaded before torch, so torch's calls come here. An element's result depends on nothing but the element.
#include <dlfcn.h>
#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "library.hpp"

namespace {

// A function of torch's library, which is loaded without being visible to others.
void* of_torch(const char* name) {
  static void* const torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  void* const found = torch != nullptr ? dlsym(torch, name) : nullptr;
  if (found == nullptr) samebits::portable::give_up("this torch does not export", name);
  return found;
}

// The registers of a type, and how memory gets into one and back.
struct Floats {
  static constexpr int width = 8;
  static __m256 load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, __m256 values) { _mm256_storeu_ps(to, values); }
};
struct Doubles {
  static constexpr int width = 4;
  static __m256d load(const double* from) { return _mm256_loadu_pd(from); }
  static void store(double* to, __m256d values) { _mm256_storeu_pd(to, values); }
};

template <class Registers, class Value, class Function>
void each_of(int count, const Value* from, Value* to, Function function) {
  constexpr int width = Registers::width;
  int at = 0;
  for (; at + width <= count; at += width) Registers::store(to + at, function(Registers::load(from + at)));
  if (at == count) return;
  // The rest gets the same instructions, so an element's bits do not depend on its place.
  std::array<Value, width> rest;
  rest.fill(Value(0.5));
  const auto left = sizeof(Value) * static_cast<std::size_t>(count - at);
  std::memcpy(rest.data(), from + at, left);
  Registers::store(rest.data(), function(Registers::load(rest.data())));
  std::memcpy(to + at, rest.data(), left);
}

template <class Function>
void each(int count, const float* from, float* to, Function function) {
  each_of<Floats>(count, from, to, function);
}

template <class Function>
void each(int count, const double* from, double* to, Function function) {
  each_of<Doubles>(count, from, to, function);
}

template <class Value, std::size_t Size>
Value polynomial(Value at, const std::array<Value, Size>& highest_first) {
  Value sum = 0;
  for (const Value coefficient : highest_first) sum = sum * at + coefficient;
  return sum;
}

// A rational start (the classical one with 4 + 4 and 4 + 2 coefficients, as in ATen's calc_erfinv), then two steps of
// Newton's method.
double inverse_erf(double y) {
  constexpr std::array<double, 4> a = {-0.140543331, 0.914624893, -1.645349621, 0.886226899};
  constexpr std::array<double, 5> b = {0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0};
  constexpr std::array<double, 4> c = {1.641345311, 3.429567803, -1.62490649, -1.970840454};
  constexpr std::array<double, 3> d = {1.637067800, 3.543889200, 1.0};
  const double size = std::fabs(y);
  if (!(size <= 1)) return std::numeric_limits<double>::quiet_NaN();
  if (size == 1) return std::copysign(std::numeric_limits<double>::infinity(), y);
  double x = 0;
  if (size <= 0.7) {
    const double square = y * y;
    x = y * polynomial(square, a) / polynomial(square, b);
  } else {
    const double root = std::sqrt(-std::log((1 - size) / 2));
    x = std::copysign(polynomial(root, c) / polynomial(root, d), y);
  }
  for (int step = 0; step < 2; ++step) x -= (std::erf(x) - y) / (2 * std::numbers::inv_sqrtpi * std::exp(-x * x));
  return x;
}

}  // namespace

// MKL's names: vms and vmd with a mode, which says how accurate MKL has to be; vs and vd without. MKL_INT is int in
// torch.
extern "C" {

#define SAMEBITS_SLEEF(NAME, SLEEF, ULP)                                                                              \
  void vms##NAME(int count, const float* from, float* to, long long) {                                                \
    static const auto function = reinterpret_cast<__m256 (*)(__m256)>(of_torch("Sleef_" #SLEEF "f8_" #ULP "avx2"));   \
    each(count, from, to, function);                                                                                  \
  }                                                                                                                   \
  void vmd##NAME(int count, const double* from, double* to, long long) {                                              \
    static const auto function = reinterpret_cast<__m256d (*)(__m256d)>(of_torch("Sleef_" #SLEEF "d4_" #ULP "avx2")); \
    each(count, from, to, function);                                                                                  \
  }

SAMEBITS_SLEEF(Acos, acos, u10)
SAMEBITS_SLEEF(Asin, asin, u10)
SAMEBITS_SLEEF(Atan, atan, u10)
SAMEBITS_SLEEF(Cos, cos, u10)
SAMEBITS_SLEEF(Erf, erf, u10)
SAMEBITS_SLEEF(Erfc, erfc, u15)
SAMEBITS_SLEEF(Exp, exp, u10)
SAMEBITS_SLEEF(Ln, log, u10)
SAMEBITS_SLEEF(Log10, log10, u10)
SAMEBITS_SLEEF(Log2, log2, u10)
SAMEBITS_SLEEF(Sin, sin, u10)
SAMEBITS_SLEEF(Tan, tan, u10)
SAMEBITS_SLEEF(Tanh, tanh, u10)

void vsLn(int count, const float* from, float* to) { vmsLn(count, from, to, 0); }
void vdLn(int count, const double* from, double* to) { vmdLn(count, from, to, 0); }

// IEEE 754 says what these are.
void vmsSqrt(int count, const float* from, float* to, long long) {
  each(count, from, to, [](__m256 x) { return _mm256_sqrt_ps(x); });
}
void vmdSqrt(int count, const double* from, double* to, long long) {
  each(count, from, to, [](__m256d x) { return _mm256_sqrt_pd(x); });
}
void vmsTrunc(int count, const float* from, float* to, long long) {
  each(count, from, to, [](__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); });
}
void vmdTrunc(int count, const double* from, double* to, long long) {
  each(count, from, to, [](__m256d x) { return _mm256_round_pd(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); });
}

void vmsErfInv(int count, const float* from, float* to, long long) {
  for (int at = 0; at < count; ++at) to[at] = static_cast<float>(inverse_erf(from[at]));
}
void vmdErfInv(int count, const double* from, double* to, long long) {
  for (int at = 0; at < count; ++at) to[at] = inverse_erf(from[at]);
}
}
