// torch's tensors without torch's headers: through the table of functions that torch hands out for DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "group.hpp"

namespace samebits {

// Where the numbers of a tensor are, when they are in this process's memory, one after the other and unchanged.
struct Plain {
  void* data;
  std::uint64_t count;
  Dtype dtype;
  std::span<const std::int64_t> shape;  // good as long as the tensor is unchanged
};

// Reads tensors and torch's options of a call. Needs the GIL; keeps what it is given forever.
class Tensors {
 public:
  using Watcher = std::pair<nanobind::dict, nanobind::str>;

  // exchange: `torch.Tensor.__dlpack_c_exchange_api__`; None: no tensor can be read.
  // types: the classes of tensors that have numbers of their own.
  // watchers: variables, by the dictionary that has them; while one is true, calls are made in another way.
  // ops: codes of reduce operations by torch's hash of them.
  Tensors(nanobind::object exchange, std::vector<nanobind::object> types, std::vector<Watcher> watchers,
          std::vector<std::pair<std::int64_t, int>> ops);

  // Nothing for a tensor that is not plain, or of a dtype that has no number here.
  std::optional<Plain> plain(nanobind::handle tensor) const;
  // all_reduce of one plain tensor whose caller waits, alone or in a list. False: nothing has happened, because the
  // call is another one.
  bool sum(Group& group, nanobind::handle tensors, nanobind::handle options) const;
  // The same for broadcast, all_gather and reduce_scatter from one plain tensor into another; broadcast has one alone.
  bool move(Group& group, int kind, nanobind::handle output, nanobind::handle input, nanobind::handle options) const;

 private:
  bool is_watched() const;
  std::optional<int> op_of(nanobind::handle options) const;
  // The rank that has the tensor; nothing unless it has one tensor.
  static std::optional<std::int32_t> root_of(nanobind::handle options);

  int (*read_)(void* tensor, void* found) = nullptr;
  std::vector<nanobind::object> types_;
  std::vector<Watcher> watchers_;
  std::vector<std::pair<std::int64_t, int>> ops_;
  nanobind::str is_neg_, async_op_, reduce_op_;
};

}  // namespace samebits
