// Stores that go to memory past the caches: they do not read the line first, which is a third of a copy's traffic.
//
// Only for variant.cpp (see elements.hpp). Where the instruction set has none, they are ordinary copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace {

constexpr std::size_t line_bytes = 64;

inline bool is_line_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % line_bytes == 0; }

#ifdef __SSE2__

inline void stream_line(std::byte* target, const std::byte* source) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(target), _mm512_loadu_si512(source));
#elif defined(__AVX__)
  for (std::size_t i = 0; i < line_bytes; i += 32) {
    const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i), part);
  }
#else
  for (std::size_t i = 0; i < line_bytes; i += 16) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), part);
  }
#endif
}

// Such stores are not ordered with others, not even by a release: call this once after them.
inline void end_stream() { _mm_sfence(); }

#else

inline void stream_line(std::byte* target, const std::byte* source) { std::memcpy(target, source, line_bytes); }
inline void end_stream() {}

#endif

// `target` is the start of a line.
inline void stream_lines(void* target, const void* source, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  std::size_t done = 0;
  for (; done + line_bytes <= bytes; done += line_bytes) stream_line(to + done, from + done);
  if (done != bytes) std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace
