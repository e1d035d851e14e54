// A broadcast in windows, which the root and its readers carry out together.
#include <algorithm>
#include <vector>

#include "ranks.hpp"

using namespace samebits;

namespace {

Request broadcast_of(std::byte* data, std::size_t count, std::int32_t root) {
  Request request;
  request.kind = Kind::broadcast;
  request.dtype = Dtype::uint8;
  request.count = count;
  request.root = root;
  request.inputs = {data};
  request.outputs = {data};
  return request;
}

std::byte byte_of(std::size_t root, std::size_t count, std::size_t at) {
  return static_cast<std::byte>((root * 101 + count + at * 7 + at / 253) % 251 + 1);
}

// Nothing in front of it and nothing behind it changes; a rank whose tensor lies elsewhere gets it too.
void everybody_gets_the_tensor_of_the_root(std::size_t world) {
  on_ranks(world, [world](Group& group) {
    constexpr std::size_t margin = 64, most = 200'003;
    const auto window = group.allocate(most + 2 * margin);
    std::vector<std::byte> elsewhere(most + 2 * margin);
    for (const std::size_t count : {std::size_t{4097}, std::size_t{5000}, std::size_t{65'536}, most}) {
      for (std::size_t root = 0; root < world; ++root) {
        for (std::size_t outside = 0; outside <= world;
             ++outside) {  // whose tensor is in no window; the last: nobody's
          std::byte* const place = outside == group.rank() ? elsewhere.data() : window->region(group.rank());
          std::fill_n(place, count + 2 * margin, std::byte{0});
          std::byte* const data = place + margin;
          for (std::size_t at = 0; root == group.rank() && at < count; ++at) data[at] = byte_of(root, count, at);
          group.run(broadcast_of(data, count, static_cast<std::int32_t>(root)));
          for (std::size_t at = 0; at < count; ++at) CHECK(data[at] == byte_of(root, count, at));
          const auto is_zero = [](std::byte each) { return each == std::byte{0}; };
          CHECK(std::all_of(place, data, is_zero) && std::all_of(data + count, data + count + margin, is_zero));
          std::fill_n(data, count, std::byte{0xff});  // nobody reads or writes it any more
          group.run(Request{});
          CHECK(std::all_of(data, data + count, [](std::byte each) { return each == std::byte{0xff}; }));
        }
      }
    }
  });
}

}  // namespace

int main() {
  for (const std::size_t world : {1, 2, 3, 5}) everybody_gets_the_tensor_of_the_root(world);
  return 0;
}
