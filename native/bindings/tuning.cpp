// What Python sees of the numbers that depend on the machine, and of what measures them.
#include "tuning.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "definitions.hpp"
#include "wait_costs.hpp"

namespace nb = nanobind;

namespace lockstep {

// A value: what does not make sense is brought within limits where it is used.
void define_tuning(nb::module_& module) {
  const Tuning usual;
  nb::class_<Tuning>(module, "Tuning")
      .def(
          "__init__",
          [](Tuning* tuning, double spin_us, std::uint32_t yields, bool is_crowded, std::uint32_t piece_bytes,
             std::uint32_t whole_bytes, std::size_t streamed_from_bytes, std::uint32_t moved_bytes,
             std::uint32_t swapped_bytes) {
            new (tuning) Tuning{{microseconds(spin_us), yields, is_crowded},
                                {piece_bytes, whole_bytes, moved_bytes, swapped_bytes},
                                streamed_from_bytes};
          },
          nb::kw_only(), nb::arg("spin_us") = static_cast<double>(usual.waiting.spin.count()) / 1e3,
          nb::arg("yields") = usual.waiting.yields, nb::arg("is_crowded") = usual.waiting.is_crowded,
          nb::arg("piece_bytes") = usual.pieces.piece_bytes, nb::arg("whole_bytes") = usual.pieces.whole_bytes,
          nb::arg("streamed_from_bytes") = usual.streamed_from_bytes, nb::arg("moved_bytes") = usual.pieces.moved_bytes,
          nb::arg("swapped_bytes") = usual.pieces.swapped_bytes);
  module.def(
      "measure_wait_costs",
      [](int cpu, int other_cpu, double at_most_s) -> std::optional<std::tuple<double, double>> {
        const nb::gil_scoped_release released;
        WaitCosts costs;
        if (!measure_wait_costs(cpu, other_cpu, seconds(at_most_s), costs)) return std::nullopt;
        return std::tuple(costs.wake_us, costs.slowed_by_spinning);
      },
      nb::arg("cpu"), nb::arg("other_cpu"), nb::arg("at_most_s"));
}

}  // namespace lockstep
