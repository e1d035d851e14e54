"""What tells this machine, since its last start, from every other one."""

from __future__ import annotations

import os
from pathlib import Path

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MACHINE_ID = "/etc/machine-id"


def machine_and_start(boot_id: str = BOOT_ID, machine_id: str = MACHINE_ID) -> str:
    """The kernel's own number for this start; where it is hidden (`subset=pid` on /proc, some sandboxes) the host's name
    and number, which no two nodes of a run share.
    """
    return _read(boot_id) or f"{os.uname().nodename} {_read(machine_id)}".strip()


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            return file.read(100).strip()
    except (OSError, ValueError):
        return ""
