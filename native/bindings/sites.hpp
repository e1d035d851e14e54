// Which place of the user's program calls the compiled part.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "site.hpp"

namespace samebits {

// Looks at Python's frames, from the innermost one outwards. A Python function is asked about each place once:
// `describe(code, lasti)` returns (kind, label, where). Needs the GIL; one object per process, forever.
class Sites {
 public:
  enum Kind : int {
    passed_over = 0,  // samebits's own, and torch's functions for collectives
    users = 1,
    inner = 2,  // the rest of torch, which calls collectives itself
  };

  using Describe = nanobind::typed<nanobind::callable, std::tuple<int, std::uint64_t, std::string>(nanobind::any, int)>;
  using Places = nanobind::typed<nanobind::list, nanobind::typed<nanobind::tuple, nanobind::any, int>>;

  explicit Sites(Describe describe) : describe_(std::move(describe)) {}
  Sites(const Sites&) = delete;
  // Where the innermost line of the user is, and what it says. Null when there is no such line.
  const Site* of_caller();
  // The places that a site consists of, the innermost first: pairs of a code object and an instruction's number.
  Places places_of(std::size_t number) const;

 private:
  static constexpr std::size_t depth = 3;              // lines that tell calls of one function apart
  static constexpr std::size_t most_places = 1 << 16;  // for code that is made again and again; then nothing is known

  struct PlaceKey {
    PyObject* code;
    int lasti;
    bool operator==(const PlaceKey&) const = default;
  };
  struct Place {
    PlaceKey key;
    int kind = inner;
    std::uint64_t label = 0;
    std::string where;
  };
  struct Chain {
    std::array<const Place*, depth> places{};
    bool is_direct = true;
    bool operator==(const Chain&) const = default;
  };
  struct Hash {
    std::size_t operator()(const PlaceKey& key) const;
    std::size_t operator()(const Chain& chain) const;
  };

  const Place* place_of(PyFrameObject* frame);
  const Site* site_of(const Chain& chain);

  Describe describe_;
  std::unordered_map<PlaceKey, std::unique_ptr<Place>, Hash> places_;
  std::unordered_map<Chain, std::unique_ptr<Site>, Hash> sites_;
  std::vector<Chain> chains_;  // by the number of the site
};

}  // namespace samebits
