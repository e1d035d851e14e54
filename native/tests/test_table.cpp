// The ranks' store: what it keeps, who waits, and what a killed process leaves behind.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include "checks.hpp"
#include "table.hpp"

using namespace samebits;
using namespace std::chrono_literals;

namespace {

std::shared_ptr<Memory> memory(std::size_t bytes = 1 << 20) {
  return std::make_shared<Memory>(Memory::create(bytes, false));
}

std::string named(const char* prefix, unsigned number) { return std::string(prefix).append(std::to_string(number)); }

// A child process that runs `body` and ends.
template <typename Body>
pid_t child(Body body) {
  const pid_t process = ::fork();
  if (process == 0) {
    body();
    ::_exit(0);
  }
  CHECK(process > 0);
  return process;
}

void expect_clean_end(pid_t process) {
  int status = 0;
  CHECK(::waitpid(process, &status, 0) == process);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void what_is_set_is_found_by_everybody() {
  const auto shared = memory();
  Table table(shared), other(shared);
  CHECK(table.num_keys() == 0 && !table.find("key") && !table.remove("key"));
  table.set("key", "value");
  table.set("", std::string("\0binary", 7));
  CHECK(other.find("key") == "value" && other.find("") == std::string("\0binary", 7));
  other.set("key", "");
  CHECK(table.find("key") == "" && table.num_keys() == 2);
  CHECK(table.has_all({"key", ""}) && !table.has_all({"key", "none"}));
  CHECK(table.find_all({"", "key"}) == std::vector<std::string>({std::string("\0binary", 7), ""}));
  CHECK(!table.find_all({"key", "none"}) && table.find_all({})->empty());
  CHECK(other.remove("key") && !table.find("key"));
  CHECK(table.num_keys() == 1 && table.keys() == std::vector<std::string>{""});
  table.append("log", "a");
  table.append("log", "b");
  CHECK(other.find("log") == "ab");
}

void numbers_and_comparisons_are_those_of_torch() {
  Table table(memory());
  CHECK(table.add("n", 3) == 3 && table.add("n", -5) == -2 && table.find("n") == "-2");
  table.set("word", "three");
  try {
    table.add("word", 1);
    CHECK(false);
  } catch (const std::invalid_argument& error) {
    CHECK(std::strstr(error.what(), "word") != nullptr);
  }
  CHECK(table.compare_set("c", "x", "new") == "x" && !table.find("c"));
  CHECK(table.compare_set("c", "", "one") == "one");
  CHECK(table.compare_set("c", "two", "three") == "one");
  CHECK(table.compare_set("c", "one", "two") == "two" && table.find("c") == "two");
}

void keys_that_share_a_slot_are_kept_apart() {
  Table table(memory());
  constexpr int count = 3000;  // about three for each slot
  for (int i = 0; i < count; ++i) table.set(named("k", i), std::to_string(i));
  for (int i = 0; i < count; i += 2) CHECK(table.remove(named("k", i)));
  CHECK(table.num_keys() == count / 2);
  for (int i = 0; i < count; ++i) CHECK(table.find(named("k", i)).has_value() == (i % 2 == 1));
}

void space_is_used_again() {
  Table table(memory(1 << 20));
  for (int i = 0; i < 20'000; ++i) table.set("same", std::string(1 + i % 5000, 'x'));  // 50 MB through 1 MB
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 400; ++i) table.set(std::to_string(i), std::string(700, 'y'));
    for (int i = 0; i < 400; ++i) CHECK(table.remove(std::to_string(i)));
  }
  table.set("large", std::string(400'000, 'z'));  // what was cut into small pieces is merged
  CHECK(table.find("large")->size() == 400'000 && table.num_keys() == 2);
}

void a_full_table_says_so_and_stays_as_it_was() {
  Table table(memory(128 << 10));
  int stored = 0;
  try {
    for (;; ++stored) table.set(std::to_string(stored), std::string(1000, 'x'));
  } catch (const std::runtime_error& error) {
    CHECK(std::strstr(error.what(), "full") != nullptr && std::strstr(error.what(), "128 KiB") != nullptr);
  }
  CHECK(stored > 50 && table.num_keys() == static_cast<std::uint64_t>(stored));
  for (int i = 0; i < stored; ++i) CHECK(table.find(std::to_string(i)) == std::string(1000, 'x'));
  try {
    table.set("0", std::string(200'000, 'x'));
    CHECK(false);
  } catch (const std::runtime_error&) {
  }
  CHECK(table.find("0") == std::string(1000, 'x'));
  CHECK(table.remove("0"));
  table.set("again", std::string(1000, 'x'));
}

void whoever_waits_wakes_when_all_keys_are_there() {
  const auto shared = memory();
  Table table(shared);
  const pid_t process = child([&] {
    Table own(shared);
    CHECK(own.wait({"a", "b"}, 60s));
    CHECK(own.find("a") == "1" && own.find("b") == "2");
    own.set("seen", "");
  });
  table.set("b", "2");
  CHECK(!table.wait({"a", "b"}, 20ms));
  table.set("a", "1");
  CHECK(table.wait({"seen"}, 60s));
  expect_clean_end(process);
}

// A wait that came only at the end of each slice would take 100 times 25 ms on average.
void a_waiting_process_is_woken_at_once() {
  const auto shared = memory();
  Table table(shared);
  const auto began = Clock::now();
  const pid_t process = child([&] {
    Table own(shared);
    for (int i = 0; i < 100; ++i) {
      CHECK(own.wait({named("to", i)}, 60s));
      own.set(named("back", i), "");
    }
  });
  for (int i = 0; i < 100; ++i) {
    table.set(named("to", i), "");
    CHECK(table.wait({named("back", i)}, 60s));
  }
  expect_clean_end(process);
  CHECK(Clock::now() - began < 1500ms);
}

void what_interrupts_a_wait_comes_out_of_it() {
  int calls = 0;
  Table table(memory(), [&] {
    if (++calls == 2) throw std::domain_error("a signal");
  });
  try {
    table.wait({"never"}, 60s);
    CHECK(false);
  } catch (const std::domain_error&) {
  }
  CHECK(calls == 2);
  table.set("key", "value");
}

void sums_of_many_threads_and_processes_are_right() {
  const auto shared = memory();
  constexpr int num_workers = 4, rounds = 2000;
  std::vector<pid_t> processes;
  for (int worker = 0; worker < num_workers; ++worker) {
    processes.push_back(child([&] {
      Table own(shared);
      for (int i = 0; i < rounds; ++i) own.add(named("sum", i % 3), 1);
    }));
  }
  Table table(shared);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < num_workers; ++worker) {
    threads.emplace_back([&] {
      for (int i = 0; i < rounds; ++i) table.add(named("sum", i % 3), 1);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const pid_t process : processes) expect_clean_end(process);
  std::int64_t sum = 0;
  for (int i = 0; i < 3; ++i) sum += table.add(named("sum", i), 0);
  CHECK(sum == 2 * num_workers * rounds);
}

// A child that writes and removes until it is killed; every value shows whether it is whole. It counts what it
// has done in `done`, outside the table.
void write_for_ever(Table& table, std::atomic<std::int64_t>& done, unsigned seed) {
  std::minstd_rand random(seed);
  while (true) {
    const std::string key = named("k", random() % 40);
    if (random() % 4 == 0) {
      table.remove(key);
    } else {
      table.set(key, std::string(random() % 3000, key.back()));
    }
    table.add("done", 1);
    done.fetch_add(1);
  }
}

[[maybe_unused]] void a_process_killed_at_any_instruction_does_no_harm() {
  const auto shared = memory(256 << 10), counter = memory(4096);
  auto& done = *reinterpret_cast<std::atomic<std::int64_t>*>(counter->data());
  Table table(shared);
  std::minstd_rand random(7);
  int kills = 0;
  for (; kills < 100 || (table.repairs() < 3 && kills < 5000); ++kills) {
    const std::int64_t sum_before = table.add("done", 0), done_before = done.load();
    const pid_t process = child([&] {
      Table own(shared);
      write_for_ever(own, done, static_cast<unsigned>(kills));
    });
    while (done.load() == done_before) std::this_thread::yield();
    for (unsigned i = random() % 20'000; i != 0; --i) samebits::pause();
    CHECK(::kill(process, SIGKILL) == 0);
    const std::int64_t sum = table.add("done", 0) - sum_before;  // before the dead child is buried
    CHECK(::waitpid(process, nullptr, 0) == process);
    const std::int64_t counted = done.load() - done_before;
    CHECK(table.add("done", 0) - sum_before >= sum && table.add("done", 0) - sum_before - counted <= 1);
    CHECK(table.add("done", 0) - sum_before >= counted);
    for (const std::string& key : table.keys()) {
      const auto value = table.find(key);
      CHECK(value && (key == "done" || *value == std::string(value->size(), key.back())));
    }
    CHECK(table.keys().size() == table.num_keys());
  }
  CHECK(table.repairs() >= 3);
  for (const std::string& key : table.keys()) table.remove(key);
  table.set("all", std::string(120'000, 'x'));  // nothing has leaked
}

}  // namespace

int main() {
  what_is_set_is_found_by_everybody();
  numbers_and_comparisons_are_those_of_torch();
  keys_that_share_a_slot_are_kept_apart();
  space_is_used_again();
  a_full_table_says_so_and_stays_as_it_was();
  whoever_waits_wakes_when_all_keys_are_there();
  a_waiting_process_is_woken_at_once();
  what_interrupts_a_wait_comes_out_of_it();
  sums_of_many_threads_and_processes_are_right();
#ifndef __SANITIZE_THREAD__  // which does not know that pthread_mutex_timedlock may inherit a lock
  a_process_killed_at_any_instruction_does_no_harm();
#endif
}
