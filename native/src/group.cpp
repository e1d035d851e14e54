#include "group.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "busy_groups.hpp"
#include "collectives.hpp"
#include "forks.hpp"
#include "overlap.hpp"

namespace samebits {
namespace {

constexpr int most_looks = 64;  // about a microsecond

}  // namespace

Group::Group(std::shared_ptr<Memory> control, std::size_t rank, std::size_t world_size, Settings settings)
    : Group(control, control->data(), rank, world_size, std::move(settings)) {}

Group::Group(std::byte* control, std::size_t rank, std::size_t world_size, Settings settings)
    : Group(nullptr, control, rank, world_size, std::move(settings)) {}

Group::Group(std::shared_ptr<Memory> memory, std::byte* control, std::size_t rank, std::size_t world_size,
             Settings settings)
    : memory_(std::move(memory)),
      rank_(rank),
      layout_(Layout::for_ranks(checked_size(world_size))),
      settings_(std::move(settings)),
      owner_(num_forks()) {
  if (memory_ != nullptr && memory_->size() < layout_.total()) {
    throw BadCall("this is not a control block for " + std::to_string(world_size) + " ranks of this version");
  }
  if (rank >= world_size) throw BadCall("the rank must be below the number of ranks");
  header_ = reinterpret_cast<Header*>(control);
  blocks_ = reinterpret_cast<RankBlock*>(control + layout_.ranks());
  rows_ = reinterpret_cast<Row*>(control + layout_.rows());
  staging_ = control + layout_.staging();
  swapped_ = control + layout_.swapped();
  messages_ = std::make_unique<Messages>(control + layout_.rings(), layout_, rank);
  messages_->name_of = [this](std::size_t peer) { return settings_.name_of(peer); };
  messages_->on_change = [this](std::size_t peer) {
    note_core();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    blocks_[peer].bell.ring_if_waiting_for(static_cast<std::uint32_t>(rank_));
  };
  number_ = settings_.operations_before;
  rows_free_to_ = number_ + num_rows;
  for (const Counter counter : {Counter::arrived, Counter::worked}) word(counter, rank_).value.store(number_);
  default_program_ = tree_program(world_size);
  default_order_ = hash_of_order(default_program_, {});
  join();
}

std::shared_ptr<Operation> Group::begin(Request request) {
  auto operation = begin_now(std::move(request));
  const std::lock_guard lock(mutex_);
  note_busy();
  return operation;
}

// Checks a request, and fills in what callers leave out.
void Group::complete(Request& request) const {
  if (request.op == ReduceOp::average) request.factor = static_cast<double>(world_size());
  check_request(request, rank_, world_size());
  static std::byte nothing;  // an empty tensor may have no address, and memcpy wants one
  for (auto& input : request.inputs) input = input == nullptr ? &nothing : input;
  for (auto& output : request.outputs) output = output == nullptr ? &nothing : output;
}

std::shared_ptr<Operation> Group::begin_now(Request request) {
  complete(request);
  check_process();
  const std::lock_guard lock(mutex_);
  check_usable();
  auto operation = number_one(std::move(request));
  line_up(operation);
  return operation;
}

void Group::run(Request&& request, const std::function<void()>& let_go) {
  complete(request);
  check_process();
  std::unique_lock lock(mutex_, std::try_to_lock);
  const bool is_alone = lock.owns_lock() && has_nothing_else();
  const bool is_short = is_alone && request.outputs.size() < 2 && ends_with_arrivals(request, world_size());
  if (!is_short) let_go();
  if (!lock.owns_lock()) lock.lock();
  check_usable();
  auto operation = number_one(std::move(request));
  if (is_alone && finish_quickly(*operation)) {
    if (!is_short) return;
    operation->published = operation->has_worked = operation->started = false;
    spare_ = std::move(operation);
    return;
  }
  if (is_short) let_go();
  line_up(operation);
  lock.unlock();
  wait(*operation);
}

std::shared_ptr<Operation> Group::number_one(Request&& request) {
  auto operation = spare_ != nullptr ? std::exchange(spare_, nullptr) : std::make_shared<Operation>();
  operation->request = std::move(request);
  operation->number = ++number_;
  return operation;
}

// Behind those that are under way.
void Group::line_up(const std::shared_ptr<Operation>& operation) {
  for (const auto& earlier : queue_) {
    if (!depends_on(operation->request, *earlier, world_size())) continue;
    operation->uses_earlier = true;
    operation->after = earlier->number;
  }
  queue_.push_back(operation);
  progress();
}

// Others may have to move this group from now on, because its rank goes on with something else.
void Group::note_busy() {
  const bool is_busy = !queue_.empty() || !messages_->idle();
  if (is_busy == is_noted_busy_) return;
  is_noted_busy_ = is_busy;
  is_busy ? busy_groups().add(this) : busy_groups().remove(this);
}

void Group::all_reduce(void* data, std::uint64_t count, Dtype dtype, ReduceOp op) {
  Request request;
  request.kind = Kind::all_reduce;
  request.dtype = dtype;
  request.op = op;
  request.count = count;
  request.inputs = {data};
  request.outputs = {data};
  run(std::move(request));
}

std::shared_ptr<Message> Group::send(const void* data, std::uint64_t bytes, Dtype dtype, std::size_t to,
                                     std::uint64_t tag, const About& about) {
  if (to >= world_size())
    throw BadCall("there is no rank " + std::to_string(to) + " in a group of " + std::to_string(world_size()));
  auto message = std::make_shared<Message>();
  message->peer = to;
  message->tag = tag;
  message->dtype = dtype;
  message->bytes = bytes;
  message->about = about;
  message->data = static_cast<std::byte*>(const_cast<void*>(data));
  check_process();
  const std::lock_guard lock(mutex_);
  check_usable();
  messages_->send(message);
  progress();
  note_busy();
  return message;
}

std::shared_ptr<Message> Group::receive(void* data, std::uint64_t bytes, Dtype dtype, std::size_t from,
                                        std::uint64_t tag, const About& about) {
  if (from > world_size())
    throw BadCall("there is no rank " + std::to_string(from) + " in a group of " + std::to_string(world_size()));
  auto message = std::make_shared<Message>();
  message->incoming = true;
  message->peer = from;
  message->tag = tag;
  message->dtype = dtype;
  message->bytes = bytes;
  message->about = about;
  message->data = static_cast<std::byte*>(data);
  check_process();
  const std::lock_guard lock(mutex_);
  check_usable();
  try {
    messages_->receive(message);
  } catch (const GroupError& error) {
    break_quietly(error.trouble, error.what());
    std::rethrow_exception(broken_);
  }
  progress();
  note_busy();
  return message;
}

bool Group::row_is_free(std::uint32_t number) {
  if (has_reached(rows_free_to_, number)) return true;
  const std::uint32_t needed = number - num_rows;
  // This rank too: the others may have worked what it has not looked at yet.
  if (!has_reached(word(Counter::worked, rank_).value.load(std::memory_order_relaxed), needed)) return false;
  if (first_behind({Counter::worked, needed}) != world_size()) return false;
  rows_free_to_ = number;
  return true;
}

std::uint64_t hash_of_order(const std::vector<std::uint8_t>& program, const std::vector<std::uint8_t>& leaves) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const auto* bytes : {&program, &leaves}) {
    for (const std::uint8_t byte : *bytes) hash = (hash ^ byte) * 0x100000001b3u;
    hash = (hash ^ 0xff) * 0x100000001b3u;
  }
  return hash;
}

Description describe(const Request& request, std::uint32_t number, std::uint64_t order) {
  if (request.range) order = request.range->spreads ? ~order : order * 0x100000001b3u + 1;
  return {request.count, order,         request.shape, request.factor, number, request.root,
          request.kind,  request.dtype, request.op,    request.scale,  0};
}

// Tells where the tensors that others read or write are; whether all of them lie in windows.
bool Group::place(const Request& request, Row& mine) const {
  const bool is_reduction = request.kind == Kind::all_reduce || request.kind == Kind::reduce;
  const bool others_write = is_reduction || request.kind == Kind::broadcast;
  const std::size_t num_places = request.inputs.size() + (others_write ? request.outputs.size() : 0);
  if (windows_.empty() || num_places > max_places) return false;
  // The others read the shares when they come to it, not before this rank has its own.
  if (request.kind == Kind::all_to_all && overlaps_itself(request, world_size())) return false;
  const std::size_t size = size_of(request.dtype);
  const bool spreads = request.range && request.range->spreads;
  bool all = !request.inputs.empty() || is_reduction;
  std::size_t next = 0;
  for (std::size_t index = 0; index < request.inputs.size(); ++index) {
    if (spreads) break;  // nobody else reads them
    std::uint64_t count = request.count;
    if (request.kind == Kind::reduce_scatter) count *= world_size();
    if (request.kind == Kind::all_to_all) count = request.sends[index];
    mine.places[next] = place_of(request.inputs[index], count * size);
    all = all && (mine.places[next++].window != Place::elsewhere || count == 0);
  }
  for (std::size_t index = 0; others_write && index < request.outputs.size(); ++index) {
    mine.places[next] = place_of(request.outputs[index], request.count * size);
    all = all && mine.places[next++].window != Place::elsewhere;
  }
  return all;
}

void Group::publish(Operation& operation) {
  const Request& request = operation.request;
  Row& mine = row(rank_, operation.number);
  const bool is_default = request.program.empty() && request.leaves.empty();
  const auto& program = request.program.empty() ? default_program_ : request.program;
  const std::uint64_t order = is_default ? default_order_ : hash_of_order(program, request.leaves);
  mine.description = describe(request, operation.number, order);
  mine.is_crowded = settings_.tuning.waiting.is_crowded;
  mine.num_inputs = static_cast<std::uint32_t>(request.inputs.size());
  const bool is_tiny = samebits::is_tiny(request, world_size());
  if (spoils_its_outputs(request, world_size())) redirect_outputs(operation, world_size());
  if (!is_tiny && spoils_its_inputs(request, rank_, world_size())) copy_inputs(operation, world_size());
  const bool spreads = request.range && request.range->spreads;
  if (is_tiny || spreads || request.kind == Kind::all_to_all) write_payload(request, rank_, world_size(), mine.payload);
  mine.all_placed = !is_tiny && place(request, mine);
  mine.label = request.site == nullptr ? 0 : request.site->label;
  write_text(mine.where, sizeof(mine.where), request.line());
  operation.published = true;
  keep_judged_near(operation.number);
  set(Counter::arrived, operation.number);
}

// Of the words only this one is not written by every operation, and one that stays 2^31 behind is taken for ahead. All
// operations whose rows are used again are over, so it may say that they were judged.
void Group::keep_judged_near(std::uint32_t number) {
  const std::uint32_t over = number - static_cast<std::uint32_t>(num_rows);
  std::atomic<std::uint32_t>& judged = word(Counter::judged, rank_).value;
  if (!has_reached(judged.load(std::memory_order_relaxed), over)) judged.store(over, std::memory_order_relaxed);
}

void Group::note_core() {
  const int core = ::sched_getcpu() + 1;
  if (core == core_plus_one_) return;  // written only when it changes
  core_plus_one_ = core;
  blocks_[rank_].core_plus_one.store(core, std::memory_order_relaxed);
}

void Group::set(Counter counter, std::uint32_t value) {
  note_core();
  word(counter, rank_).value.store(value, std::memory_order_release);
  ring_peers();
}

void Group::ring_peers() {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // our word before their bells
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    if (peer != rank_) blocks_[peer].bell.ring_if_waiting_for(static_cast<std::uint32_t>(rank_));
  }
}

std::size_t Group::first_behind(Condition condition) const {
  for (std::size_t i = 1; i < world_size(); ++i) {
    const std::size_t peer = (rank_ + i) % world_size();  // not everybody looks at the same one first
    if (!has_reached(word(condition.counter, peer).value.load(std::memory_order_acquire), condition.target))
      return peer;
  }
  return world_size();
}

std::vector<std::size_t> Group::behind(const Operation& operation) const {
  std::vector<std::size_t> found;
  for (std::size_t peer = 0; peer < world_size(); ++peer) {
    if (has_reached(blocks_[peer].arrived.value.load(std::memory_order_acquire), operation.number)) continue;
    found.push_back(settings_.names.empty() ? peer : settings_.names.at(peer));
  }
  return found;
}

void Group::progress() {
  move_on();
  if (is_noted_busy_) note_busy();
}

template <typename Act>
void Group::guard(Act act) {
  try {
    act();
  } catch (const GroupError& error) {
    break_quietly(error.trouble, error.what());
  } catch (const std::bad_alloc&) {  // in the middle of an operation, which cannot be restarted
    break_quietly(Trouble::no_memory, "Rank " + settings_.name_of(rank_) + " has no memory left.");
  } catch (const std::exception& error) {  // from a callback; nobody would continue these operations
    break_quietly(Trouble::aborted, "Rank " + settings_.name_of(rank_) + " gave up: " + error.what() + ".");
  }
}

void Group::move_on() {
  guard([&] {
    if (!messages_->idle()) messages_->progress();
    progress_collectives();
  });
}

// Whether the next operation may take the short way: nothing else is under way, and no other group has to be moved
// meanwhile.
bool Group::has_nothing_else() const { return queue_.empty() && messages_->idle() && busy_groups().empty(); }

// The short way of an operation whose caller waits: it is not lined up, and nobody sleeps. Returns whether it is over.
// If not, because ranks are late or differ, it goes on in the queue from where it is.
bool Group::finish_quickly(Operation& operation) {
  if (!row_is_free(operation.number)) return false;
  bool is_over = false;
  guard([&] {
    publish(operation);
    operation.waits_for = {Counter::arrived, operation.number};
    if (!come_at_once(operation.waits_for)) return;
    const Sameness same = sameness(operation.number);
    if (!same.descriptions || !same.labels) return;
    operation.task = start(*this, operation);
    operation.started = true;
    while (!operation.task.done()) {
      if (!come_at_once(operation.waits_for)) return;
      operation.task.resume();
    }
    deliver(operation);
    is_over = true;
  });
  if (broken_) std::rethrow_exception(broken_);
  return is_over;
}

// Whether every rank reaches it in so short a time that nothing else could be done meanwhile.
bool Group::come_at_once(Condition condition) const {
  for (std::size_t i = 1; i < world_size(); ++i) {
    const std::size_t peer = (rank_ + i) % world_size();
    const auto& value = word(condition.counter, peer).value;
    for (int looks = 0; !has_reached(value.load(std::memory_order_acquire), condition.target); ++looks) {
      // A rank that shares this one's core comes only when this one sleeps.
      const auto core = blocks_[peer].core_plus_one.load(std::memory_order_relaxed);  // 0: unknown
      if (looks == most_looks || (core != 0 && core == core_plus_one_)) return false;
      pause();
    }
  }
  return true;
}

void Group::progress_collectives() {
  bool again = true;
  while (again) {
    publish_what_can_be();
    move_tasks();
    const bool has_finished = !queue_.empty() && queue_.front()->finished;
    while (!queue_.empty() && queue_.front()->finished) queue_.pop_front();
    again = has_finished && !queue_.empty() && !queue_.back()->published;  // perhaps held up by one that finished
  }
}

void Group::publish_what_can_be() {
  for (const auto& operation : queue_) {
    if (operation->published) continue;
    if (!row_is_free(operation->number)) {
      operation->waits_for = {Counter::worked, operation->number - static_cast<std::uint32_t>(num_rows)};
      break;
    }
    if (operation->uses_earlier && has_reached(operation->after, queue_.front()->number)) {
      operation->waits_for = {Counter::arrived, operation->after};
      break;
    }
    publish(*operation);
    operation->waits_for = {Counter::arrived, operation->number};
  }
}

void Group::move_tasks() {
  for (const auto& operation : queue_) {
    if (!operation->published) break;
    if (!operation->started) {
      if (first_behind(operation->waits_for) != world_size()) break;
      if (!operation->compared) compare(*operation);
      if (first_behind(operation->waits_for) != world_size()) break;  // a verdict
      if (operation->circle) hear_verdicts(*operation);
      operation->task = start(*this, *operation);
      operation->started = true;
    }
    // A task that has just begun waits for nothing: its condition is already met.
    while (!operation->task.done() && first_behind(operation->waits_for) == world_size()) operation->task.resume();
    if (operation->task.done()) {
      deliver(*operation);
      operation->finished = true;
    }
    if (!operation->has_worked) break;  // the next one must not overtake it
  }
}

void Group::fail_everything(std::exception_ptr error) {
  broken_ = error;
  for (const auto& operation : queue_) operation->error = error;
  queue_.clear();
  messages_->fail_all(error);
}

Place Group::place_of(const void* data, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  for (const auto& window : windows_) {
    if (window == nullptr || window->stride == 0) continue;
    const std::byte* const base = window->region(rank_);
    if (first >= base && first + bytes <= base + window->bytes) {
      return {window->number, 0, static_cast<std::uint64_t>(first - base)};
    }
  }
  return {Place::elsewhere, 0, 0};
}

}  // namespace samebits
