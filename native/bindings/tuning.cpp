// What Python sees of the numbers that depend on the machine.
#include "tuning.hpp"

#include "definitions.hpp"

namespace nb = nanobind;

namespace samebits {

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
}

}  // namespace samebits
