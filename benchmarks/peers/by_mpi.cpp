// A rank of Open MPI, MPICH or Intel MPI: `by_mpi LIBMPI SOCKET NAME`, under that library's mpirun.
//
// Nothing is compiled against an MPI, because Intel's runtime brings no headers: the library is opened by name, and the
// few handles are what the two ABIs say. MPICH's (Intel's too) are integers; Open MPI's are addresses of its objects.
#include <dlfcn.h>

#include <cstdint>

#include "slices.hpp"

namespace {

using Handle = std::uintptr_t;  // an int in MPICH's ABI, a pointer in Open MPI's; both are passed in a whole register

struct Handles {
  Handle world, floats, sum;
  void* in_place;
};

void* library = nullptr;

template <typename Function>
Function* function(const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

Handles handles() {
  const auto object = [](const char* name) { return reinterpret_cast<Handle>(dlsym(library, name)); };
  if (const Handle world = object("ompi_mpi_comm_world")) {
    return {world, object("ompi_mpi_float"), object("ompi_mpi_op_sum"), reinterpret_cast<void*>(1)};
  }
  return {0x44000000, 0x4c00040a, 0x58000003, reinterpret_cast<void*>(-1)};
}

}  // namespace

int main(int num_words, char** words) {
  if (num_words != 4) return 2;
  library = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto all_reduce = function<int(const void*, void*, int, Handle, Handle, Handle)>("MPI_Allreduce");
  const auto barrier = function<int(Handle)>("MPI_Barrier");
  const auto number = [](int (*call)(Handle, int*), Handle world) {
    int found = 0;
    call(world, &found);
    return found;
  };
  function<int(int*, char***)>("MPI_Init")(nullptr, nullptr);
  const Handles mpi = handles();
  peers::Rank self{words[3], number(function<int(Handle, int*)>("MPI_Comm_rank"), mpi.world),
                   number(function<int(Handle, int*)>("MPI_Comm_size"), mpi.world),
                   [=](float* data, std::size_t count) {
                     all_reduce(mpi.in_place, data, static_cast<int>(count), mpi.floats, mpi.sum, mpi.world);
                   },
                   [=] { barrier(mpi.world); }};
  peers::serve(self, words[2]);
  function<int()>("MPI_Finalize")();
}
