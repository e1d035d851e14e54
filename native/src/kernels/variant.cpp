// The loops of one variant. CMake compiles this source once per variant, with SAMEBITS_RUN and SAMEBITS_STREAM as the
// names of its two functions.
//
// Loops are plain C++ that the compiler turns into vector instructions. A program of one or two leaves is one such loop
// from the inputs to the outputs; a longer one works block by block, through a stack of blocks that fits the L1 cache.
#include "kernels/variant.hpp"

#include <cstring>

#include "kernels/elements.hpp"
#include "kernels/streaming.hpp"

// A loop may work on many elements at a time, as different ones do not touch each other: an output is no input, or
// exactly one.
#ifdef __clang__
#define SAMEBITS_EACH_ALONE _Pragma("clang loop vectorize(assume_safety)")
#else
#define SAMEBITS_EACH_ALONE _Pragma("GCC ivdep")
#endif

namespace {

using samebits::Dtype;
using samebits::ReduceOp;
using samebits::Scale;
using samebits::kernels::Run;
using samebits::kernels::Work;

constexpr size_t scratch_bytes = 24 * 1024;
constexpr size_t block_bytes = 4 * 1024;

template <class Element, class Source>
typename Element::Value load(Source source) {
  if constexpr (sizeof(Source) == sizeof(typename Element::Value)) {
    return source;
  } else {
    return Element::widen(source);
  }
}

// The loops are called and not inlined: that costs a nanosecond for each block, and saves a quarter of the compile.
template <class Element, class Op, class Value = typename Element::Value>
[[gnu::noinline]] void combine(const Value* left, const Value* right, Value* target, size_t count) {
  SAMEBITS_EACH_ALONE
  for (size_t i = 0; i < count; ++i) target[i] = Op::template apply<Element>(left[i], right[i]);
}

template <class Element, class Op, class Scaling, class Source>
typename Element::Value last_value(Source left, Source right, typename Element::Factor factor) {
  const auto value = Op::template apply<Element>(load<Element>(left), load<Element>(right));
  return Element::settle(Scaling::apply(value, factor));
}

template <class Element, class Op, class Scaling, class Source, class Stored = typename Element::Stored>
[[gnu::noinline]] void finish(const Source* left, const Source* right, typename Element::Factor factor, Stored* first,
                              Stored* second, size_t count) {
  if (first == second) {
    SAMEBITS_EACH_ALONE
    for (size_t i = 0; i < count; ++i)
      first[i] = Element::narrow(last_value<Element, Op, Scaling>(left[i], right[i], factor));
  } else {
    SAMEBITS_EACH_ALONE
    for (size_t i = 0; i < count; ++i) {
      const Stored result = Element::narrow(last_value<Element, Op, Scaling>(left[i], right[i], factor));
      first[i] = result;
      second[i] = result;
    }
  }
}

// One block's way through the program. Position p of the stack has block p of the scratch for what is not an input.
template <class Element, class Op, class Scaling>
class Machine {
  using Stored = typename Element::Stored;
  using Value = typename Element::Value;
  using Factor = typename Element::Factor;
  static constexpr bool same = sizeof(Stored) == sizeof(Value);

 public:
  explicit Machine(const Work& work) : work_(work), factor_(static_cast<Factor>(work.factor)) {
    size_t height = 0;
    size_t highest = 1;
    for (size_t i = 0; i < work.program_size; ++i) {
      height = work.program[i] == samebits::combine ? height - 1 : height + 1;
      if (height > highest) highest = height;
    }
    size_t bytes = scratch_bytes / highest / line_bytes * line_bytes;
    if (bytes > block_bytes) bytes = block_bytes;
    block_ = bytes / sizeof(Value);
  }

  void run() {
    const bool simple = work_.program_size <= 3 && work_.num_outputs <= 2 && !work_.stream;
    if (simple && Element::fused) return run_at_once();
    for (size_t begin = 0; begin < work_.count; begin += block_) {
      const size_t left = work_.count - begin;
      run_block(begin, left < block_ ? left : block_);
    }
    if (work_.stream) end_stream();
  }

 private:
  const Stored* input(size_t leaf) const { return static_cast<const Stored*>(work_.inputs[leaf]); }
  Stored* output(size_t index) const { return static_cast<Stored*>(work_.outputs[index]); }

  void run_at_once() {
    const Stored* left = input(work_.program[0]);
    const Stored* right = work_.program_size == 1 ? left : input(work_.program[1]);
    finish<Element, Op, Scaling>(left, right, factor_, output(0), output(work_.num_outputs - 1), work_.count);
  }

  void run_block(size_t begin, size_t count) {
    const Value* stack[256];
    size_t height = 0;
    for (size_t i = 0; i + 1 < work_.program_size; ++i) {
      if (work_.program[i] != samebits::combine) {
        stack[height] = push(height, input(work_.program[i]) + begin, count);
        ++height;
      } else {
        height -= 1;
        Value* target = scratch_ + (height - 1) * block_;
        combine<Element, Op>(stack[height - 1], stack[height], target, count);
        stack[height - 1] = target;
      }
    }
    if (work_.program_size == 1) stack[0] = stack[1] = push(0, input(work_.program[0]) + begin, count);
    write(stack[0], stack[1], begin, count);
  }

  const Value* push(size_t position, const Stored* source, size_t count) {
    if constexpr (same) {
      return source;
    } else {
      Value* target = scratch_ + position * block_;
      if constexpr (Element::fused) {
        for (size_t i = 0; i < count; ++i) target[i] = Element::widen(source[i]);
      } else {
        Element::widen_block(source, target, count);
      }
      return target;
    }
  }

  void write(const Value* left, const Value* right, size_t begin, size_t count) {
    if (work_.stream) {
      finish_block(left, right, finished_, finished_, count);
      for (size_t k = 0; k < work_.num_outputs; ++k) send(output(k) + begin, count);
      return;
    }
    Stored* first = output(0) + begin;
    finish_block(left, right, first, output(work_.num_outputs > 1) + begin, count);
    for (size_t k = 2; k < work_.num_outputs; ++k) {
      Stored* other = output(k) + begin;
      if (other != first) std::memcpy(other, first, count * sizeof(Stored));
    }
  }

  void finish_block(const Value* left, const Value* right, Stored* first, Stored* second, size_t count) {
    if constexpr (Element::fused) {
      finish<Element, Op, Scaling>(left, right, factor_, first, second, count);
    } else {
      SAMEBITS_EACH_ALONE
      for (size_t i = 0; i < count; ++i) scratch_[i] = last_value<Element, Op, Scaling>(left[i], right[i], factor_);
      Element::narrow_block(scratch_, first, count);
      if (second != first) std::memcpy(second, first, count * sizeof(Stored));
    }
  }

  void send(Stored* target, size_t count) const {
    if (is_line_aligned(target)) {
      stream_lines(target, finished_, count * sizeof(Stored));
    } else {
      std::memcpy(target, finished_, count * sizeof(Stored));
    }
  }

  const Work& work_;
  Factor factor_;
  size_t block_;
  alignas(line_bytes) Value scratch_[scratch_bytes / sizeof(Value)];
  alignas(line_bytes) Stored finished_[block_bytes / sizeof(Value)];  // a block on its way past the caches
};

template <class Element, class Op, class Scaling>
void run_program(const Work& work) {
  Machine<Element, Op, Scaling>(work).run();
}

template <class Element, class Scaling>
Run choose_op(const Work& work) {
  if (work.program_size == 1) return run_program<Element, Only, Scaling>;
  switch (work.op) {
    case ReduceOp::minimum:
      return run_program<Element, Minimum, Scaling>;
    case ReduceOp::maximum:
      return run_program<Element, Maximum, Scaling>;
    case ReduceOp::product:
      return run_program<Element, Product, Scaling>;
    default:
      return run_program<Element, Sum, Scaling>;
  }
}

template <class Element>
Run choose_float(const Work& work) {
  return work.scale == Scale::divide ? choose_op<Element, Divide>(work) : choose_op<Element, Multiply>(work);
}

template <class Element>
Run choose_bits(const Work& work) {
  if (work.program_size == 1) return run_program<Element, Only, Keep>;
  switch (work.op) {
    case ReduceOp::bit_and:
      return run_program<Element, BitAnd, Keep>;
    case ReduceOp::bit_or:
      return run_program<Element, BitOr, Keep>;
    case ReduceOp::bit_xor:
      return run_program<Element, BitXor, Keep>;
    default:
      return choose_op<Element, Keep>(work);
  }
}

// Only an average divides integers.
template <class Element>
Run choose_integer(const Work& work) {
  if (work.scale == Scale::none) return choose_bits<Element>(work);
  return work.program_size == 1 ? run_program<Element, Only, Divide> : run_program<Element, Sum, Divide>;
}

Run choose(const Work& work) {
  switch (work.dtype) {
    case Dtype::float64:
      return choose_float<Float64>(work);
    case Dtype::float32:
      return choose_float<Float32>(work);
    case Dtype::float16:
      return choose_float<Float16>(work);
    case Dtype::bfloat16:
      return choose_float<BFloat16>(work);
    case Dtype::int8:
      return choose_integer<Int8>(work);
    case Dtype::int16:
      return choose_integer<Int16>(work);
    case Dtype::int32:
      return choose_integer<Int32>(work);
    case Dtype::int64:
      return choose_integer<Int64>(work);
    case Dtype::uint8:
      return choose_integer<UInt8>(work);
    default:
      return choose_bits<Boolean>(work);
  }
}

}  // namespace

void samebits::kernels::SAMEBITS_RUN(const Work& work) { choose(work)(work); }

void samebits::kernels::SAMEBITS_STREAM(void* target, const void* source, std::size_t bytes) {
  const size_t before = (line_bytes - reinterpret_cast<std::uintptr_t>(target) % line_bytes) % line_bytes;
  const size_t head = before < bytes ? before : bytes;
  if (head != 0) std::memcpy(target, source, head);
  stream_lines(static_cast<std::byte*>(target) + head, static_cast<const std::byte*>(source) + head, bytes - head);
  end_stream();
}
