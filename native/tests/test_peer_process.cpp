// Watching another process by its descriptor.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.hpp"
#include "peer_process.hpp"
#include "process_descriptors.hpp"

namespace samebits {
namespace {

// A script has closed the descriptor, and its number means another process now; or the process has ended.
void a_descriptor_is_used_again_only_as_long_as_it_means_the_living_process() {
  pid_t children[2];
  for (pid_t& child : children) {
    child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  const auto first = PeerProcess::watch(children[0]), other = PeerProcess::watch(children[1]);
  CHECK(PeerProcess::watch(children[0]) == first && first != other);
  const auto descriptors = descriptors_of_processes();
  CHECK(descriptors.size() == 2 && ::dup2(descriptors[1], descriptors[0]) == descriptors[0]);
  CHECK(PeerProcess::watch(children[1]) == other);
  const auto second = PeerProcess::watch(children[0]);
  CHECK(second != first && !second->has_ended());
  ::kill(children[0], SIGKILL);
  ::waitpid(children[0], nullptr, 0);
  CHECK(second->has_ended() && PeerProcess::watch(children[0]) == nullptr);  // nobody has that number
  ::kill(children[1], SIGKILL);
  ::waitpid(children[1], nullptr, 0);
}

}  // namespace
}  // namespace samebits

int main() { samebits::a_descriptor_is_used_again_only_as_long_as_it_means_the_living_process(); }
