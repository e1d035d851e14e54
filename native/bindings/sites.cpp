#include "sites.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

namespace nb = nanobind;

namespace samebits {
namespace {

std::size_t mixed(std::size_t seed, std::size_t value) { return (seed ^ value) * 0x9e3779b97f4a7c15u ^ (seed >> 29); }

#ifdef Py_LIMITED_API
PyFrameObject* back(PyFrameObject* frame) {
  static PyObject* const name = PyUnicode_InternFromString("f_back");
  PyObject* const found = PyObject_GetAttr(reinterpret_cast<PyObject*>(frame), name);
  if (found != Py_None) return reinterpret_cast<PyFrameObject*>(found);
  Py_DECREF(found);
  return nullptr;
}

int lasti(PyFrameObject* frame) {
  static PyObject* const name = PyUnicode_InternFromString("f_lasti");
  const auto found = nb::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(frame), name));
  return static_cast<int>(PyLong_AsLong(found.ptr()));
}
#else
PyFrameObject* back(PyFrameObject* frame) { return PyFrame_GetBack(frame); }
int lasti(PyFrameObject* frame) { return PyFrame_GetLasti(frame); }
#endif

// A reference to a frame.
class Frame {
 public:
  explicit Frame(PyFrameObject* frame) : frame_(frame) {}
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  ~Frame() { Py_XDECREF(reinterpret_cast<PyObject*>(frame_)); }
  explicit operator bool() const { return frame_ != nullptr; }
  PyFrameObject* get() const { return frame_; }
  void go_back() {
    PyFrameObject* const next = back(frame_);
    Py_DECREF(reinterpret_cast<PyObject*>(frame_));
    frame_ = next;
  }

 private:
  PyFrameObject* frame_;
};

}  // namespace

std::size_t Sites::Hash::operator()(const PlaceKey& key) const {
  return mixed(reinterpret_cast<std::size_t>(key.code), static_cast<std::size_t>(key.lasti));
}

std::size_t Sites::Hash::operator()(const Chain& chain) const {
  std::size_t hash = chain.is_direct;
  for (const Place* place : chain.places) hash = mixed(hash, reinterpret_cast<std::size_t>(place));
  return hash;
}

const Sites::Place* Sites::place_of(PyFrameObject* frame) {
  const auto code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const PlaceKey key{code.ptr(), lasti(frame)};
  if (const auto found = places_.find(key); found != places_.end()) return found->second.get();
  if (places_.size() == most_places) return nullptr;
  const auto [kind, label, where] = nb::cast<std::tuple<int, std::uint64_t, std::string>>(describe_(code, key.lasti));
  Py_INCREF(key.code);  // so that no other code gets its address
  return (places_[key] = std::make_unique<Place>(Place{key, kind, label, where})).get();
}

const Site* Sites::site_of(const Chain& chain) {
  auto& site = sites_[chain];
  if (site != nullptr) return site.get();
  site = std::make_unique<Site>();
  site->number = chains_.size();
  site->where = chain.places[0]->where;
  chains_.push_back(chain);
  if (!chain.is_direct || chain.places[0]->label == 0) return site.get();
  std::uint64_t label = 1;
  for (const Place* place : chain.places) label = mixed(label, place == nullptr ? 0 : place->label);
  site->label = label | 1;
  return site.get();
}

const Site* Sites::of_caller() {
  Frame frame(PyEval_GetFrame());
  if (!frame) return nullptr;
  Py_INCREF(reinterpret_cast<PyObject*>(frame.get()));
  Chain chain;
  std::size_t length = 0;
  for (; frame && length < depth; frame.go_back()) {
    const Place* const place = place_of(frame.get());
    if (place == nullptr) return nullptr;
    if (place->kind == users) {
      chain.places[length++] = place;
      if (!chain.is_direct) break;
    } else if (length != 0) {
      break;
    } else if (place->kind == inner) {
      chain.is_direct = false;
    }
  }
  return length == 0 ? nullptr : site_of(chain);
}

Sites::Places Sites::places_of(std::size_t number) const {
  Places found;
  for (const Place* place : chains_.at(number).places) {
    if (place != nullptr) found.append(nb::make_tuple(nb::borrow(place->key.code), place->key.lasti));
  }
  return found;
}

}  // namespace samebits
