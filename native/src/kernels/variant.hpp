// What dispatch and the variants exchange. Plain pointers and nothing else: code that a header gives to every
// source (std::span and its like) must not be compiled here for instructions that the processor may not have, because
// the linker keeps one copy of it for all.
#pragma once

#include <cstddef>

#include "kernels/kernels.hpp"

namespace samebits::kernels {

// A Reduction with its arrays. Never an average (dispatch makes it a sum that is divided), never a plain copy.
struct Work {
  Dtype dtype;
  ReduceOp op;
  Scale scale;
  double factor;
  const std::uint8_t* program;
  std::size_t program_size;
  const void* const* inputs;
  void* const* outputs;
  std::size_t num_outputs;
  std::size_t count;
  bool stream;  // the outputs go past the caches
};

// A copy past the caches, of any size and alignment; readers see it after the next release, like any other.
using Stream = void (*)(void* target, const void* source, std::size_t bytes);
using Run = void (*)(const Work& work);

void run_portable(const Work& work);
void run_avx2(const Work& work);
void run_avx512(const Work& work);
void stream_portable(void* target, const void* source, std::size_t bytes);
void stream_avx2(void* target, const void* source, std::size_t bytes);
void stream_avx512(void* target, const void* source, std::size_t bytes);

}  // namespace samebits::kernels
