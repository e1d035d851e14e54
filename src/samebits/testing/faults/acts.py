"""What happens to a process when its fault has come. Each function is one kind of `plan.KINDS`.

Runs in: the rank or loader worker that a fault happens to; a thread named fetcher raises for `dead-thread`.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import itertools
import multiprocessing
import os
import queue
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from samebits.errors import EnvironmentFailure, UsageError
from samebits.testing.faults.plan import LASTS_S, Fault

SCRIPTS_OWN = frozenset({"skip", "break", "evaluate"})
"""What only the script can do."""
MOST_ROOM_BYTES = 1 << 30
CONTROL_GROUPS = Path("/sys/fs/cgroup")
_PREFIX = "samebits-fault-"
_slowness_s: list[float] = []


def act(fault: Fault) -> None:
    """Let it happen to the calling process; most kinds do not return."""
    if fault.kind in SCRIPTS_OWN:
        return
    if fault.kind in LASTS_S:
        {"sleep": time.sleep, "slow": _slowness_s.append}[fault.kind](fault.seconds or LASTS_S[fault.kind])
    elif fault.kind == "disk-full":
        fill(Path(fault.path))
    else:
        _ACTS[fault.kind]()


def slow_down() -> None:
    """Sleep in this step if a fault has made the process slow."""
    for seconds in _slowness_s:
        time.sleep(seconds)


def kill() -> None:
    """End without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    """Read where nothing is."""
    ctypes.string_at(0)


def fail() -> NoReturn:
    """Raise as a script does."""
    raise RuntimeError("a fault was asked for here")


def leave() -> NoReturn:
    """End too early, as if all were well."""
    sys.exit(0)


def run_out_of_memory() -> None:
    """Ask for more than any machine has: of torch, if the script uses it, else of Python."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.empty(1 << 50, dtype=torch.uint8, device="cpu")
    bytearray(1 << 50)


def be_killed_for_memory() -> None:
    """Allocate above the limit of a control group until the kernel ends this process."""
    limit = str(64 << 20)
    enter_control_group("memory", {"memory.limit_in_bytes": limit}, {"memory.max": limit})
    kept = [os.urandom(8 << 20) for _ in range(64)]
    raise EnvironmentFailure(f"the kernel has not ended this process, which has {len(kept)} blocks above its limit")


def stop() -> None:
    """Stop all threads of this process until SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def spin() -> NoReturn:
    """Use a core without an end."""
    while True:
        pass


def hold_gil() -> None:
    """Loop in C, where no other thread of Python ever gets its turn."""
    collections.deque(itertools.repeat(None), maxlen=0)


def deadlock() -> None:
    """Wait for a lock that this thread has."""
    lock = threading.Lock()
    with lock:
        lock.acquire()


def wait_for_dead_thread() -> None:
    """Wait for a result that will not come: its thread has raised."""
    results: queue.Queue[int] = queue.Queue()
    threading.Thread(target=fail, name="fetcher").start()
    results.get()


def wait_for_file_lock() -> None:
    """Wait for a file lock that nobody releases: another opening of the file has it."""
    with tempfile.TemporaryFile() as first, Path(f"/proc/self/fd/{first.fileno()}").open("rb+") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)


def fill_pipe() -> None:
    """Write until there is no room, which nobody makes."""
    _, writer = os.pipe()
    while True:
        os.write(writer, bytes(1 << 16))


def ask() -> None:
    """Ask somebody who may not be there."""
    input("go on? ")


def block() -> None:
    """Wait in the kernel for a child that never comes to its program: only SIGKILL ends the wait (state D)."""
    libc, size, vfork, dies_with_parent, parent = ctypes.CDLL(None), 1 << 18, 0x4000, 1, os.getpid()

    def child(_: int) -> int:
        libc.prctl(dies_with_parent, signal.SIGKILL)
        # [Note: why the parent is compared]
        # The rank may have died between fork and prctl. Then this child would wait for ever.
        return int(libc.pause()) if libc.getppid() == parent else 1

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    stack, begins = ctypes.create_string_buffer(size), kind(child)
    top = (ctypes.addressof(stack) + size) & ~15
    libc.clone.argtypes = [kind, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    libc.clone(begins, top - 64, vfork | signal.SIGCHLD, None)


def throttle() -> None:
    """Have a twentieth of a core from now on."""
    old = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "5000"}
    enter_control_group("cpu", old, {"cpu.max": "5000 100000"})


def mismatch() -> None:
    """Exchange something that the others do not."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        raise UsageError("The fault 'mismatch' needs torch.distributed.", "Call init_process_group before it happens.")
    torch.distributed.all_reduce(torch.ones(3, dtype=torch.float64, device="cpu"))


def _to_a_worker(number: signal.Signals) -> None:
    workers = multiprocessing.active_children()
    if not workers:
        raise UsageError("The rank has no loader worker at this step.", "Use a DataLoader with num_workers=1.")
    assert workers[0].pid is not None
    os.kill(workers[0].pid, number)


def kill_worker() -> None:
    """End one loader worker."""
    _to_a_worker(signal.SIGKILL)


def stop_worker() -> None:
    """Stop one loader worker."""
    _to_a_worker(signal.SIGSTOP)


def fill(folder: Path) -> None:
    """Fill a small file system with a file in this folder.

    Raises:
        UsageError: it has so much room that it is not one for tests.
    """
    if shutil.disk_usage(folder).free > MOST_ROOM_BYTES:
        raise UsageError(
            f"The file system of {folder} has more than 1 GiB of room.", "Name a folder on a small tmpfs of your own."
        )
    with suppress(OSError), (folder / "filled-by-a-fault").open("wb", buffering=0) as file:
        # Down to single bytes: a file system without room for a block may have some for a small write.
        for size in (1 << 20, 1 << 10, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass


def take_lo_down() -> None:
    """Take the loopback interface of this network namespace down.

    Raises:
        UsageError: another interface is up, so the namespace is not one for tests.
    """
    get, put, is_up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:

        def flags(name: str) -> int:
            record = fcntl.ioctl(any_socket, get, struct.pack("16sh14x", name.encode(), 0))
            return int(struct.unpack("16sh14x", record)[1])

        if any(flags(name) & is_up for _, name in socket.if_nameindex() if name != "lo"):
            raise UsageError("This is not a network of its own.", "Start the run with `unshare --net`.")
        fcntl.ioctl(any_socket, put, struct.pack("16sh14x", b"lo", flags("lo") & ~is_up))


_ACTS = {
    "kill": kill,
    "segfault": segfault,
    "raise": fail,
    "leave": leave,
    "out-of-memory": run_out_of_memory,
    "killed-for-memory": be_killed_for_memory,
    "stop": stop,
    "spin": spin,
    "hold-gil": hold_gil,
    "deadlock": deadlock,
    "dead-thread": wait_for_dead_thread,
    "file-lock": wait_for_file_lock,
    "full-pipe": fill_pipe,
    "input": ask,
    "blocked": block,
    "throttle": throttle,
    "mismatch": mismatch,
    "kill-worker": kill_worker,
    "stop-worker": stop_worker,
    "lo-down": take_lo_down,
}


# A control group of its own for the calling process; needs root


def enter_control_group(controller: str, old: dict[str, str], new: dict[str, str]) -> None:
    """Move the calling process into a new group with limits.

    Args:
        controller: `cpu` or `memory`.
        old: what to write into which file where each controller has its own tree (version 1).
        new: the same for version 2.

    Raises:
        EnvironmentFailure: the kernel, or whoever runs this container, does not allow it.
    """
    tree = CONTROL_GROUPS / controller
    parent, limits = (tree / _own_path(controller), old) if tree.is_dir() else (CONTROL_GROUPS, new)
    group = parent / f"{_PREFIX}{os.getpid()}"
    try:
        group.mkdir()
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        remove_control_groups(os.getpid())
        raise EnvironmentFailure(f"a control group for {controller} cannot be made here: {error}") from None


def remove_control_groups(pid: int) -> None:
    """Remove the groups that this process, which has ended, has made."""
    for group in CONTROL_GROUPS.rglob(f"{_PREFIX}{pid}"):
        with suppress(OSError):
            group.rmdir()


def _own_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.strip("/")
    return ""
