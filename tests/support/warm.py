"""`samebits run` in a test without importing torch: a server imports it once, and forks launchers and nurseries.

    the test            -> start     a launcher is forked: its folder, environment and standard streams are the test's
    the launcher forks a spare process and becomes `python -m samebits run ...`
    it starts a nursery -> the spare process becomes that nursery, with torch, as if it had imported it

Importing takes 2 to 5 s of a core for each run, and there are hundreds. Everything after the imports is the real thing:
the same programs in the same tree of processes; /proc shows their own command lines and environments. A nursery that the
server cannot stand for (fresh interpreters, options of Python) is started as always, and so is a launcher
when variables that are read at imports are set.

Only the end is shorter, see `samebits.testing.short_end`; runs that are started cold end as they do for users.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

NURSERY = "samebits.rank.start.nursery"
MODULES = (
    "samebits.testing.short_end",
    "torch",
    "torch._dynamo",
    "samebits.rank.run.start",
    "samebits.cli.main",
    "samebits.cli.run",
    NURSERY,
)
READ_AT_IMPORT = (
    "PYTHON",
    "LD_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "TORCH",
    "PYTORCH",
    "CUDA",
    "SAMEBITS_",
)
"""What variables begin with that a library, or Python, may have read when the server was started."""
OURS = ("SAMEBITS_TEST_", "SAMEBITS_KEY")
"""But these, which are read when a run begins."""
ROOM = 1 << 16
"""Bytes for another command line, and for another environment, where the kernel shows them."""
MOST_BYTES = 1 << 18

Task = Callable[[], int | None]


class Process(Protocol):
    """What tests use of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Launched:
    """A launcher that the server has forked: a `Process`."""

    def __init__(self, server: Server, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self.returncode = self._server.code_of(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.returncode = self._server.code_of(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("samebits run", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """The test's end of the server, which ends with this process."""

    def __init__(self) -> None:
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()
        command = [sys.executable, "-P", __file__, str(theirs.fileno()), "x" * ROOM]
        self._environment = {**os.environ}
        variables = {"PYTHONHASHSEED": "0", **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        variables["SAMEBITS_TEST_ROOM"] = "x" * ROOM
        self._process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def can_start(self, variables: Mapping[str, str]) -> bool:
        """Whether a launcher with these variables would be the same as one that imports everything itself."""
        names = self._environment.keys() | variables.keys()
        changed = {name for name in names if self._environment.get(name) != variables.get(name)}
        return not any(name.startswith(READ_AT_IMPORT) and not name.startswith(OURS) for name in changed)

    def start(
        self,
        arguments: Sequence[str],
        place: Path,
        variables: Mapping[str, str],
        streams: Sequence[int],
        holder: int | None = None,
    ) -> Launched:
        """Fork a launcher.

        Args:
            arguments: those of `python -m samebits`.
            place: its working directory.
            variables: its environment.
            streams: descriptors of its standard input, output and error.
            holder: a process of the host of `tests.support.hosts` on which it is to be.
        """
        order = json.dumps([list(arguments), str(place), dict(variables), holder]).encode()
        with self._lock:
            socket.send_fds(self._end, [order], list(streams))
            while (told := self._hear())[0] != "started":
                pass
        return Launched(self, told[1])

    def code_of(self, pid: int, timeout_s: float | None) -> int | None:
        """A launcher's exit code, negative for a signal; None while it runs."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            with self._lock:
                if pid in self._codes:
                    return self._codes[pid]
                if not select.select([self._end], [], [], None if left is None else min(left, 0.05))[0]:
                    if left is not None and left <= 0.05:
                        return None
                    continue
                self._hear()

    def _hear(self) -> list[Any]:
        message = self._end.recv(MOST_BYTES)
        assert message, "the server that forks launchers has ended"
        told: list[Any] = json.loads(message)
        if told[0] == "ended":
            self._codes[told[1]] = os.waitstatus_to_exitcode(told[2])
        return told


def enter(process: int, *kinds: str) -> None:
    """Move this process, which has one thread, into namespaces of another one."""
    for kind in kinds:
        with Path(f"/proc/{process}/ns/{kind}").open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"the {kind} namespace of process {process}")
    platform._uname_cache = None  # type: ignore[attr-defined]  # the name of another host


def serve(end: socket.socket) -> Task | None:
    """Fork launchers until the test is over; in a forked process, return what it is to do."""
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([end.fileno(), *running], [], [])
        for descriptor in running.keys() & set(ready):
            pid = running.pop(descriptor)
            os.close(descriptor)
            end.send(json.dumps(["ended", pid, os.waitpid(pid, 0)[1]]).encode())
        if end.fileno() not in ready:
            continue
        message, streams, _, _ = socket.recv_fds(end, MOST_BYTES, 3)
        if not message:
            return None
        pid = os.fork()
        if not pid:
            end.close()
            for descriptor in running:
                os.close(descriptor)
            return _launcher(json.loads(message), streams)
        for descriptor in streams:
            os.close(descriptor)
        running[os.pidfd_open(pid)] = pid
        end.send(json.dumps(["started", pid]).encode())


def _launcher(order: list[Any], streams: Sequence[int]) -> Task:
    """In a process of its own: become the launcher, with a spare process for its nursery."""
    arguments, place, variables, holder = order
    if holder is not None:
        enter(holder, "net", "uts", "ipc", "mnt")
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(place)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    spare = os.fork()
    if not spare:
        mine.close()
        return _nursery(theirs)
    theirs.close()
    hash_seed = os.environ["PYTHONHASHSEED"]
    spawn, left = os.posix_spawn, [spare]

    def posix_spawn(path: str, words: list[str], told: Mapping[str, str], **how: Any) -> int:
        is_mine = list(words[1:4]) == ["-P", "-m", NURSERY] and words[5]
        is_alike = told.get("PYTHONHASHSEED") == hash_seed and "SAMEBITS_PORTABLE_BLAS" not in told
        if not (left and is_mine and is_alike):
            return spawn(path, words, told, **how)
        socket.send_fds(mine, [json.dumps([list(words), dict(told)]).encode()], [int(words[4])])
        return left.pop()

    os.posix_spawn = posix_spawn  # type: ignore[assignment]
    return _become([sys.executable, "-m", "samebits", *arguments], variables, "samebits.cli.main")


def _nursery(end: socket.socket) -> Task:
    """In the spare process: become the nursery when there is to be one."""
    message, descriptors, _, _ = socket.recv_fds(end, MOST_BYTES, 1)
    if not message:
        os._exit(0)
    end.close()
    words, variables = json.loads(message)
    words[4] = str(descriptors[0])
    libgomp = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line)
    ctypes.CDLL(libgomp).omp_set_num_threads(int(variables["OMP_NUM_THREADS"]))  # the server had 1 when it loaded it
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return _become(words, variables, NURSERY)


def _become(command: Sequence[str], variables: Mapping[str, str], module: str) -> Task:
    """Let this process look, to itself and to others, as if it had been started like this; its task is the module's `main`."""
    os.environ.clear()
    os.environ.update(variables)  # copies: nothing looks at the memory any more that the kernel shows
    show(command, variables)
    sys.orig_argv[:] = command
    tempfile.tempdir = None  # it may be another one now
    sys.argv[:] = [module, *command[command.index("-m") + 2 :]]
    if "-P" not in command:
        sys.path.insert(0, str(Path.cwd()))
    gc.enable()
    task: Task = importlib.import_module(module).main
    return task


_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
"""What tells the kernel where the command line and the environment end that it shows; it needs no right."""
_NO_FILE = 0xFFFFFFFF


class _Map(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk")),
        *((name, ctypes.c_uint64) for name in ("start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


_PLACES = {"start_code": 23, "end_code": 24, "start_stack": 25, "start_data": 42, "end_data": 43, "start_brk": 44}
"""Which field of /proc/self/stat, counted from the state."""
_ROOMS = ((45, 46), (47, 48))
"""Those of the command line's beginning and end, and of the environment's."""


@dataclass(frozen=True)
class Room:
    """The memory that a text may fill."""

    begin: int
    end: int

    def write(self, words: Iterable[str]) -> int:
        """Write as many bytes as there is room for, and NULs behind them; where the text ends."""
        text = b"".join(os.fsencode(word) + b"\0" for word in words)[: self.end - self.begin - 1]
        ctypes.memmove(self.begin, text.ljust(self.end - self.begin, b"\0"), self.end - self.begin)
        return self.begin + len(text)


@cache
def _rooms() -> tuple[Room, Room]:
    """The memory of this program's first command line and environment; the same in what it forks."""
    fields = _fields()
    command, environment = (Room(fields[begin], fields[end]) for begin, end in _ROOMS)
    return command, environment


def show(words: Iterable[str], variables: Mapping[str, str] | None = None) -> None:
    """Let the kernel show these.

    Args:
        words: the command line.
        variables: the environment, which nothing may use any more as it was at the start; None: it is shown as it is.
    """
    command, environment = _rooms()
    fields = _fields()
    ends = {"arg_start": command.begin, "arg_end": command.write(words)}
    ends |= {"env_start": environment.begin, "env_end": fields[_ROOMS[1][1]]}
    if variables is not None:
        ends["env_end"] = environment.write(f"{name}={value}" for name, value in variables.items())
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    places = {name: fields[place] for name, place in _PLACES.items()}
    told = _Map(**places, **ends, brk=libc.sbrk(0), exe_fd=_NO_FILE)
    libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(told), ctypes.c_ulong(ctypes.sizeof(told)), 0)


def _fields() -> list[int]:
    """The fields of /proc/self/stat from the state on; letters are 0."""
    words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return [int(word) if word.lstrip("-").isdecimal() else 0 for word in words]


def main() -> None:
    """The server; and, in forked processes, a launcher or a nursery."""
    end = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(end.fileno(), False)
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    task = serve(end)
    if task is not None:
        sys.exit(task())


if __name__ == "__main__":
    main()
