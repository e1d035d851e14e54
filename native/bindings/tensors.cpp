#include "tensors.hpp"

#include <algorithm>

#include "dlpack.hpp"
#include "running.hpp"
#include "shape.hpp"

namespace nb = nanobind;

namespace samebits {
namespace {

using namespace dlpack;

std::optional<Dtype> dtype_of(const Tensor& tensor) {
  switch (tensor.lanes << 16 | tensor.type << 8 | tensor.bits) {
    case 1 << 16 | floating << 8 | 64:
      return Dtype::float64;
    case 1 << 16 | floating << 8 | 32:
      return Dtype::float32;
    case 1 << 16 | floating << 8 | 16:
      return Dtype::float16;
    case 1 << 16 | brain << 8 | 16:
      return Dtype::bfloat16;
    case 1 << 16 | integer << 8 | 8:
      return Dtype::int8;
    case 1 << 16 | integer << 8 | 16:
      return Dtype::int16;
    case 1 << 16 | integer << 8 | 32:
      return Dtype::int32;
    case 1 << 16 | integer << 8 | 64:
      return Dtype::int64;
    case 1 << 16 | natural << 8 | 8:
      return Dtype::uint8;
    case 1 << 16 | boolean << 8 | 8:
      return Dtype::boolean;
    default:
      return std::nullopt;
  }
}

// The number of elements; nothing when they are not one after the other.
std::optional<std::uint64_t> count_of(const Tensor& tensor) {
  std::int64_t count = 1;
  bool in_a_row = true;
  for (std::int32_t i = tensor.num_dims; i-- > 0;) {
    const std::int64_t size = tensor.shape[i];
    in_a_row = in_a_row && (size == 1 || tensor.strides == nullptr || tensor.strides[i] == count);
    count *= size;
  }
  if (count != 0 && (!in_a_row || tensor.data == nullptr)) return std::nullopt;
  return static_cast<std::uint64_t>(count);
}

bool is_false(nb::handle owner, nb::handle name) {
  PyObject* const found = PyObject_GetAttr(owner.ptr(), name.ptr());
  if (found == nullptr) PyErr_Clear();
  Py_XDECREF(found);
  return found == Py_False;
}

std::optional<long> number(nb::handle owner, const char* name) {
  const auto found = nb::steal(PyObject_GetAttrString(owner.ptr(), name));
  const long value = found.is_valid() ? PyLong_AsLong(found.ptr()) : -1;
  if (PyErr_Occurred() == nullptr) return value;
  PyErr_Clear();
  return std::nullopt;
}

// The only tensor of a list, or what it is itself; nothing for other lists.
std::optional<nb::handle> only(nb::handle tensors) {
  if (!PyList_CheckExact(tensors.ptr())) return tensors;
  if (PyList_Size(tensors.ptr()) != 1) return std::nullopt;
  return nb::handle(PyList_GetItem(tensors.ptr(), 0));
}

nb::str interned(const char* text) { return nb::steal<nb::str>(PyUnicode_InternFromString(text)); }

}  // namespace

Tensors::Tensors(nb::object exchange, std::vector<nb::object> types, std::vector<Watcher> watchers,
                 std::vector<std::pair<std::int64_t, int>> ops)
    : types_(std::move(types)),
      watchers_(std::move(watchers)),
      ops_(std::move(ops)),
      is_neg_(interned("is_neg")),
      async_op_(interned("asyncOp")),
      reduce_op_(interned("reduceOp")) {
  read_ = read_of(std::move(exchange));
}

std::optional<Plain> Tensors::plain(nb::handle tensor) const {
  if (read_ == nullptr) return std::nullopt;
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
  if (std::none_of(types_.begin(), types_.end(), [&](const nb::object& known) { return known.ptr() == type; })) {
    return std::nullopt;
  }
  dlpack::Tensor found{};
  if (read_(tensor.ptr(), &found) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  const auto dtype = found.device_type == cpu && found.offset == 0 ? dtype_of(found) : std::nullopt;
  if (!dtype) return std::nullopt;
  const auto count = count_of(found);
  // The one thing about its numbers that DLPack does not tell: that they mean their negatives.
  if (!count || tensor.attr(is_neg_)().ptr() != Py_False) return std::nullopt;
  return Plain{found.data, *count, *dtype, {found.shape, static_cast<std::size_t>(found.num_dims)}};
}

bool Tensors::is_watched() const {
  return std::any_of(watchers_.begin(), watchers_.end(), [](const Watcher& watcher) {
    return PyDict_GetItemWithError(watcher.first.ptr(), watcher.second.ptr()) != Py_False;
  });
}

std::optional<int> Tensors::op_of(nb::handle options) const {
  const auto op = nb::steal(PyObject_GetAttr(options.ptr(), reduce_op_.ptr()));
  const Py_hash_t hash = op.is_valid() ? PyObject_Hash(op.ptr()) : -1;
  if (hash == -1) PyErr_Clear();
  const auto found = std::find_if(ops_.begin(), ops_.end(), [&](const auto& each) { return each.first == hash; });
  return hash == -1 || found == ops_.end() ? std::nullopt : std::optional(found->second);
}

bool Tensors::sum(Group& group, nb::handle tensors, nb::handle options) const {
  if (is_watched()) return false;
  const auto tensor = only(tensors);
  if (!tensor) return false;
  const auto known = plain(*tensor);
  if (!known || !is_false(options, async_op_)) return false;
  const auto op = op_of(options);
  if (!op) return false;
  Request request;
  request.shape = shape_code(known->shape);
  request.site = group.caller();
  request.kind = Kind::all_reduce;
  request.dtype = known->dtype;
  request.op = static_cast<ReduceOp>(*op);
  request.count = known->count;
  request.inputs = {known->data};
  request.outputs = {known->data};
  run(group, std::move(request));
  return true;
}

std::optional<std::int32_t> Tensors::root_of(nb::handle options) {
  const auto root = number(options, "rootRank"), which = number(options, "rootTensor");
  if (!root || !which || *which != 0 || *root < 0) return std::nullopt;
  return static_cast<std::int32_t>(*root);
}

bool Tensors::move(Group& group, int kind, nb::handle output, nb::handle input, nb::handle options) const {
  if (is_watched()) return false;
  const auto given = only(input);
  if (!given) return false;
  const auto from = plain(*given);
  if (!from || !is_false(options, async_op_)) return false;
  Request request;
  request.kind = static_cast<Kind>(kind);
  request.dtype = from->dtype;
  request.count = from->count;
  request.shape = shape_code(from->shape);
  request.inputs = {from->data};
  if (request.kind == Kind::broadcast) {
    const auto root = root_of(options);
    if (!root) return false;
    request.root = *root;
    request.outputs = {from->data};
  } else {
    const auto to = plain(output);
    if (!to || to->dtype != from->dtype) return false;
    const bool adds = request.kind == Kind::reduce_scatter;
    if ((adds ? to : from)->count * group.world_size() != (adds ? from : to)->count) return false;
    request.count = std::min(from->count, to->count);
    request.outputs = {to->data};
    const auto op = adds ? op_of(options) : std::optional(0);
    if (!op) return false;
    request.op = static_cast<ReduceOp>(*op);
  }
  request.site = group.caller();
  run(group, std::move(request));
  return true;
}

}  // namespace samebits
