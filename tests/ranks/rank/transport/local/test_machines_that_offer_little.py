"""Machines that refuse calls, hide files, give one CPU, move their clocks: the same bits, no hang."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from samebits.rank.transport.local import native
from tests.support import refused_calls
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(not native.available(), reason="needs the compiled part")]

SCRIPT = """
import hashlib, torch, samebits
run = samebits.init(seed=0, lanes=4, threads=1)
model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
data = torch.utils.data.TensorDataset(torch.randn(48, 64), torch.randint(0, 10, (48,)))
loader = torch.utils.data.DataLoader(data, batch_size=16)
model, optimizer, loader = run.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
if run.rank == 0:
    bits = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters()))
    print("bits", bits.hexdigest())
"""
CLOCKS = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
/* The time of day jumps by hours and months every 20 ms; the other clocks stand still half of the time, and go back now and then. */
int clock_gettime(clockid_t clock, struct timespec* now) {
  static const long by[] = {0, 7200, -7200, 86400 * 200, -86400 * 200, 3};
  struct timespec steady;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &steady);
  const long tick = steady.tv_sec * 50 + steady.tv_nsec / 20000000;
  if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += by[tick % 6];
  if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME) {
    if (tick % 4 == 1) now->tv_nsec = 0;
    if (tick % 50 == 7 && now->tv_sec > 5) now->tv_sec -= 5;
  }
  return 0;
}
time_t time(time_t* place) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (place != 0) *place = now.tv_sec;
  return now.tv_sec;
}
"""
COMPILER = shutil.which("cc") or shutil.which("gcc")
OWN_MOUNTS = ("unshare", "--mount", "sh", "-c")
FILES = "mount -t tmpfs none {0}"
HIDDEN = {
    "topology": FILES.format("/sys/devices/system/cpu"),
    "start": FILES.format("/proc/sys/kernel/random"),
    "control groups": FILES.format("/sys/fs/cgroup"),
    "huge pages": FILES.format("/sys/kernel/mm"),
    "shared memory": FILES.format("/dev/shm") + " -o ro",
}
LATE_CALLS = (
    *(
        "process_vm_readv",
        "process_vm_writev",
        "futex_waitv",
        "futex_wake",
        "futex_wait",
        "futex_requeue",
        "pidfd_open",
    ),
    *("pidfd_send_signal", "pidfd_getfd", "sched_yield", "sched_setaffinity", "getcpu", "rseq", "membarrier"),
)


def can_mount() -> bool:
    try:
        return subprocess.run([*OWN_MOUNTS, HIDDEN["start"]], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


MOUNTS = can_mount()


def without_files(*what: str) -> tuple[str, ...]:
    if not MOUNTS:
        pytest.skip("this system lets nobody hide files from a command")
    return (*OWN_MOUNTS, " && ".join(HIDDEN[one] for one in what) + ' && exec "$@"', "sh")


def without_calls(*names: str, error: int = errno.ENOSYS) -> tuple[str, ...]:
    if not refused_calls.can_refuse():
        pytest.skip("the numbers of this processor's calls are not known")
    return sys.executable, refused_calls.__file__, str(error), ",".join(names)


def on_one_cpu() -> tuple[str, ...]:
    return "taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))


def moving_clocks(place: Path) -> dict[str, str]:
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    (place / "clocks.c").write_text(CLOCKS)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", "clocks.so", "clocks.c"], cwd=place, check=True)
    return {"LD_PRELOAD": str(place / "clocks.so")}


def run(
    place: Path, ranks: int, wrapper: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    (place / "script.py").write_text(SCRIPT)
    command = [*wrapper, sys.executable, "-m", "samebits", "run", "-n", str(ranks), "script.py"]
    own = {**os.environ, "XDG_CACHE_HOME": str(place), **(env or {})}
    return subprocess.run(command, cwd=place, env=own, capture_output=True, text=True, timeout=100, check=False)


def bits(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    [found] = re.findall("^bits ([0-9a-f]{64})$", done.stdout, re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bits(run(tmp_path_factory.mktemp("undisturbed"), 1))


@promise(
    "bad-input-and-what-a-person-is-told",
    "Missing system calls, hidden files, clocks that jump and the sizes of pieces cost no bit; ranks that "
    "share one CPU exchange the same bits, and offer it to each other",
    also=[
        "test_every_choice_of_pieces_leaves_the_same_bits_whatever_the_other_ranks_were_given",
        "test_ranks_on_one_cpu_exchange_the_same_bits_as_on_all_of_them",
        "test_four_ranks_on_one_cpu_offer_it_to_each_other_instead_of_sleeping",
    ],
)
@pytest.mark.thorough
def test_four_ranks_on_one_cpu_of_a_machine_that_offers_nothing_have_the_bits_of_one_rank_elsewhere(
    tmp_path: Path, undisturbed: str
) -> None:
    nothing = (*without_files(*HIDDEN), *on_one_cpu(), *without_calls(*LATE_CALLS))
    assert bits(run(tmp_path, 4, nothing, moving_clocks(tmp_path))) == undisturbed


@pytest.mark.thorough
@pytest.mark.parametrize("what", HIDDEN)
def test_files_that_are_hidden_cost_no_bit(tmp_path: Path, undisturbed: str, what: str) -> None:
    assert bits(run(tmp_path, 2, without_files(what))) == undisturbed


@pytest.mark.thorough
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM], ids=["unknown", "forbidden"])
@pytest.mark.parametrize(
    "names", [("process_vm_readv", "futex_waitv"), ("pidfd_open",), ("sched_yield",), ("madvise",)]
)
def test_calls_that_are_refused_cost_no_bit(
    tmp_path: Path, undisturbed: str, names: tuple[str, ...], error: int
) -> None:
    assert bits(run(tmp_path, 2, without_calls(*names, error=error))) == undisturbed


@pytest.mark.thorough
def test_clocks_that_jump_cost_no_bit(tmp_path: Path, undisturbed: str) -> None:
    assert bits(run(tmp_path, 4, env=moving_clocks(tmp_path))) == undisturbed


def test_a_system_without_memory_files_is_told_in_one_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, 2, without_calls("memfd_create"))
    assert done.returncode == 2
    assert "memfd_create" in done.stderr
    assert "Traceback" not in done.stderr
    assert all(log.stat().st_size == 0 for log in tmp_path.glob("samebits-runs/*/logs/*")), "a rank has begun"


def test_without_the_compiled_part_the_bits_are_the_same_and_one_notice_says_what_is_slower(
    tmp_path: Path, undisturbed: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["samebits._native"] = None\n')
    done = run(tmp_path, 2, env={"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))})
    assert bits(done) == undisturbed
    assert done.stderr.count("the ranks talk over Gloo, not through shared memory") == 1
    assert "C++20 compiler" in done.stderr
