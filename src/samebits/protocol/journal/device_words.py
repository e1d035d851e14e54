"""What to do about an error of a GPU: memory that is used up, a kernel that failed, a device that is gone.

Torch reports these in words, and a failed kernel only later: where the host waits next, or starts the next kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

_MEMORY = re.compile(r"(CUDA|HIP)( error:)? out of memory", re.IGNORECASE)
_ASKED = re.compile(r"^.*?out of memory\..*? is free\.")
_KERNEL = re.compile(
    r"(?:CUDA|HIP) (?:kernel )?error: (device-side assert|an illegal|misaligned|invalid program counter|unspecified launch"
    r"|the launch timed out|operation not supported on global)"
)
_GONE = re.compile(
    r"(?:CUDA|HIP) (?:driver )?error: (unspecified launch|unknown error|.*\bis lost|.*busy or unavailable|uncorrectable|hardware"
    r"|no CUDA-capable|.*link error|the launch timed out)"
)
GIB, MIB = 1 << 30, 1 << 20
REST = "activations and what the script keeps"
STATE = "optimizer state"
LESS = (
    "A smaller batch or more lanes makes activations smaller, --precision bf16-mixed too; --strategy zero1 divides the optimizer "
    "state among ranks, model_parallel the model."
)
BLOCKING = "CUDA_LAUNCH_BLOCKING"


@dataclass(frozen=True)
class Device:
    """The GPU of this rank."""

    name: str
    """`cuda:1`."""
    held: Callable[[], Mapping[str, int]]
    """Bytes by what lies there."""


present: list[Device] = []
"""At most one: that of the process's run."""


def shortened(first_line: str) -> str:
    """Of a line about memory: what was asked for, and what is free. The traceback has the rest."""
    found = _ASKED.match(first_line)
    return found[0] if found else first_line


def help_with_device(error: BaseException) -> str:
    """What to do; empty where the error is none of a GPU."""
    text = str(error)
    if not isinstance(error, RuntimeError):
        return ""
    if _MEMORY.search(text):
        return f"{_memory_text()}{LESS}"
    device = present[0].name if present else "the GPU"
    kernel, gone = _KERNEL.search(text), _GONE.search(text)
    record = []
    if gone:
        record.append(
            f"If `nvidia-smi` does not answer for {device}, or `dmesg` has a line with Xid, it has failed: leave it out with "
            "CUDA_VISIBLE_DEVICES, and the run resumes from its newest state."
        )
    if kernel:
        record.append(_of_the_kernel(device, os.environ))
    return " Else: ".join(record)


def _of_the_kernel(device: str, variables: Mapping[str, str]) -> str:
    usual = "Most often a label or an index is out of range."
    if variables.get(BLOCKING) == "1":
        return f"A kernel of this line failed on {device}. {usual}"
    return f"A kernel failed on {device} at this line or before: {BLOCKING}=1 stops at the line itself. {usual}"


def _memory_text() -> str:
    held: Mapping[str, int] = {}
    # [Note: why nothing may be raised here]
    # After a failed kernel each call to the device raises. The words about the first error matter more.
    with suppress(Exception):
        held = present[0].held() if present else {}
    if not held:
        return ""
    parts = [f"{_size(size)} of {what}" for what, size in sorted(held.items(), key=lambda each: -each[1]) if size]
    return f"{present[0].name} holds {', '.join(parts)}. " if parts else ""


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"
