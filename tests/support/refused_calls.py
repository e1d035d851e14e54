"""Run a command for which the kernel refuses some system calls, as old kernels, sandboxes and strict containers do.

`python refused_calls.py ERRNO NAME,NAME COMMAND...`. A seccomp filter refuses them, for the command and all that it starts;
whether the library or the program makes the call does not matter. Processors: those of `NUMBERS`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {
        "process_vm_readv": 310, "process_vm_writev": 311, "sched_yield": 24, "sched_setaffinity": 203, "getcpu": 309,
        "membarrier": 324, "rseq": 334, "madvise": 28, "memfd_create": 319,
    },
    "aarch64": {
        "process_vm_readv": 270, "process_vm_writev": 271, "sched_yield": 124, "sched_setaffinity": 122, "getcpu": 168,
        "membarrier": 283, "rseq": 293, "madvise": 233, "memfd_create": 279,
    },
}  # fmt: skip
EVERYWHERE = {
    "pidfd_send_signal": 424, "pidfd_open": 434, "pidfd_getfd": 438, "futex_waitv": 449, "futex_wake": 454,
    "futex_wait": 455, "futex_requeue": 456,
}  # fmt: skip
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050000, 0x7FFF0000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


def can_refuse() -> bool:
    """Whether the numbers of this processor's calls are known here."""
    return platform.machine() in NUMBERS


def refuse(names: list[str], error: int) -> None:
    """From now on these calls fail with this error, in this process and in all that it starts."""
    numbers = NUMBERS[platform.machine()] | EVERYWHERE
    steps = [(_LOAD, 0, 0, 0)]
    for name in names:
        steps += [(_IF_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _REFUSE | error)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SECCOMP, _FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the system takes no filter")


if __name__ == "__main__":
    refuse(sys.argv[2].split(","), int(sys.argv[1]))
    os.execvp(sys.argv[3], sys.argv[3:])
