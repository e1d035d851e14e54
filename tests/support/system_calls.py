"""Run a function in a forked process, look at each of its system calls, and let one of them fail or be its last.

The process and what it starts are traced (`ptrace`), so a fault is where the kernel would have it: nothing of the program
is replaced. Linux on x86_64 only; `refusal` says why it cannot be done elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NAMES = {
    0: "read", 1: "write", 2: "open", 3: "close", 16: "ioctl", 17: "pread64", 18: "pwrite64", 20: "writev", 40: "sendfile", 44: "sendto", 74: "fsync",
    75: "fdatasync", 76: "truncate", 77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 85: "creat", 86: "link",
    87: "unlink", 88: "symlink", 141: "setpriority", 257: "openat", 258: "mkdirat", 263: "unlinkat", 264: "renameat", 285: "fallocate",
    316: "renameat2", 326: "copy_file_range",
}  # fmt: skip
"""Calls that are of interest here, by their number on x86_64."""
CHANGES = {*NAMES.values()} - {"read", "pread64", "close", "ioctl", "sendto", "setpriority"}
"""Calls that may change a disk; an `open` does when it creates or cuts a file."""
_FILE_FIRST = {"write", "pread64", "pwrite64", "writev", "fsync", "fdatasync", "ftruncate", "close", "fallocate"}
_AT = {"openat": 1, "mkdirat": 1, "unlinkat": 1}
"""By name, which argument is the path; the one before is the folder that it is relative to."""

_TRACEME, _CONT_TO_NEXT, _POKE, _SETOPTIONS, _GET_INFO = 0, 24, 6, 0x4200, 0x420E
_OPTIONS = 1 | 2 | 4 | 8 | 0x100000
"""Mark stops at system calls, follow forks and threads, kill all with the tracer."""
_ORIG_RAX, _RAX = 15 * 8, 10 * 8
_WALL = 0x40000000
_ENTRY = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long] * 4
_libc.ptrace.restype = ctypes.c_long


class Killed(Exception):  # noqa: N818 - what happened, not an error
    """Raise it in `look` to kill the process before the call."""


@dataclass
class Call:
    """A system call that is about to be made."""

    process: int
    number: int
    """How many were made before."""
    name: str
    args: tuple[int, ...]
    result: int = field(default=0)
    """What it returned, once it was made."""

    def text(self, argument: int) -> str:
        """The path at this argument, as it was given."""
        return _read(self.process, self.args[argument], 4096).split(b"\0", 1)[0].decode()

    def paths(self) -> list[str]:
        """The absolute paths that it works on."""
        if self.name in _FILE_FIRST:
            return [_link(f"/proc/{self.process}/fd/{self.args[0]}")]
        if self.name in _AT:
            return [self._absolute(_AT[self.name], self.args[0])]
        if self.name in ("renameat", "renameat2"):
            return [self._absolute(1, self.args[0]), self._absolute(3, self.args[2])]
        if self.name == "rename":
            return [self._absolute(0, None), self._absolute(1, None)]
        return [self._absolute(0, None)] if self.name in CHANGES else []

    def data(self) -> bytes:
        """What a `write` writes."""
        assert self.name == "write", self.name
        return _read(self.process, self.args[1], self.args[2])

    def _absolute(self, argument: int, folder: int | None) -> str:
        path = self.text(argument)
        if path.startswith("/"):
            return path
        here = None if folder is None else ctypes.c_int(folder & 0xFFFFFFFF).value
        base = f"/proc/{self.process}/" + ("cwd" if here in (None, -100) else f"fd/{here}")
        return os.path.join(_link(base), path)  # noqa: PTH118 - a text


@dataclass(frozen=True)
class Made:
    """A call that was made, with what it worked on at that time."""

    number: int
    name: str
    args: tuple[int, ...]
    result: int
    paths: tuple[Path, ...]
    data: bytes

    @classmethod
    def of(cls, call: Call) -> Made:
        data = call.data()[: max(call.result, 0)] if call.name == "write" else b""
        return cls(call.number, call.name, call.args, call.result, tuple(map(Path, call.paths())), data)

    @property
    def flags(self) -> int:
        """Those of an `open`, a `renameat2` or an `unlinkat`; 0 for other calls."""
        place = {"open": 1, "openat": 2, "renameat2": 4, "unlinkat": 2}.get(self.name)
        return 0 if place is None else self.args[place]


def refusal() -> str:
    """Why nothing can be traced here; empty if it can."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "system calls are traced on Linux on x86_64 only"
    try:
        watch(lambda: None, lambda call: None)
    except OSError as error:
        return f"the system does not let a process trace another one ({error})"
    return ""


def watch(
    work: Callable[[], None], look: Callable[[Call], int | None], seen: Callable[[Call], None] | None = None
) -> int:
    """Call `work` in a forked process, which inherits everything but threads.

    Args:
        work: it ends with exit code 1 if it raises.
        look: is called before each system call; it may return the number of an error, which the call then has instead of
            being made, or raise `Killed`.
        seen: is called after each.

    Returns:
        The exit code; the negative signal number if the process was killed.

    Raises:
        OSError: when the process cannot be traced.
    """
    first = os.fork()
    if not first:
        _child(work)
    status = os.waitpid(first, _WALL)[1]
    if not os.WIFSTOPPED(status):
        raise OSError("it ended before it could be traced")
    _ptrace(_SETOPTIONS, first, 0, _OPTIONS)
    return _Tracer(first, look, seen or (lambda call: None)).go()


class _Tracer:
    def __init__(self, first: int, look: Callable[[Call], int | None], seen: Callable[[Call], None]) -> None:
        self._first, self._look, self._seen = first, look, seen
        self._under_way: dict[int, tuple[Call, int | None]] = {}
        self._alive, self._made = {first}, 0

    def go(self) -> int:
        _ptrace(_CONT_TO_NEXT, self._first, 0, 0)
        ending = 0
        while self._alive:
            process, status = os.waitpid(-1, _WALL)
            if not os.WIFSTOPPED(status):
                self._alive.discard(process)
                if process == self._first:
                    ending = os.waitstatus_to_exitcode(status)
                continue
            self._alive.add(process)
            number = os.WSTOPSIG(status)
            if number == signal.SIGTRAP | 0x80:
                with contextlib.suppress(ProcessLookupError):
                    self._at_call(process)
                number = 0
            elif number in (signal.SIGTRAP, signal.SIGSTOP):
                number = 0
            with contextlib.suppress(ProcessLookupError):
                _ptrace(_CONT_TO_NEXT, process, 0, number)
        return ending

    def _at_call(self, process: int) -> None:
        if process not in self._under_way:
            kind, *told = _info(process)
            assert kind == _ENTRY
            call = Call(process, self._made, NAMES.get(told[0], str(told[0])), tuple(told[1:]))
            self._made += 1
            try:
                error = self._look(call)
            except Killed:
                for one in self._alive:
                    os.kill(one, signal.SIGKILL)
                return
            if error:
                _ptrace(_POKE, process, _ORIG_RAX, -1)
            self._under_way[process] = call, error
            return
        call, error = self._under_way.pop(process)
        if error:
            _ptrace(_POKE, process, _RAX, -error)
        call.result = -error if error else _info(process)[1]
        self._seen(call)


def _child(work: Callable[[], None]) -> None:
    code = 1
    try:
        _ptrace(_TRACEME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _info(process: int) -> tuple[int, ...]:
    """At the beginning of a call: 1, its number and its arguments; at its end: 2 and its result."""
    buffer = ctypes.create_string_buffer(88)
    _ptrace(_GET_INFO, process, 88, ctypes.addressof(buffer))
    if buffer.raw[0] == _ENTRY:
        return (_ENTRY, *struct.unpack_from("<7Q", buffer.raw, 24))
    return (buffer.raw[0], struct.unpack_from("<q", buffer.raw, 24)[0])


def _ptrace(request: int, process: int, address: int, data: int) -> None:
    if _libc.ptrace(request, process, address, data) == -1 and (code := ctypes.get_errno()):
        raise OSError(code, os.strerror(code))


def _read(process: int, address: int, most: int) -> bytes:
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        data = b""
        while len(data) < most:
            part = 4096 - (address + len(data)) % 4096
            memory.seek(address + len(data))
            try:
                data += memory.read(min(part, most - len(data)))
            except OSError:  # the next page is not there; a path has ended before
                break
            if most == 4096 and b"\0" in data:
                break
        return data


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
