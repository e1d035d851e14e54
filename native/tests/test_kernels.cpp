// The kernels, in every variant of this processor, against the reference, bit for bit.
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "kernels_arrays.hpp"
#include "kernels_reference.hpp"

using namespace samebits;
using arrays::Array, arrays::Arrays, arrays::random_arrays, arrays::random_below, arrays::random_bits;
using reference::Raw;

namespace {

int num_failures = 0;

#define CHECK(condition, text)                                                                   \
  do {                                                                                           \
    if (!(condition) && ++num_failures <= 20)                                                    \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, std::string(text).c_str()); \
  } while (false)

constexpr Dtype dtypes[] = {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::bfloat16, Dtype::int8,
                            Dtype::int16,   Dtype::int32,   Dtype::int64,   Dtype::uint8,    Dtype::boolean};
constexpr ReduceOp ops[] = {ReduceOp::sum,     ReduceOp::average, ReduceOp::minimum, ReduceOp::maximum,
                            ReduceOp::product, ReduceOp::bit_and, ReduceOp::bit_or,  ReduceOp::bit_xor};
std::span<const ReduceOp> ops_of(Dtype dtype) {
  return std::span(ops).first(dtype <= Dtype::bfloat16 ? 5 : std::size(ops));  // floating point has no bits to combine
}
constexpr std::uint8_t of_two[] = {0, 1, combine};

std::string describe(const Reduction& r) {
  std::ostringstream text;
  text << variant() << ' ' << name_of(r.dtype) << ' ' << name_of(r.op) << " scale " << static_cast<int>(r.scale);
  for (const auto byte : r.program) text << ' ' << (byte == combine ? "op" : std::to_string(byte));
  return text.str();
}

std::vector<Raw> expected_results(const Reduction& r, const Arrays& inputs) {
  std::vector<Raw> results;
  for (std::size_t i = 0; i < inputs[0]->count(); ++i) {
    std::vector<Raw> leaves;
    for (const auto& input : inputs) leaves.push_back(input->get(i));
    results.push_back(reference::reduce(r, leaves));
  }
  return results;
}

// Reduce copies of `inputs`; `num_aliases` of the outputs are inputs themselves.
void check_once(const Reduction& r, const Arrays& inputs, const std::vector<Raw>& expected, std::size_t num_outputs,
                std::size_t num_aliases) {
  std::vector<Array> arrays;
  for (const auto& input : inputs) arrays.push_back(*input);
  const std::size_t count = expected.size();
  for (std::size_t k = num_aliases; k < num_outputs; ++k) arrays.emplace_back(r.dtype, count);
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (std::size_t k = 0; k < inputs.size(); ++k) sources.push_back(arrays[k].data());
  const std::size_t first = inputs.size() - num_aliases;  // the last inputs are outputs too
  for (std::size_t k = 0; k < num_outputs; ++k) targets.push_back(arrays[first + k].data());
  reduce(r, sources, targets, count);
  const std::string what = " outputs " + std::to_string(num_outputs) + " aliases " + std::to_string(num_aliases);
  for (std::size_t k = 0; k < arrays.size(); ++k) {
    CHECK(arrays[k].guards_stand(), describe(r) + what);
    const bool is_output = k >= first && k < first + num_outputs;
    for (std::size_t i = 0; i < count; ++i) {
      const Raw right = is_output ? expected[i] : inputs[k]->get(i);
      if (arrays[k].get(i) == right) continue;
      char text[100];
      std::snprintf(text, sizeof text, ": array %zu element %zu of %zu is %llx, not %llx", k, i, count,
                    static_cast<unsigned long long>(arrays[k].get(i)), static_cast<unsigned long long>(right));
      CHECK(false, describe(r) + what + text);
      return;
    }
  }
}

void for_each_variant(const std::function<void()>& action) {
  for (const auto name : variants()) {
    CHECK(choose_variant(name) && variant() == name, name);
    action();
  }
}

void check(const Reduction& r, std::size_t count) {
  const std::size_t num_leaves = (r.program.size() + 1) / 2;
  CHECK(is_valid(r.program, num_leaves), describe(r));
  const auto inputs = random_arrays(r.dtype, num_leaves, count);
  const auto expected = expected_results(r, inputs);
  for_each_variant([&] {
    check_once(r, inputs, expected, 1, 0);
    check_once(r, inputs, expected, 1 + random_below(4), 0);
    const std::size_t num_aliases = 1 + random_below(std::min<std::size_t>(num_leaves, 4));
    check_once(r, inputs, expected, num_aliases + random_below(2), num_aliases);
  });
}

void two_inputs_of_every_size_are_right() {
  for (const auto dtype : dtypes) {
    for (const auto op : ops_of(dtype)) {
      for (std::size_t count = 0; count <= 70; ++count) check({dtype, op, of_two, Scale::none, 3.0}, count);
      for (const std::size_t count : {1000, 4097}) check({dtype, op, of_two, Scale::none, 3.0}, count);
      for (const auto scale : {Scale::multiply, Scale::divide}) {
        if (op == ReduceOp::average) continue;  // which says itself that it divides
        for (const std::size_t count : {1, 17, 1000}) check({dtype, op, of_two, scale, 0.3}, count);
      }
    }
  }
}

void append_tree(std::vector<std::uint8_t>& program, std::span<const std::uint8_t> leaves) {
  if (leaves.size() == 1) return program.push_back(leaves[0]);
  const std::size_t cut = 1 + random_below(leaves.size() - 1);
  append_tree(program, leaves.first(cut));
  append_tree(program, leaves.subspan(cut));
  program.push_back(combine);
}

void trees_of_any_shape_are_right() {
  for (std::size_t num_leaves = 1; num_leaves <= 16; ++num_leaves) {
    for (const auto dtype : dtypes) {
      for (const auto op : ops_of(dtype)) {
        std::vector<std::uint8_t> leaves(num_leaves);
        for (std::size_t k = 0; k < num_leaves; ++k) leaves[k] = static_cast<std::uint8_t>(k);
        std::shuffle(leaves.begin(), leaves.end(), random_bits);
        std::vector<std::uint8_t> program;
        append_tree(program, leaves);
        const auto scale = op == ReduceOp::average ? Scale::none : static_cast<Scale>(random_below(3));
        check({dtype, op, program, scale, 7.0}, random_below(200));
        check({dtype, op, program, scale, 7.0}, 2000 + random_below(300));  // several blocks
      }
    }
  }
}

void the_longest_programs_are_right() {
  std::vector<std::uint8_t> left = {0}, right = {0}, flat;
  for (std::uint8_t k = 1; k < 255; ++k) {
    left.insert(left.end(), {k, combine});
    right.push_back(k);
  }
  right.insert(right.end(), 254, combine);
  for (std::uint8_t k = 0; k < 254; k = static_cast<std::uint8_t>(k + 2))
    flat.insert(flat.end(), {k, static_cast<std::uint8_t>(k + 1), combine});
  flat.push_back(254);
  flat.insert(flat.end(), 127, combine);
  for (const auto& program : {left, right, flat}) {
    for (const auto dtype : {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::int8})
      check({dtype, ReduceOp::sum, program}, 301);
  }
}

void every_small_float_is_converted_right() {
  constexpr std::uint8_t alone[] = {0};
  for (const auto dtype : {Dtype::float16, Dtype::bfloat16}) {
    Arrays inputs;
    inputs.push_back(std::make_unique<Array>(dtype, 65536));
    for (std::size_t i = 0; i < 65536; ++i) inputs[0]->set(i, i);
    for (const double factor : {1.0, 0.5, 1.0 / 3.0, 3.0, 0x1p-10, 0x1.8p-13, 0x1.004p-12, 0x1.fep15, 0x1p-140, 0.0}) {
      const Reduction r = {dtype, ReduceOp::sum, alone, Scale::multiply, factor};
      const auto expected = expected_results(r, inputs);
      for_each_variant([&] { check_once(r, inputs, expected, 2, 1); });
    }
  }
}

// Only large arrays go past the caches; outputs that begin in the middle of a line go another way.
void large_outputs_are_right() {
  constexpr std::uint8_t program[] = {0, 1, combine, 2, combine};
  for (const auto dtype : {Dtype::float32, Dtype::float16, Dtype::boolean}) {
    const std::size_t count = (std::size_t{8} << 20) / size_of(dtype) + 33;
    std::vector<unsigned char> memory[3], large[2], small(count * size_of(dtype));
    for (auto& bytes : memory) {
      bytes.resize(count * size_of(dtype));
      for (auto& byte : bytes) byte = static_cast<unsigned char>(random_bits());
    }
    const void* const inputs[] = {memory[0].data(), memory[1].data(), memory[2].data()};
    for_each_variant([&] {
      for (auto& bytes : large) bytes.assign(count * size_of(dtype) + 192, 0xa5);
      const auto misaligned = reinterpret_cast<std::uintptr_t>(large[0].data()) % 64;
      void* const outputs[] = {large[0].data() + (128 - misaligned), large[1].data() + 4};
      const Reduction r = {dtype, ReduceOp::sum, program};
      reduce(r, inputs, outputs, count);
      for (std::size_t begin = 0; begin < count; begin += 100'000) {
        const std::size_t skip = begin * size_of(dtype), some = std::min<std::size_t>(100'000, count - begin);
        const void* const parts[] = {memory[0].data() + skip, memory[1].data() + skip, memory[2].data() + skip};
        void* const target[] = {small.data() + skip};
        reduce(r, parts, target, some);
      }
      for (void* const output : outputs) {
        const auto* bytes = static_cast<const unsigned char*>(output);
        CHECK(std::memcmp(bytes, small.data(), small.size()) == 0, describe(r));
        CHECK(bytes[-1] == 0xa5 && bytes[small.size()] == 0xa5, describe(r));
      }
    });
  }
}

void one_leaf_alone_keeps_every_bit() {
  constexpr std::uint8_t alone[] = {0};
  for (const auto dtype : dtypes) {
    for (const auto op : {ReduceOp::sum, ReduceOp::maximum}) check({dtype, op, alone}, 4097);
  }
}

// Without a reference, so that many random bit patterns can take part.
void variants_agree_on_random_bits() {
  constexpr std::size_t count = 200'003;
  constexpr std::uint8_t program[] = {2, 0, combine, 1, 3, combine, combine};
  std::vector<std::uint64_t> memory[4];
  for (auto& words : memory) {
    words.resize(count);
    for (auto& word : words) word = random_bits();
  }
  for (const auto dtype : dtypes) {
    for (const auto op : ops_of(dtype)) {
      for (const Program p : {Program(program), Program(of_two)}) {
        const void* const inputs[] = {memory[0].data(), memory[1].data(), memory[2].data(), memory[3].data()};
        std::vector<unsigned char> results[3];
        std::size_t which = 0;
        const Reduction r = {dtype, op, p, op == ReduceOp::product ? Scale::multiply : Scale::none, 5.0};
        for_each_variant([&] {
          results[which].resize(count * size_of(dtype));
          void* const outputs[] = {results[which].data()};
          reduce(r, inputs, outputs, count);
          CHECK(results[which] == results[0], describe(r));
          ++which;
        });
      }
    }
  }
}

// As torch.set_flush_denormal(True) sets the processor.
void variants_agree_when_subnormals_are_flushed() {
#ifdef __SSE2__
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  variants_agree_on_random_bits();
  _mm_setcsr(before);
#endif
}

void wrong_programs_are_found() {
  const auto valid = [](std::vector<std::uint8_t> program, std::size_t n) { return is_valid(program, n); };
  CHECK(valid({0}, 1) && valid({1, 0, combine}, 2) && valid({0, 1, 2, combine, combine}, 3), "right ones");
  CHECK(!valid({}, 0) && !valid({}, 1) && !valid({combine}, 1), "empty");
  CHECK(!valid({1}, 1) && !valid({0, 2, combine}, 2), "a leaf that is not there");
  CHECK(!valid({0, 0, combine}, 2), "a leaf twice");
  CHECK(!valid({0, 1, combine}, 3) && !valid({0, 1, combine}, 1), "too many or too few leaves");
  CHECK(!valid({0, 1}, 2) && !valid({0, 1, 2}, 2), "two values left");
  CHECK(!valid({0, combine, 1}, 2) && !valid({combine, 0, 1}, 2), "nothing to combine");
  CHECK(!valid(std::vector<std::uint8_t>(511, 0), 256), "more leaves than have numbers");
}

void copies_are_whole() {
  std::vector<unsigned char> memory((33u << 20) + 128);
  for (auto& byte : memory) byte = static_cast<unsigned char>(random_bits());
  for (const std::size_t bytes : {0ul, 1ul, 63ul, 64ul, 65ul, 4096ul, 1'000'003ul, 9ul << 20, (33ul << 20) + 5}) {
    for (const std::size_t target_skip : {1ul, 33ul, 64ul}) {
      const unsigned char* source = memory.data() + random_below(65);
      std::vector<unsigned char> target(bytes + target_skip + 1, 0xa5);
      unsigned char* begin = target.data() + target_skip;
      for_each_variant([&] {
        std::fill(target.begin(), target.end(), 0xa5);
        copy(begin, source, bytes);
        CHECK(std::memcmp(begin, source, bytes) == 0, std::to_string(bytes));
        CHECK(begin[-1] == 0xa5 && begin[bytes] == 0xa5, std::to_string(bytes));
      });
    }
  }
}

void variants_are_chosen_by_name() {
  CHECK(variants().front() == "portable", "");
  CHECK(variant() == variants().back(), "the best runs");
  CHECK(!choose_variant("none such") && variant() == variants().back(), "");
}

}  // namespace

int main() {
  variants_are_chosen_by_name();
  wrong_programs_are_found();
  every_small_float_is_converted_right();
  one_leaf_alone_keeps_every_bit();
  two_inputs_of_every_size_are_right();
  trees_of_any_shape_are_right();
  the_longest_programs_are_right();
  large_outputs_are_right();
  variants_agree_on_random_bits();
  variants_agree_when_subnormals_are_flushed();
  copies_are_whole();
  for (const auto name : variants()) std::printf("%s ", std::string(name).c_str());
  std::printf("%d failures\n", num_failures);
  return num_failures == 0 ? 0 : 1;
}
