// The table of the ranks' store, for Python.
#include "table.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "definitions.hpp"
#include "memory.hpp"

namespace nb = nanobind;

namespace samebits {

void define_table(nb::module_& module) {
  nb::class_<Table>(module, "Table")
      .def(
          "__init__",
          [](Table* table, std::shared_ptr<Memory> memory) { new (table) Table(std::move(memory), check_signals); },
          nb::arg("memory"))
      .def(
          "set",
          [](Table& table, std::string_view key, const nb::bytes& value) {
            const std::string_view told = view(value);
            const nb::gil_scoped_release released;
            table.set(key, told);
          },
          nb::arg("key"), nb::arg("value"))
      .def(
          "append",
          [](Table& table, std::string_view key, const nb::bytes& value) {
            const std::string_view told = view(value);
            const nb::gil_scoped_release released;
            table.append(key, told);
          },
          nb::arg("key"), nb::arg("value"))
      .def("add", &Table::add, nb::arg("key"), nb::arg("amount"), Released())
      .def(
          "compare_set",
          [](Table& table, std::string_view key, const nb::bytes& expected, const nb::bytes& desired) {
            const std::string_view before = view(expected), after = view(desired);
            std::string found;
            {
              const nb::gil_scoped_release released;
              found = table.compare_set(key, before, after);
            }
            return bytes(found);
          },
          nb::arg("key"), nb::arg("expected"), nb::arg("desired"))
      .def("remove", &Table::remove, nb::arg("key"), Released())
      .def(
          "find",
          [](Table& table, std::string_view key) -> std::optional<nb::bytes> {
            std::optional<std::string> found;
            {
              const nb::gil_scoped_release released;
              found = table.find(key);
            }
            if (!found) return std::nullopt;
            return bytes(*found);
          },
          nb::arg("key"))
      .def(
          "find_all",
          [](Table& table, const std::vector<std::string>& keys) -> std::optional<std::vector<nb::bytes>> {
            std::optional<std::vector<std::string>> found;
            {
              const nb::gil_scoped_release released;
              found = table.find_all(keys);
            }
            if (!found) return std::nullopt;
            std::vector<nb::bytes> values;
            for (const std::string& value : *found) values.push_back(bytes(value));
            return values;
          },
          nb::arg("keys"))
      .def("has_all", &Table::has_all, nb::arg("keys"), Released())
      .def(
          "wait",
          [](Table& table, const std::vector<std::string>& keys, double patience_s) {
            return table.wait(keys, seconds(patience_s));
          },
          nb::arg("keys"), nb::arg("patience_s"), Released())
      .def("num_keys", &Table::num_keys, Released())
      .def("keys", &Table::keys, Released())
      .def("repairs", &Table::repairs, Released());
}

}  // namespace samebits
