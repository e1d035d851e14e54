// A rank of oneCCL: `by_oneccl SOCKET NAME KEYS`, under Intel MPI's mpirun, which brings the ranks to their places
// (PMI_RANK and PMI_SIZE). The address of rank 0's store goes through the file KEYS.
#include <chrono>
#include <cstring>
#include <fstream>
#include <oneapi/ccl.hpp>
#include <thread>

#include "slices.hpp"

// The static library for CPUs leaves out its compiler's own copies, and the hooks of a profiler: none is there.
extern "C" {
void* _intel_fast_memcpy(void* target, const void* source, std::size_t size) {
  return std::memcpy(target, source, size);
}
void* _intel_fast_memset(void* target, int value, std::size_t size) { return std::memset(target, value, size); }
void *__itt_string_handle_create_ptr__3_0, *__itt_task_begin_ptr__3_0, *__itt_task_end_ptr__3_0;
void *__itt_metadata_add_ptr__3_0, *__itt_thread_set_name_ptr__3_0, *__itt_domain_create_ptr__3_0;
void *__itt_event_create_ptr__3_0, *__itt_event_start_ptr__3_0, *__itt_event_end_ptr__3_0;
}

namespace {

std::shared_ptr<ccl::kvs> keys(int rank, const std::string& path) {
  ccl::kvs::address_type address;
  if (rank == 0) {
    auto store = ccl::create_main_kvs();
    address = store->get_address();
    std::ofstream(path + ".new", std::ios::binary).write(address.data(), address.size());
    std::rename((path + ".new").c_str(), path.c_str());
    return store;
  }
  std::ifstream file;
  while (file.open(path, std::ios::binary), !file) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  file.read(address.data(), address.size());
  return ccl::create_kvs(address);
}

}  // namespace

int main(int num_words, char** words) {
  const char *rank_text = std::getenv("PMI_RANK"), *size_text = std::getenv("PMI_SIZE");
  if (num_words != 4 || rank_text == nullptr || size_text == nullptr) return 2;
  const int rank = std::atoi(rank_text), num_ranks = std::atoi(size_text);
  ccl::init();
  const auto group = ccl::create_communicator(num_ranks, rank, keys(rank, words[3]));
  peers::Rank self{
      words[2], rank, num_ranks,
      [&](float* data, std::size_t count) { ccl::allreduce(data, data, count, ccl::reduction::sum, group).wait(); },
      [&] { ccl::barrier(group).wait(); }};
  peers::serve(self, words[1]);
}
