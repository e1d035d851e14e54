"""In which call of the kernel a process sleeps, on which file, and which other process could end that.

From /proc: nothing of the process is stopped or changed. What the kernel does not tell to this user is left empty.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.machine.kernel_calls import CHILDREN, LOCKS, NAMES, ON_A_FILE, PATH_AT, POLLS, READS, SETS_LOCK, WRITES
from lockstep.machine.leftovers import PROC, descendants
from lockstep.machine.mounts import is_below, parse_mounts

MOST_NAMED = 3
"""Processes that are named."""
MOST_WORDS, LONGEST_WORD = 3, 40
"""What is told of a process's command line."""
_LOCK = re.compile(r"(\d+):\s+(->\s+)?\S+\s+\S+\s+\S+\s+(-?\d+)\s")


@dataclass(frozen=True)
class OtherProcess:
    """A process besides the one that is looked at."""

    pid: int
    command: str
    """Its first words; empty where nobody may know."""

    @property
    def text(self) -> str:
        """`process 4711 (python train.py)`."""
        return f"process {self.pid}{f' ({self.command})' if self.command else ''}"


@dataclass(frozen=True)
class Blocked:
    """Where the first thread of a process is in the kernel."""

    letter: str
    """Its state as `ps` shows it: R, S, D, T."""
    call: str = ""
    """`read`; empty while it computes, and where the kernel does not tell."""
    file: str = ""
    """On which file: a path, `pipe:[123]`, `socket:[456]`; empty if on none, or nobody may know."""
    mount: str = ""
    """Where the file is: `/data (nfs4)`."""
    others: tuple[OtherProcess, ...] = ()
    """Who holds the lock, or the other end of the pipe, or is the child that is waited for."""
    peer: str = ""
    """The address at the other end of a socket: `10.0.0.1:443`."""

    @property
    def is_asleep(self) -> bool:
        """Whether it waits in the kernel."""
        return self.letter in {"S", "D"} and bool(self.call)


def blocked(pid: int, letter: str, before: Blocked | None = None, proc: Path = PROC) -> Blocked:
    """Where a process is in the kernel.

    Args:
        pid: the process.
        letter: its state.
        before: what was found the last time; who else takes part is looked up when it is the same call again, and once.
        proc: where the kernel tells.
    """
    call, args = _call(proc / str(pid))
    if not call:
        return _blocked_by_lock(pid, letter, proc)
    file = _file(proc / str(pid), call, args)
    if before is None or (before.call, before.file) != (call, file):
        return Blocked(letter, call, file)
    if before.mount or before.others or before.peer:
        return Blocked(letter, call, file, before.mount, before.others, before.peer)
    others = _others(pid, call, args, file, proc)
    return Blocked(letter, call, file, _mount(proc / str(pid), file), others, _peer(proc / str(pid), file))


def _blocked_by_lock(pid: int, letter: str, proc: Path) -> Blocked:
    """What everybody may know: locks of files and who waits for them."""
    holders = lock_holders(pid, proc) if letter == "S" else []
    return Blocked(letter, "flock" if holders else "", others=tuple(other_process(each, proc) for each in holders))


def _call(folder: Path) -> tuple[str, Sequence[int]]:
    """The call that the first thread is in, and its arguments; empty while it computes."""
    with suppress(OSError, ValueError):
        number, *args = (folder / "syscall").read_text().split()
        if number.isdigit():
            return NAMES.get(int(number), f"call {number}"), [int(each, 16) for each in args[:6]]
    return "", ()


def _file(folder: Path, call: str, args: Sequence[int]) -> str:
    if call == "fcntl" and args[1] not in SETS_LOCK:
        return ""
    if call in ON_A_FILE:
        return _link(folder / "fd" / str(args[0]))
    if call in POLLS and args[1]:
        return _link(folder / "fd" / str(struct.unpack("<i", _memory(folder, args[0], 4) or b"\xff" * 4)[0]))
    if call in PATH_AT:
        path = _memory(folder, args[PATH_AT[call]], 4096).split(b"\0", 1)[0].decode(errors="replace")
        if path.startswith("/"):
            return path
        base = struct.unpack("<i", struct.pack("<I", args[0] & 0xFFFFFFFF))[0] if PATH_AT[call] else -1
        return str(Path(_link(folder / "fd" / str(base)) if base >= 0 else _link(folder / "cwd")) / path)
    return ""


def _memory(folder: Path, address: int, most: int) -> bytes:
    """Up to `most` bytes of a process's memory, to the end of a page; empty where this user may not read it."""
    with suppress(OSError, OverflowError), (folder / "mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(min(most, 4096 - address % 4096))
    return b""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - `pipe:[123]` is no path
    except OSError:
        return ""


def _mount(folder: Path, file: str) -> str:
    if not file.startswith("/"):
        return ""
    with suppress(OSError, ValueError, IndexError):
        around = [mount for mount in parse_mounts((folder / "mountinfo").read_text()) if is_below(file, [mount.point])]
        found = max(around, key=lambda mount: len(mount.point), default=None)
        return f"{found.point} ({found.kind})" if found is not None else ""
    return ""


def _others(pid: int, call: str, args: Sequence[int], file: str, proc: Path) -> tuple[OtherProcess, ...]:
    found: Sequence[int] = ()
    if call in LOCKS and file:
        found = lock_holders(pid, proc)
    elif call in CHILDREN:
        child = args[0] if call == "wait4" else args[1]
        found = [child] if 0 < child < 1 << 31 else descendants(pid, proc)
    elif call in READS | WRITES | POLLS and file.startswith("pipe:"):
        found = _with_open(file, pid, proc)
    return tuple(other_process(each, proc) for each in found[:MOST_NAMED] if each != pid)


def lock_holders(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that hold the lock of a file for which a process waits; empty where the kernel does not know them."""
    with suppress(OSError):
        lines = [match.groups() for match in map(_LOCK.match, (proc / "locks").read_text().splitlines()) if match]
        wanted = {number for number, waits, who in lines if waits and int(who) == pid}
        return [int(who) for number, waits, who in lines if number in wanted and not waits and int(who) > 0]
    return []


def _with_open(file: str, pid: int, proc: Path) -> list[int]:
    """Other processes that have a pipe open."""
    numbers = [int(name) for name in os.listdir(proc) if name.isdigit() and int(name) != pid]  # noqa: PTH208 - faster
    return [each for each in numbers if any(_link(entry) == file for entry in _entries(proc / str(each) / "fd"))]


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def other_process(pid: int, proc: Path = PROC) -> OtherProcess:
    """A process with the beginning of its command line."""
    command = ""
    with suppress(OSError):
        first, *words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        short = [word for word in words[:MOST_WORDS] if word.isprintable() and len(word) <= LONGEST_WORD]
        command = " ".join([Path(first).name, *short]).strip()
    return OtherProcess(pid, command)


def _peer(folder: Path, file: str) -> str:
    """The address at the other end of a socket; `a Unix socket` for those of this machine."""
    if not file.startswith("socket:["):
        return ""
    inode = file[8:-1]
    for table in ("tcp", "tcp6"):
        for fields in _table(folder / "net" / table):
            if len(fields) > 9 and fields[9] == inode:
                return _address(fields[2])
    is_unix = any(len(fields) > 6 and fields[6] == inode for fields in _table(folder / "net" / "unix"))
    return "this machine" if is_unix else ""


def _table(file: Path) -> list[list[str]]:
    with suppress(OSError):
        return [line.split() for line in file.read_text().splitlines()[1:]]
    return []


def _address(text: str) -> str:
    """`0100007F:1F90` as `127.0.0.1:8080`."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    if len(words) == 1:
        return f"{'.'.join(map(str, words[0]))}:{int(port, 16)}"
    whole = b"".join(words).hex()
    return f"[{':'.join(whole[at : at + 4] for at in range(0, 32, 4))}]:{int(port, 16)}"
