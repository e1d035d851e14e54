"""How large a CPU's caches are, as far as the kernel tells; in some virtual machines and containers it does not."""

from __future__ import annotations

import re
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
MOST_LEVELS = 8


def caches(cpu: int, root: Path = CPUS) -> dict[int, int]:
    """Bytes by level, of those that hold data; empty where the kernel does not say. Several CPUs may share one."""
    found: dict[int, int] = {}
    for index in range(MOST_LEVELS):
        folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
        level, kind, size = (_read(folder / name) for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and re.fullmatch("[1-9]", level) and re.fullmatch("[1-9][0-9]{0,8}K", size):
            found[int(level)] = int(size[:-1]) << 10
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
