// One collective operation on its way, as a coroutine that suspends where it waits for other ranks.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "call_order.hpp"
#include "control.hpp"
#include "few.hpp"
#include "site.hpp"

namespace samebits {

// The elements of a sum that one rank adds up. Each rank has its own; together they cover the sum.
struct Range {
  std::uint64_t start = 0, size = 0;
  void* output = nullptr;  // where they go: `size` elements in memory that nothing else uses
  // They go to the outputs of every rank instead. The inputs are this rank's alone, of `size` elements, and the program
  // is over them.
  bool spreads = false;
};

// What a rank asks for. Pointers must stay good until the operation is finished.
struct Request {
  Kind kind = Kind::barrier;
  Dtype dtype = Dtype::uint8;
  ReduceOp op = ReduceOp::sum;
  Scale scale = Scale::none;
  double factor = 1.0;
  std::int32_t root = -1;
  std::uint64_t count = 0;                     // elements of one input; for reduce_scatter of the output
  Few<const void*> inputs;                     // partial sums; or one for each destination; or one
  Few<void*> outputs;                          // one for each source; or one
  std::vector<std::uint8_t> program;           // order of a sum over all leaves, rank by rank; empty: their lane tree
  std::vector<std::uint8_t> leaves;            // how many partial sums each rank has
  std::optional<Range> range;                  // all_reduce: what this rank adds up
  std::vector<std::uint64_t> sends, receives;  // all_to_all: elements for each destination, from each source
  std::uint64_t shape = 0;                     // as in a Description
  const Site* site = nullptr;                  // who called, when it is known beforehand
  std::string where;                           // the source line, when it is another than that of `site`
  const std::string& line() const { return where.empty() && site != nullptr ? site->where : where; }
};

// Words of each rank; see docs/design/shared-memory.md.
enum class Counter : std::uint8_t { arrived, pieces, worked, judged };

struct Condition {
  Counter counter = Counter::arrived;
  std::uint32_t target = 0;
};

class Task {
 public:
  struct promise_type {
    std::exception_ptr error;
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };

  Task() = default;
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool done() const { return !handle_ || handle_.done(); }
  void resume() {
    handle_.resume();
    if (handle_.done() && handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

// Something that a rank waits for: a collective or a message. Guarded by its group's mutex.
struct Pending {
  std::atomic<bool> finished = false;  // the only one that may be read without it
  std::exception_ptr error;
  virtual ~Pending() = default;
};

struct Operation : Pending {
  Request request;
  std::uint32_t number = 0;
  bool uses_earlier =
      false;  // memory that an operation up to `after` uses too: it is published when those are finished
  std::uint32_t after = 0;
  bool published = false;
  bool compared = false;                    // all ranks describe it alike
  std::optional<CallOrder::Circle> circle;  // but it may have been swapped with another one; the ranks judge
  bool started = false;
  bool has_worked = false;  // this rank's part is done; others may still be reading
  Condition waits_for;
  std::vector<std::vector<std::byte>> copies;  // of inputs that its results would spoil
  // Where overlapping outputs go meanwhile; at the end they go to `targets`, one after the other.
  std::vector<std::vector<std::byte>> results;
  Few<void*> targets;
  std::shared_ptr<void> kept;  // what the task refers to
  Task task;
};

}  // namespace samebits
