// The Python module samebits._native: the shared-memory transport without torch. Tensors come as addresses and counts.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <system_error>

#include "collectives.hpp"
#include "definitions.hpp"
#include "group.hpp"
#include "kernels/kernels.hpp"
#include "memory.hpp"
#include "running.hpp"
#include "shape.hpp"
#include "sites.hpp"
#include "tensors.hpp"
#include "tuning.hpp"

namespace nb = nanobind;
using namespace samebits;

namespace {

using Address = std::uintptr_t;
using Addresses = std::vector<Address>;

void* pointer(Address address) { return reinterpret_cast<void*>(address); }

std::vector<const void*> sources(const Addresses& addresses) {
  std::vector<const void*> found;
  for (const Address address : addresses) found.push_back(pointer(address));
  return found;
}

std::vector<void*> targets(const Addresses& addresses) {
  std::vector<void*> found;
  for (const Address address : addresses) found.push_back(pointer(address));
  return found;
}

std::vector<std::uint8_t> numbers(const nb::bytes& data) {
  const auto* first = static_cast<const std::uint8_t*>(data.data());
  return {first, first + data.size()};
}

using Judge = std::function<std::tuple<bool, std::string>(std::vector<Sites::Places>)>;

// With the places that each of the calls consists of.
Verdict judged(const Sites& sites, const Judge& judge, const std::vector<const Site*>& calls) {
  const nb::gil_scoped_acquire held;
  std::vector<Sites::Places> places;
  for (const Site* call : calls) places.push_back(call == nullptr ? Sites::Places() : sites.places_of(call->number));
  const auto [belong_together, lines] = judge(std::move(places));
  return {belong_together, lines};
}

// The wheel's Group: Settings with Python's signals and source lines.
std::shared_ptr<Group> join(std::shared_ptr<Memory> control, std::size_t rank, std::size_t world_size,
                            double patience_s, const Tuning& tuning, std::function<std::string()> where,
                            bool named_memory, std::vector<std::size_t> names, Sites* sites,
                            std::optional<Judge> judge) {
  Settings settings;
  settings.patience = seconds(patience_s);
  settings.tuning = tuning;
  stream_from(tuning.streamed_from_bytes);
  settings.while_waiting = check_signals;
  settings.where = [where = std::move(where)]() -> std::string {
    const nb::gil_scoped_acquire held;
    return where();
  };
  if (sites != nullptr) {
    nb::find(sites).inc_ref();  // forever; there is one
    settings.caller = [sites] { return sites->of_caller(); };
    if (judge) {
      settings.judge = [sites, judge = std::move(*judge)](const auto& calls) { return judged(*sites, judge, calls); };
    }
  }
  settings.named_memory = named_memory;
  settings.names = std::move(names);
  const nb::gil_scoped_release released;
  // Its destructor takes locks that another thread may hold while it waits for the GIL to ask for a source line.
  return std::shared_ptr<Group>(new Group(std::move(control), rank, world_size, std::move(settings)), [](Group* group) {
    const nb::gil_scoped_release released;
    delete group;
  });
}

using Shape = nb::typed<nb::tuple, int, nb::ellipsis>;

// A tensor's shape as the ranks compare it.
std::uint64_t code_of(const Shape& shape) {
  std::vector<std::int64_t> dims;
  for (const nb::handle dim : shape) dims.push_back(nb::cast<std::int64_t>(dim));
  return shape_code(dims);
}

std::string text_of_ranks(const std::vector<std::size_t>& ranks) {
  std::string text = "for the ranks [";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text + "]";
}

std::uint64_t hash_of_ranks(const std::vector<std::size_t>& ranks) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, by words
  for (const std::size_t rank : ranks) hash = (hash ^ rank) * 0x100000001b3u;
  return hash;
}

// Needs the GIL, because it asks who calls.
Request request_of(const Group& group, int kind, int dtype, int op, std::int32_t root, std::uint64_t count,
                   const Addresses& inputs, const Addresses& outputs, const Shape& shape = {}) {
  Request request;
  request.shape = code_of(shape);
  request.site = group.caller();
  request.kind = static_cast<Kind>(kind);
  request.dtype = static_cast<Dtype>(dtype);
  request.op = static_cast<ReduceOp>(op);
  request.root = root;
  request.count = count;
  request.inputs = sources(inputs);
  request.outputs = targets(outputs);
  return request;
}

using Counts = std::vector<std::uint64_t>;

// all_to_all.
Request dealing(const Group& group, int dtype, const Addresses& inputs, const Addresses& outputs, const Counts& sends,
                const Counts& receives) {
  Request request = request_of(group, static_cast<int>(Kind::all_to_all), dtype, 0, -1, 0, inputs, outputs);
  request.sends = sends;
  request.receives = receives;
  return request;
}

// Every rank's bytes, one after the other; the same number from each.
nb::bytes all_gather_bytes(Group& group, const nb::bytes& data) {
  std::vector<char> everyone(data.size() * group.world_size());
  Request request;
  request.kind = Kind::all_gather;
  request.count = data.size();
  request.inputs = {data.data()};
  request.outputs = {everyone.data()};
  run(group, std::move(request));
  return nb::bytes(everyone.data(), everyone.size());
}

nb::object group_error;

}  // namespace

NB_MODULE(_native, module) {
  nb::set_leak_warnings(false);  // a process may end while it still holds groups
  module.doc() = "The shared-memory transport: memory, groups of ranks, collectives, messages.";

  group_error = nb::steal(PyErr_NewException("samebits._native.GroupError", PyExc_RuntimeError, nullptr));
  module.attr("GroupError") = group_error;
  nb::register_exception_translator([](const std::exception_ptr& raised, void*) {
    try {
      std::rethrow_exception(raised);
    } catch (const GroupError& error) {
      const nb::tuple arguments = nb::make_tuple(static_cast<int>(error.trouble), error.what());
      PyErr_SetObject(group_error.ptr(), arguments.ptr());
    } catch (const BadCall& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::system_error& error) {
      const nb::tuple arguments = nb::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });

  nb::class_<Memory>(module, "Memory")
      .def_static(
          "create",
          [](std::size_t bytes, bool reserve) { return std::make_shared<Memory>(Memory::create(bytes, reserve)); },
          nb::arg("num_bytes"), nb::arg("reserve"))
      .def_static(
          "create_named",
          [](const std::string& name, std::size_t bytes, bool reserve) {
            return std::make_shared<Memory>(Memory::create_named(name, bytes, reserve));
          },
          nb::arg("name"), nb::arg("num_bytes"), nb::arg("reserve"))
      .def_static(
          "open", [](const std::string& path) { return std::make_shared<Memory>(Memory::open(path)); }, nb::arg("path"))
      .def_static(
          "adopt", [](int descriptor) { return std::make_shared<Memory>(Memory::adopt(descriptor)); },
          nb::arg("descriptor"))
      .def_prop_ro("address", [](const Memory& memory) { return reinterpret_cast<Address>(memory.data()); })
      .def_prop_ro("num_bytes", &Memory::size)
      .def_prop_ro("descriptor", &Memory::descriptor);
  module.def("unlink_name", &unlink_name, nb::arg("name"));
  module.def("random_name", &random_name);
  module.def(
      "note_waits_at", [](Address note) { note_waits_at(reinterpret_cast<WaitNote*>(note)); }, nb::arg("address"));

  nb::class_<PrivateView>(module, "PrivateView")
      .def_prop_ro("address", [](const PrivateView& view) { return reinterpret_cast<Address>(view.data()); })
      .def_prop_ro("num_bytes", &PrivateView::size)
      .def("written_pages", &PrivateView::written_pages)
      .def("was_written", [](const PrivateView& view) { return !view.written_pages().empty(); })
      .def("forget_writes", &PrivateView::forget_writes);
  module.def("can_tell_writes", &PrivateView::can_tell_writes);
  module.def("page_size", &page_size);

  nb::class_<Window>(module, "Window")
      .def_ro("num_bytes", &Window::bytes)
      .def(
          "address",
          [](const Window& window, std::size_t rank) { return reinterpret_cast<Address>(window.region(rank)); },
          nb::arg("rank"))
      .def(
          "private_view",
          [](const Window& window, std::size_t rank) {
            const std::size_t bytes = window.stride != 0 ? window.stride : window.memory->size();
            return new PrivateView(*window.memory, rank * window.stride, bytes);
          },
          nb::arg("rank"), nb::rv_policy::take_ownership);

  define_table(module);

  nb::class_<Pending>(module, "Pending").def_prop_ro("finished", [](const Pending& pending) {
    return pending.finished.load();
  });
  nb::class_<Operation, Pending>(module, "Operation");
  nb::class_<Message, Pending>(module, "Message").def_ro("peer", &Message::peer);

  define_tuning(module);
  define_parameters(module);
  nb::class_<Sites>(module, "Sites").def(nb::init<Sites::Describe>(), nb::arg("describe"));

  nb::class_<Tensors>(module, "Tensors")
      .def(nb::init<nb::object, std::vector<nb::object>, std::vector<Tensors::Watcher>,
                    std::vector<std::pair<std::int64_t, int>>>(),
           nb::arg("exchange").none(), nb::arg("types"), nb::arg("watchers"), nb::arg("ops"))
      .def(
          "address",
          [](const Tensors& tensors, nb::handle tensor) -> std::optional<Address> {
            const auto found = tensors.plain(tensor);
            if (!found) return std::nullopt;
            return reinterpret_cast<Address>(found->data);
          },
          nb::arg("tensor").none())
      .def("sum", &Tensors::sum, nb::arg("group"), nb::arg("tensors").none(), nb::arg("options").none())
      .def("move", &Tensors::move, nb::arg("group"), nb::arg("kind"), nb::arg("output").none(), nb::arg("input").none(),
           nb::arg("options").none());

  nb::class_<Group>(module, "Group")
      .def_static("announce", &Group::announce, nb::arg("control"), nb::arg("rank"), nb::arg("world_size"))
      .def_static("join", &join, nb::arg("control"), nb::arg("rank"), nb::arg("world_size"), nb::arg("patience_s"),
                  nb::arg("tuning"), nb::arg("where"), nb::arg("named_memory"), nb::arg("names"),
                  nb::arg("sites").none() = nb::none(), nb::arg("judge") = nb::none())
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("world_size", &Group::world_size)
      .def_prop_ro("piece_bytes", [](const Group& group) { return group.pieces().piece_bytes; })
      .def(
          "all_reduce",
          [](Group& group, Address data, std::uint64_t count, int dtype, int op, const Shape& shape) {
            Request request =
                request_of(group, static_cast<int>(Kind::all_reduce), dtype, op, -1, count, {data}, {data}, shape);
            run(group, std::move(request));
          },
          nb::arg("data"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"), nb::arg("shape") = Shape())
      .def(
          "begin",
          [](Group& group, int kind, int dtype, int op, std::int32_t root, std::uint64_t count, const Addresses& inputs,
             const Addresses& outputs, const Shape& shape) {
            Request request = request_of(group, kind, dtype, op, root, count, inputs, outputs, shape);
            const nb::gil_scoped_release released;
            return group.begin(std::move(request));
          },
          nb::arg("kind"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"), nb::arg("count"), nb::arg("inputs"),
          nb::arg("outputs"), nb::arg("shape") = Shape())
      .def(
          "run",
          [](Group& group, int kind, int dtype, int op, std::int32_t root, std::uint64_t count, const Addresses& inputs,
             const Addresses& outputs, const Shape& shape) {
            Request request = request_of(group, kind, dtype, op, root, count, inputs, outputs, shape);
            run(group, std::move(request));
          },
          nb::arg("kind"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"), nb::arg("count"), nb::arg("inputs"),
          nb::arg("outputs"), nb::arg("shape") = Shape())
      .def(
          "begin_all_to_all",
          [](Group& group, int dtype, const Addresses& inputs, const Addresses& outputs, const Counts& sends,
             const Counts& receives) {
            Request request = dealing(group, dtype, inputs, outputs, sends, receives);
            const nb::gil_scoped_release released;
            return group.begin(std::move(request));
          },
          nb::arg("dtype"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("sends"), nb::arg("receives"))
      .def(
          "run_all_to_all",
          [](Group& group, int dtype, const Addresses& inputs, const Addresses& outputs, const Counts& sends,
             const Counts& receives) { run(group, dealing(group, dtype, inputs, outputs, sends, receives)); },
          nb::arg("dtype"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("sends"), nb::arg("receives"))
      .def(
          "agree_on_group",
          [](Group& group, const std::vector<std::size_t>& ranks) {
            Request request = request_of(group, static_cast<int>(Kind::new_group), 0, 0, -1, ranks.size(), {}, {});
            request.shape = hash_of_ranks(ranks);
            request.where = request.line() + " " + text_of_ranks(ranks);
            run(group, std::move(request));
          },
          nb::arg("ranks"))
      .def(
          "begin_tree_sum",
          [](Group& group, int dtype, std::uint64_t count, const Addresses& inputs, Address output,
             const nb::bytes& program, const nb::bytes& leaves, double scale) {
            Request request =
                request_of(group, static_cast<int>(Kind::all_reduce), dtype, 0, -1, count, inputs, {output});
            request.program = numbers(program);
            request.leaves = numbers(leaves);
            if (scale != 1.0) {
              request.scale = Scale::multiply;
              request.factor = scale;
            }
            const nb::gil_scoped_release released;
            return group.begin(std::move(request));
          },
          nb::arg("dtype"), nb::arg("count"), nb::arg("inputs"), nb::arg("output"), nb::arg("program"),
          nb::arg("leaves"), nb::arg("scale"))
      .def(
          "begin_range_sum",
          [](Group& group, int dtype, std::uint64_t count, const Addresses& inputs, std::uint64_t start,
             std::uint64_t size, Address output, const nb::bytes& program, const nb::bytes& leaves) {
            Request request = request_of(group, static_cast<int>(Kind::all_reduce), dtype, 0, -1, count, inputs, {});
            request.program = numbers(program);
            request.leaves = numbers(leaves);
            request.range = Range{start, size, pointer(output)};
            const nb::gil_scoped_release released;
            return group.begin(std::move(request));
          },
          nb::arg("dtype"), nb::arg("count"), nb::arg("inputs"), nb::arg("start"), nb::arg("size"), nb::arg("output"),
          nb::arg("program"), nb::arg("leaves"))
      .def(
          "begin_spread",
          [](Group& group, int dtype, std::uint64_t count, const Addresses& inputs, std::uint64_t start,
             std::uint64_t size, Address output, const nb::bytes& program, double scale) {
            Request request =
                request_of(group, static_cast<int>(Kind::all_reduce), dtype, 0, -1, count, inputs, {output});
            request.program = numbers(program);
            if (scale != 1.0) {
              request.scale = Scale::multiply;
              request.factor = scale;
            }
            request.range = Range{start, size, nullptr, true};
            const nb::gil_scoped_release released;
            return group.begin(std::move(request));
          },
          nb::arg("dtype"), nb::arg("count"), nb::arg("inputs"), nb::arg("start"), nb::arg("size"), nb::arg("output"),
          nb::arg("program"), nb::arg("scale"))
      .def(
          "wait", [](Group& group, Pending& pending, double patience_s) { group.wait(pending, seconds(patience_s)); },
          nb::arg("pending"), nb::arg("patience_s"), Released())
      .def("test", &Group::test, nb::arg("pending"), Released())
      .def("behind", &Group::behind, nb::arg("operation"))
      .def(
          "send",
          [](Group& group, Address data, std::uint64_t num_bytes, int dtype, std::size_t destination, std::uint64_t tag,
             const Shape& shape) {
            const About about{code_of(shape), group.caller()};
            const nb::gil_scoped_release released;
            return group.send(pointer(data), num_bytes, static_cast<Dtype>(dtype), destination, tag, about);
          },
          nb::arg("data"), nb::arg("num_bytes"), nb::arg("dtype"), nb::arg("destination"), nb::arg("tag"),
          nb::arg("shape") = Shape())
      .def(
          "receive",
          [](Group& group, Address data, std::uint64_t num_bytes, int dtype, std::size_t source, std::uint64_t tag,
             const Shape& shape) {
            const About about{code_of(shape), group.caller()};
            const nb::gil_scoped_release released;
            return group.receive(pointer(data), num_bytes, static_cast<Dtype>(dtype), source, tag, about);
          },
          nb::arg("data"), nb::arg("num_bytes"), nb::arg("dtype"), nb::arg("source"), nb::arg("tag"),
          nb::arg("shape") = Shape())
      .def("allocate", &Group::allocate, nb::arg("num_bytes"), nb::arg("once") = false, Released())
      .def("release", &Group::release, nb::arg("window"), Released())
      .def("all_gather_bytes", &all_gather_bytes, nb::arg("data"))
      .def(
          "abort",
          [](Group& group, const std::string& reason, int trouble) {
            group.abort(reason, static_cast<Trouble>(trouble));
          },
          nb::arg("reason"), nb::arg("trouble") = static_cast<int>(Trouble::aborted), Released())
      .def("look", &Group::look, Released())
      .def("leave", &Group::leave, Released());

  module.def(
      "control_bytes", [](std::size_t world_size) { return Layout::for_ranks(checked_size(world_size)).total(); },
      nb::arg("world_size"));
  module.def(
      "add_up",
      [](int dtype, std::uint64_t count, const Addresses& inputs, Address output, const nb::bytes& program,
         double scale) {
        const std::vector<std::uint8_t> order = numbers(program);
        if (!is_valid(order, inputs.size())) throw BadCall("the order of the sum does not fit its terms");
        const Reduction reduction{static_cast<Dtype>(dtype), ReduceOp::sum, order,
                                  scale == 1.0 ? Scale::none : Scale::multiply, scale};
        void* const target = pointer(output);
        const auto terms = sources(inputs);
        const nb::gil_scoped_release released;
        reduce(reduction, terms, {&target, 1}, count);
      },
      nb::arg("dtype"), nb::arg("count"), nb::arg("inputs"), nb::arg("output"), nb::arg("program"), nb::arg("scale"));
  module.def("variants", [] {
    const auto found = variants();
    return std::vector<std::string_view>(found.begin(), found.end());
  });
  module.def("variant", &variant);
  module.def("choose_variant", &choose_variant, nb::arg("name"));
}
