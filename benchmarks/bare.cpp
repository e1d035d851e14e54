// What the machine does without any library: the limits that are measured beside the table's lines. Compiled by
// bare.py.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#ifdef __SSE2__
#include <immintrin.h>
#endif

constexpr int patience = 2000;

namespace {

void copy_line(std::byte* target, const std::byte* source) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(target), _mm512_load_si512(source));
#elif defined(__AVX__)
  for (int i = 0; i < 2; ++i) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target) + i,
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(source) + i));
  }
#elif defined(__SSE2__)
  for (int i = 0; i < 4; ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target) + i,
                     _mm_load_si128(reinterpret_cast<const __m128i*>(source) + i));
  }
#else
  std::memcpy(target, source, 64);
#endif
}

}  // namespace

extern "C" {

// Two or more processes tell each other that they are there, `times` times: each counts up a word in a cache line of
// its own and waits until the others' words are as large. `flags` is zeroed shared memory, 128 bytes for each rank.
void exchange_flags(std::byte* flags, std::size_t rank, std::size_t num_ranks, std::uint32_t times) {
  const auto word = [&](std::size_t of) { return reinterpret_cast<std::atomic<std::uint32_t>*>(flags + of * 128); };
  const std::uint32_t start = word(rank)->load(std::memory_order_relaxed);
  for (std::uint32_t number = start + 1; number != start + times + 1; ++number) {
    word(rank)->store(number, std::memory_order_release);
    for (std::size_t peer = 0; peer < num_ranks; ++peer) {
      int looks = 0;
      while (static_cast<std::int32_t>(word(peer)->load(std::memory_order_acquire) - number) < 0) {
        if (++looks > patience) std::this_thread::yield();  // the core may belong to somebody else
#ifdef __SSE2__
        _mm_pause();
#endif
      }
    }
  }
}

// A copy past the caches, which does not read what it is about to overwrite. Both 64-byte aligned.
void stream_copy(std::byte* target, const std::byte* source, std::size_t num_bytes) {
  std::size_t at = 0;
  for (; at + 64 <= num_bytes; at += 64) copy_line(target + at, source + at);
  std::memcpy(target + at, source + at, num_bytes - at);
#ifdef __SSE2__
  _mm_sfence();
#endif
}
}
