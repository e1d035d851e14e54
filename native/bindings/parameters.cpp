// Loops over all parameters of a model, of which each step makes several: what a line of Python costs for each of 600
// small tensors is more than what they compute.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "definitions.hpp"
#include "dlpack.hpp"

namespace nb = nanobind;

namespace samebits {
namespace {

using dlpack::Tensor;

PyObject* item(const nb::list& list, std::size_t at) {
  return PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(at));  // borrowed
}

// Reads where tensors are and how they are laid out. Needs the GIL.
class Reader {
 public:
  explicit Reader(nb::object exchange) : read_(dlpack::read_of(std::move(exchange))) {}

  bool read(PyObject* tensor, Tensor& found) const {
    if (read_ == nullptr || tensor == nullptr) return false;
    if (read_(tensor, &found) == 0 && (found.num_dims == 0 || found.strides != nullptr)) return true;
    PyErr_Clear();
    return false;
  }

 private:
  dlpack::Read read_;
};

// Where tensors were, and with which shapes and strides, when this was made.
class Places {
 public:
  Places(const Reader& reader, const nb::list& tensors) : reader_(reader) {
    for (std::size_t i = 0; i < tensors.size() && is_known_; ++i) {
      Tensor found{};
      is_known_ = reader_.read(item(tensors, i), found);
      if (!is_known_) break;
      addresses_.push_back(found.data);
      dims_.push_back(found.num_dims);
      numbers_.insert(numbers_.end(), found.shape, found.shape + found.num_dims);
      numbers_.insert(numbers_.end(), found.strides, found.strides + found.num_dims);
    }
  }

  // Whether all could be read; nothing is the same otherwise.
  bool is_known() const { return is_known_; }

  bool same(const nb::list& tensors, bool only_addresses) const {
    if (!is_known_ || tensors.size() != addresses_.size()) return false;
    const std::int64_t* numbers = numbers_.data();
    for (std::size_t i = 0; i < addresses_.size(); ++i) {
      Tensor found{};
      if (!reader_.read(item(tensors, i), found) || found.data != addresses_[i]) return false;
      if (only_addresses) continue;
      const auto size = static_cast<std::size_t>(found.num_dims);
      if (found.num_dims != dims_[i] || !std::equal(found.shape, found.shape + size, numbers) ||
          !std::equal(found.strides, found.strides + size, numbers + size)) {
        return false;
      }
      numbers += 2 * size;
    }
    return true;
  }

 private:
  Reader reader_;
  bool is_known_ = true;
  std::vector<void*> addresses_;
  std::vector<std::int32_t> dims_;
  std::vector<std::int64_t> numbers_;  // of each tensor its shape, then its strides
};

// Whether dictionaries hold these values, in order. Keeps nothing: Python's collector could not see it, and would never
// free a model that refers to what asks here.
bool hold(const nb::list& tables, const nb::list& values) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(item(tables, i), &at, &key, &value) != 0) {
      if (number == values.size() || item(values, number++) != value) return false;
    }
  }
  return number == values.size();
}

// How many references there were to each of some objects when this was made.
class Holders {
 public:
  explicit Holders(nb::list objects) : objects_(std::move(objects)) {
    for (std::size_t i = 0; i < objects_.size(); ++i) counts_.push_back(Py_REFCNT(item(objects_, i)));
  }

  bool same() const {
    if (objects_.size() != counts_.size()) return false;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (Py_REFCNT(item(objects_, i)) != counts_[i]) return false;
    }
    return true;
  }

 private:
  nb::list objects_;
  std::vector<Py_ssize_t> counts_;
};

// What gradients' hooks share: while `are_noted`, each of them only notes its number; otherwise it calls `otherwise`.
struct Arrivals {
  nb::list numbers;
  nb::object otherwise;
  bool are_noted = false;
};

nb::object hook(nb::handle arrivals, int number) {
  return nb::cpp_function([kept = nb::borrow(arrivals), number = nb::int_(number)](nb::handle) {
    const auto& shared = nb::cast<const Arrivals&>(kept);
    if (!shared.are_noted) {
      shared.otherwise(number);
    } else if (PyList_Append(shared.numbers.ptr(), number.ptr()) != 0) {
      throw nb::python_error();
    }
  });
}

// Whether all are strided tensors, and each ends before the next begins, in the order of memory.
bool are_apart(const Reader& reader, const nb::list& tensors) {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> places(tensors.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    Tensor found{};
    if (!reader.read(item(tensors, i), found)) return false;
    std::uintptr_t bytes = (std::uintptr_t{found.bits} * found.lanes + 7) / 8;
    for (std::int32_t dim = 0; dim < found.num_dims; ++dim) bytes *= static_cast<std::uintptr_t>(found.shape[dim]);
    const auto start = reinterpret_cast<std::uintptr_t>(found.data) + found.offset;
    places[i] = {start, start + bytes};
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i - 1].second > places[i].first) return false;
  }
  return true;
}

}  // namespace

void define_parameters(nb::module_& module) {
  nb::class_<Reader>(module, "Reader").def(nb::init<nb::object>(), nb::arg("exchange").none());
  nb::class_<Places>(module, "Places")
      .def(nb::init<const Reader&, const nb::list&>(), nb::arg("reader"), nb::arg("tensors"))
      .def_prop_ro("is_known", &Places::is_known)
      .def("same", &Places::same, nb::arg("tensors"), nb::arg("only_addresses") = false);
  nb::class_<Holders>(module, "Holders").def(nb::init<nb::list>(), nb::arg("objects")).def("same", &Holders::same);
  nb::class_<Arrivals>(module, "Arrivals")
      .def(
          "__init__",
          [](Arrivals* arrivals, nb::list numbers, nb::object otherwise) {
            new (arrivals) Arrivals{std::move(numbers), std::move(otherwise)};
          },
          nb::arg("numbers"), nb::arg("otherwise"))
      .def_rw("are_noted", &Arrivals::are_noted)
      .def("hook", &hook, nb::arg("number"));
  module.def("hold", &hold, nb::arg("tables"), nb::arg("values"));
  module.def("are_apart", &are_apart, nb::arg("reader"), nb::arg("tensors"));
}

}  // namespace samebits
