"""What the kernel tells of a process: descriptors, mappings, memory, processor time."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.in_rank.memory import pss_bytes
from lockstep.machine.process_state import process_state

Counted = dict[str, float]


def counted(process: int | str = "self") -> Counted:
    """Descriptors, mappings, what the kernel lets it address, and its share of memory (PSS), of this or another process."""
    place = Path(f"/proc/{process}")
    maps = (place / "maps").read_text().splitlines()
    names = [str(entry.readlink()) for entry in (place / "fd").iterdir() if entry.is_symlink()]
    return {
        "files": len(names),
        "pidfds": sum("pidfd" in name for name in names),
        "mappings": len(maps),
        "address_bytes": int((place / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"),
        "pss_bytes": pss_bytes((place / "smaps_rollup").read_text()),
    }


def shared_bytes() -> Counted:
    """The memories of groups that this process has open: how long they are, and how much of them has pages."""
    seen = {}
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and str(entry.readlink()).startswith("/memfd:lockstep "):
            status = entry.stat()
            seen[status.st_ino] = status
    return {
        "group_bytes": sum(status.st_size for status in seen.values()),
        "group_touched_bytes": sum(status.st_blocks * 512 for status in seen.values()),
    }


def processor_s(process: int) -> float:
    """The processor time that a process has used."""
    state = process_state(process)
    return state.processor_s if state is not None else 0.0
