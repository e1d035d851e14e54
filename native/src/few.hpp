// A short list: a few elements need no memory of their own.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <vector>

namespace samebits {

// Like a std::vector of pointers or numbers that only grows.
template <typename T, std::size_t room = 4>
class Few {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  Few() = default;
  explicit Few(std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) push_back(T{});
  }
  Few(std::initializer_list<T> elements) {  // NOLINT(google-explicit-constructor): as a std::vector
    for (const T& each : elements) push_back(each);
  }
  Few(const std::vector<T>& elements) {  // NOLINT(google-explicit-constructor): callers have vectors
    for (const T& each : elements) push_back(each);
  }

  void push_back(T element) {
    if (size_ < room) {
      inline_[size_] = element;
    } else {
      if (size_ == room) more_.assign(inline_.begin(), inline_.end());
      more_.push_back(element);
    }
    ++size_;
  }
  void clear() {
    size_ = 0;
    more_.clear();
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return size_ <= room ? inline_.data() : more_.data(); }
  const T* data() const { return size_ <= room ? inline_.data() : more_.data(); }
  T& operator[](std::size_t index) { return data()[index]; }
  const T& operator[](std::size_t index) const { return data()[index]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  std::size_t size_ = 0;
  std::array<T, room> inline_{};
  std::vector<T> more_;  // all of them, once they do not fit
};

}  // namespace samebits
