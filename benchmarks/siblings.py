"""Which CPUs are threads of one core, as far as the kernel tells; in some virtual machines and containers it does not."""

from __future__ import annotations

import re
from pathlib import Path

from samebits.machine.cores import CPUS

MOST_CPUS = 1 << 16
"""A larger number in a list of CPUs is no list of CPUs."""


def siblings(cpu: int, root: Path = CPUS) -> frozenset[int]:
    """The CPUs of the same core, this one included; empty where the kernel does not say."""
    try:
        text = (root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
    except (OSError, ValueError):
        return frozenset()
    found = cpus_in(text)
    return found if cpu in found else frozenset()


def cpus_in(text: str) -> frozenset[int]:
    """The CPUs of a list as the kernel writes it, `0-3,8`; empty when it is none."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if re.fullmatch("[0-9]{1,6}(-[0-9]{1,6})?", part) is None:
            return frozenset()
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first), MOST_CPUS) + 1))
    return frozenset(found)
