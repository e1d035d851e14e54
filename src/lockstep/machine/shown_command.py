"""The command line and the environment that the kernel shows of this process: others than those it was started with.

They are written where the first ones were, which must be long enough. Then the kernel is told where they end
(`PR_SET_MM_MAP`, which needs no right); one that cannot be told shows NULs behind them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
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
