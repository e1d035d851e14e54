// Which variant runs: decided once, from the processor.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "kernels/kernels.hpp"
#include "kernels/variant.hpp"
#include "tuning.hpp"

#ifdef SAMEBITS_X86_VARIANTS
#include <cpuid.h>
#endif

namespace samebits {

namespace {

constexpr std::array<std::string_view, 3> names = {"portable", "avx2", "avx512"};
#ifdef SAMEBITS_X86_VARIANTS
constexpr std::array<kernels::Run, 3> runs = {kernels::run_portable, kernels::run_avx2, kernels::run_avx512};
constexpr std::array<kernels::Stream, 3> streams = {kernels::stream_portable, kernels::stream_avx2,
                                                    kernels::stream_avx512};
#else
constexpr std::array<kernels::Run, 1> runs = {kernels::run_portable};
constexpr std::array<kernels::Stream, 1> streams = {kernels::stream_portable};
#endif

// Arrays that together exceed this will not be found in the caches again, so their results go past them.
std::atomic<std::size_t> streamed_from_bytes = Tuning().streamed_from_bytes;

#ifdef SAMEBITS_X86_VARIANTS
// Which registers the system keeps for a process while another one runs; a bit for each kind.
unsigned kept_registers() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}
#endif

// Each asks for what CMake compiles its variant for. __builtin_cpu_supports would do, but not in the wheels: zig, which
// compiles them, has its table but nothing that fills it in.
std::size_t count_supported() {
#ifdef SAMEBITS_X86_VARIANTS
  // Bits of ecx in leaf 1; of ebx in leaf 7, for AVX512 F, DQ, BW and VL; of the kept registers.
  constexpr unsigned osxsave = 1u << 27, f16c = 1u << 29;
  constexpr unsigned avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  constexpr unsigned kept_avx = 0x06, kept_avx512 = 0xe6;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & osxsave) == 0 || (c & f16c) == 0) return 1;
  const unsigned kept = kept_registers();
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & avx2) == 0 || (kept & kept_avx) != kept_avx) return 1;
  return (b & avx512) == avx512 && (kept & kept_avx512) == kept_avx512 ? 3 : 2;
#else
  return 1;
#endif
}

std::size_t num_supported() {
  static const std::size_t count = count_supported();
  return count;
}

std::atomic<std::size_t>& chosen() {
  static std::atomic<std::size_t> index = num_supported() - 1;
  return index;
}

Scale scale_of(const Reduction& reduction) {
  if (reduction.dtype == Dtype::boolean) return Scale::none;
  if (reduction.op == ReduceOp::average) return Scale::divide;
  const bool is_floating = reduction.dtype <= Dtype::bfloat16;
  return is_floating ? reduction.scale : Scale::none;
}

// An output that is an input has its lines in the caches already: there is no read to save.
bool is_streamed(std::span<const void* const> inputs, std::span<void* const> outputs, std::size_t bytes) {
  if ((inputs.size() + outputs.size()) * bytes < streamed_from_bytes.load(std::memory_order_relaxed)) return false;
  return std::find_first_of(outputs.begin(), outputs.end(), inputs.begin(), inputs.end()) == outputs.end();
}

}  // namespace

void reduce(const Reduction& reduction, std::span<const void* const> inputs, std::span<void* const> outputs,
            std::size_t count) {
  if (count == 0 || outputs.empty()) return;
  const bool average = reduction.op == ReduceOp::average;
  const Scale scale = scale_of(reduction);
  const std::size_t bytes = count * size_of(reduction.dtype);
  if (reduction.program.size() == 1 && scale == Scale::none) {
    const void* source = inputs[reduction.program[0]];
    for (void* target : outputs) {
      if (target != source) copy(target, source, bytes);
    }
    return;
  }
  runs[chosen().load(std::memory_order_relaxed)](kernels::Work{
      .dtype = reduction.dtype,
      .op = average ? ReduceOp::sum : reduction.op,
      .scale = scale,
      .factor = scale == Scale::none ? 1.0 : reduction.factor,
      .program = reduction.program.data(),
      .program_size = reduction.program.size(),
      .inputs = inputs.data(),
      .outputs = outputs.data(),
      .num_outputs = outputs.size(),
      .count = count,
      .stream = is_streamed(inputs, outputs, bytes),
  });
}

void copy(void* target, const void* source, std::size_t bytes, std::size_t whole) {
  if (2 * std::max(bytes, whole) >= streamed_from_bytes.load(std::memory_order_relaxed)) {
    streams[chosen().load(std::memory_order_relaxed)](target, source, bytes);
  } else if (bytes != 0) {
    std::memcpy(target, source, bytes);
  }
}

void stream_from(std::size_t bytes) { streamed_from_bytes.store(bytes, std::memory_order_relaxed); }

std::span<const std::string_view> variants() { return std::span(names).first(num_supported()); }

std::string_view variant() { return names[chosen().load(std::memory_order_relaxed)]; }

bool choose_variant(std::string_view name) {
  for (std::size_t i = 0; i < num_supported(); ++i) {
    if (names[i] != name) continue;
    chosen().store(i, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace samebits
