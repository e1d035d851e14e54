// One rank's membership in a group: its words, rows and windows, what is under way, and how it waits.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control.hpp"
#include "errors.hpp"
#include "memory.hpp"
#include "messages.hpp"
#include "operation.hpp"
#include "peer_process.hpp"
#include "wait_note.hpp"

namespace samebits {

// A memory of a group in which every rank has a region that all can read and write. It lives as long as somebody holds
// it.
struct Window {
  std::shared_ptr<Memory> memory;
  std::uint32_t number = 0;  // from 1, the same on every rank
  std::size_t bytes = 0;     // of one region
  std::size_t stride = 0;    // from one region to the next; 0 when there is one region for all ranks
  std::byte* region(std::size_t rank) const { return memory->data() + rank * stride; }
};

struct Verdict {
  bool belong_together = false;
  std::string lines;
};

struct Settings {
  Nanoseconds patience = std::chrono::hours(24 * 7);
  Tuning tuning;  // its pieces count on rank 0 only
  // Called now and then while this rank sleeps; may throw, which breaks the group (Python's signals).
  std::function<void()> while_waiting = [] {};
  // The numbers by which the user knows these ranks (a sub-group's ranks have others in the default group); empty:
  // their own.
  std::vector<std::size_t> names = {};
  std::string name_of(std::size_t rank) const { return std::to_string(names.empty() ? rank : names.at(rank)); }
  // The current caller, for what the ranks compare; null when nobody knows.
  std::function<const Site*()> caller = [] { return nullptr; };
  // The calling source line, for errors.
  std::function<std::string()> where = [] { return std::string(); };
  // Whether calls of this rank that other ranks make in another order (call_order.hpp) belong together all the same, as
  // alternatives of one `if` do; and their lines, in this order.
  std::function<Verdict(const std::vector<const Site*>&)> judge = [](const auto&) { return Verdict{}; };
  // Whether a rank's process has ended. By default its process tells (PeerProcess), or where its id is no number of
  // ours or there is no pidfd, its mark on the control block.
  std::function<bool(std::size_t)> has_ended = {};
  // As if it had done so many, none of them judged: for tests of counters that wrap.
  std::uint32_t operations_before = 0;
  bool named_memory = false;  // windows get a name in /dev/shm for a moment, because /proc is not shared
};

// Throws BadCall unless there can be a group of this many ranks.
std::size_t checked_size(std::size_t world_size);

// Of the order of a sum, as the ranks compare it.
std::uint64_t hash_of_order(const std::vector<std::uint8_t>& program, const std::vector<std::uint8_t>& leaves);

// What the ranks compare; `order` is the hash above.
Description describe(const Request& request, std::uint32_t number, std::uint64_t order);

// Several threads may use one group; the operations of a group must be called in the same order on all ranks.
class Group {
 public:
  // Call it before the group is made, and before the others hear that this rank has mapped the control block: they then
  // notice its end even if it never gets as far as joining.
  static void announce(const Memory& control, std::size_t rank, std::size_t world_size);
  // Collective: construct one on every rank, with the control block mapped. Returns when all have.
  Group(std::shared_ptr<Memory> control, std::size_t rank, std::size_t world_size, Settings settings);
  // Ranks as threads of one process, for tests: `control` points to a zeroed block of `Layout::total()` bytes.
  Group(std::byte* control, std::size_t rank, std::size_t world_size, Settings settings);
  Group(const Group&) = delete;
  ~Group();

  std::size_t rank() const { return rank_; }
  std::size_t world_size() const { return layout_.world_size; }
  const Pieces& pieces() const { return pieces_; }
  const Site* caller() const { return settings_.caller(); }

  // Begin; `wait` or `test` until it is finished. Throws BadCall before any other rank is involved.
  std::shared_ptr<Operation> begin(Request request);
  // Begin and wait. What can be done at once comes first; then `let_go` is called once, before anything that takes long
  // or waits for another thread.
  void run(Request&& request, const std::function<void()>& let_go);
  void run(Request request) {
    run(std::move(request), [] {});
  }
  // In place; the shortcut for few elements.
  void all_reduce(void* data, std::uint64_t count, Dtype dtype, ReduceOp op);
  void wait(Pending& pending, Nanoseconds patience);
  void wait(Pending& pending) { wait(pending, settings_.patience); }
  // Whether it is finished. Throws as `wait` does when it can no longer finish, but has no deadline.
  bool test(Pending& pending);

  std::shared_ptr<Message> send(const void* data, std::uint64_t bytes, Dtype dtype, std::size_t to, std::uint64_t tag,
                                const About& about = {});
  // From any rank when `from` is the world size; `Message::peer` is then the sender.
  std::shared_ptr<Message> receive(void* data, std::uint64_t bytes, Dtype dtype, std::size_t from, std::uint64_t tag,
                                   const About& about = {});

  // Collective: a new window with `bytes` for each rank, or `once` for all of them. Throws GroupError(no_memory) on
  // every rank, and the group goes on. What is in a window of the second kind is exchanged as if it were in none.
  std::shared_ptr<Window> allocate(std::size_t bytes, bool once = false);
  // Collective: tensors in this window are ordinary ones from now on. Call it between the same operations on every
  // rank, with nothing under way.
  void release(const Window& window);

  // The ranks that have not begun an operation, by the names that the user knows; also when it has failed.
  std::vector<std::size_t> behind(const Operation& operation) const;

  // Break the group for every rank. Any thread may call it.
  void abort(const std::string& reason, Trouble trouble = Trouble::aborted);
  // Throw if the group is broken; break it if a rank has ended without leaving. Any thread may call it.
  void look();
  // This rank makes no more calls, and gives up what is under way. Others that still wait for it get an error.
  void leave();

 private:
  Group(std::shared_ptr<Memory> memory, std::byte* control, std::size_t rank, std::size_t world_size,
        Settings settings);
  friend struct Everyone;
  friend struct Algorithms;

  void join();
  void watch(std::size_t peer);
  void wait_until_joined(std::size_t peer, Clock::time_point deadline);
  bool has_ended(std::size_t peer) const;
  void check_process() const;
  void check_usable() const;
  void complete(Request& request) const;
  std::shared_ptr<Operation> begin_now(Request request);

  // All below: with the mutex held.
  std::shared_ptr<Operation> number_one(Request&& request);
  void line_up(const std::shared_ptr<Operation>& operation);
  bool row_is_free(std::uint32_t number);
  void publish(Operation& operation);
  void keep_judged_near(std::uint32_t number);
  bool has_nothing_else() const;
  bool finish_quickly(Operation& operation);
  bool come_at_once(Condition condition) const;
  void progress();
  void move_on();  // progress, without telling the other groups
  // What goes wrong in `act` breaks the group.
  template <typename Act>
  void guard(Act act);
  void progress_collectives();
  void publish_what_can_be();
  void move_tasks();
  void note_busy();
  void fail_everything(std::exception_ptr error);

  Row& row(std::size_t rank, std::uint32_t number) const { return rows_[rank * num_rows + number % num_rows]; }
  Word& word(Counter counter, std::size_t rank) const {
    RankBlock& block = blocks_[rank];
    switch (counter) {
      case Counter::arrived:
        return block.arrived;
      case Counter::pieces:
        return block.pieces;
      case Counter::worked:
        return block.worked;
      default:
        return block.judged;
    }
  }
  void set(Counter counter, std::uint32_t value);
  void ring_peers();
  // The first rank that has not reached the condition; the world size when all have.
  std::size_t first_behind(Condition condition) const;
  std::byte* staging(std::size_t rank, std::uint32_t piece) const {
    return staging_ + (rank * num_buffers + piece % num_buffers) * pieces_.piece_bytes;
  }
  // Of two ranks. What the other one has filled, and this one read, this one fills next, two pieces later.
  std::byte* swapped(std::size_t rank, std::uint32_t piece) const {
    return swapped_ + (piece % 2 * 2 + (piece / 2 + rank) % 2) * Pieces::largest_swapped;
  }
  Place place_of(const void* data, std::size_t bytes) const;
  bool place(const Request& request, Row& mine) const;
  std::byte* at(const Place& place, std::size_t rank) const {
    return windows_[place.window - 1]->region(rank) + place.offset;
  }

  // What a waiting rank looks at without the mutex.
  struct Awaited {
    const std::atomic<std::uint32_t>* word = nullptr;  // null: messages
    std::uint32_t target = 0;
    std::uint32_t peer_plus_one = Bell::waits_for_any;
    std::size_t peer = 0;  // who is behind, if it waits for a word
    Condition condition;
    bool has_messages = false;
    bool others_busy = false;
    bool nothing = false;          // it can go on at once
    std::size_t message_peer = 0;  // the other end of the message; the world size: anybody
  };
  Awaited what_to_wait_for(const Pending& pending) const;
  bool wait_a_while(const Awaited& awaited);
  bool is_on_this_cpu(const Awaited& awaited) const;
  void note_core();
  void note(NotedWait& noted, const Pending& pending, const Awaited& awaited);
  struct Limit {
    Clock::time_point deadline = Clock::time_point::max();
    Nanoseconds patience{};  // that made it
  };
  void look_around(const Pending& pending, const Awaited& awaited, Limit limit);
  bool is_gone(std::size_t peer, const Awaited& awaited) const;
  std::string sentence_of_loss(std::size_t peer, const Pending& pending) const;
  // Throws when ranks call different operations. Where lines look as if calls were swapped, the ranks judge that.
  void compare(Operation& operation);
  struct Sameness {
    bool descriptions = true, labels = true;
  };
  Sameness sameness(std::uint32_t number) const;
  bool are_alike(const Operation& operation) const;
  void compare_labels(Operation& operation);
  void hear_verdicts(Operation& operation);
  std::string line_of(std::size_t rank, const Operation& operation) const;
  // all_to_all: `to` must expect what `from` sends it.
  void check_expected(const Operation& operation, std::size_t from, std::size_t to, std::uint64_t sent) const;
  std::string text_of(const Description& description) const;
  std::string sentence_of_disagreement(const Operation& operation);
  std::string sentence_of_swap(const Operation& operation) const;
  std::string text_of(const Operation& operation) const;
  std::string text_of(const Message& message) const;
  std::string sentence_of_lateness(const Pending& pending, std::size_t late, Nanoseconds patience) const;
  [[noreturn]] void break_group(Trouble trouble, const std::string& text);
  // The same, for a caller that goes on; what is under way is given up. With the mutex held.
  void break_quietly(Trouble trouble, const std::string& text);
  void throw_if_broken() const;

  std::shared_ptr<Memory> memory_;  // null for ranks as threads
  std::size_t rank_;
  Layout layout_;
  Settings settings_;
  Pieces pieces_;  // those of rank 0
  Header* header_ = nullptr;
  RankBlock* blocks_ = nullptr;
  Row* rows_ = nullptr;
  std::byte* staging_ = nullptr;
  std::byte* swapped_ = nullptr;                         // only of two ranks
  std::vector<std::shared_ptr<PeerProcess>> processes_;  // null: not watched this way
  std::uint32_t owner_;  // `num_forks` of the process that joined; a forked child is not a member

  std::mutex mutex_;
  std::vector<std::uint8_t> default_program_;  // the lane tree over the ranks
  std::uint64_t default_order_ = 0;            // its hash
  std::int32_t core_plus_one_ = 0;             // as written in this rank's block
  std::uint32_t number_ = 0;                   // of the last operation
  std::uint32_t piece_ = 0;                    // of the last piece that went through staging
  std::uint32_t rows_free_to_ = 0;             // rows up to this operation are known to be free
  std::deque<std::shared_ptr<Operation>> queue_;
  std::shared_ptr<Operation> spare_;  // one that nobody knows any more, or null
  CallOrder call_order_;
  std::unique_ptr<Messages> messages_;
  std::vector<std::shared_ptr<Window>> windows_;  // by number; null when released
  std::exception_ptr broken_;
  Clock::time_point last_test_look_;
  bool has_left_ = false;
  bool is_noted_busy_ = false;
};

}  // namespace samebits
