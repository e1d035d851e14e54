#include "shape.hpp"

namespace samebits {
namespace {

// Bit 63 says that the code can be read; then 4 bits for the number of dimensions, and equally many for each of them.
constexpr std::uint64_t readable = std::uint64_t{1} << 63;
constexpr unsigned place_of_rank = 59;

std::uint64_t hash_of(std::span<const std::int64_t> dims) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, by words
  for (const std::int64_t dim : dims) hash = (hash ^ static_cast<std::uint64_t>(dim)) * 0x100000001b3u;
  return (hash & ~readable) | 1;  // never 0
}

}  // namespace

std::uint64_t shape_code(std::span<const std::int64_t> dims) {
  if (dims.size() < 2) return 0;
  if (dims.size() > 15) return hash_of(dims);
  const unsigned width = place_of_rank / static_cast<unsigned>(dims.size());
  std::uint64_t code = readable | std::uint64_t{dims.size()} << place_of_rank;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (static_cast<std::uint64_t>(dims[i]) >> width != 0) return hash_of(dims);
    code |= static_cast<std::uint64_t>(dims[i]) << (i * width);
  }
  return code;
}

std::string text_of_shape(std::uint64_t code, std::uint64_t count) {
  const std::string plain = std::to_string(count);
  if ((code & readable) == 0) return plain;
  const auto num_dims = static_cast<unsigned>(code >> place_of_rank & 15);
  const unsigned width = place_of_rank / num_dims;
  std::string text;
  std::uint64_t product = 1;
  for (unsigned i = 0; i < num_dims; ++i) {
    const std::uint64_t dim = code >> (i * width) & ((std::uint64_t{1} << width) - 1);
    product *= dim;
    text += (i == 0 ? "" : " x ") + std::to_string(dim);
  }
  return product == count ? text : plain;
}

}  // namespace samebits
