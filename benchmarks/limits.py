"""What this machine allows: how many bytes an update must touch, and how buffers get out of the last cache.

Pure arithmetic. The limit of an update is the time in which as many ranks at the same time copy (or rewrite) as many
bytes as it must touch; a copy of n bytes touches 2 n of them.
"""

from __future__ import annotations

from pathlib import Path

USUAL_L3_BYTES = 32 << 20
LAST_CACHES = "/sys/devices/system/cpu/cpu0/cache/index3/size"
CACHES_READ = 2
"""Before a turn with cold buffers every rank reads this many times the last cache, so nothing else is left there."""
HOST_BYTES_OF_UPDATE = 8
"""Times the parameters' bytes, for the whole host: gradients of two ranks, parameter and two moments read, the last
three written. Holds for 2 ranks and AdamW in float32."""


def update_bytes(parameter_bytes: int, num_ranks: int) -> int:
    """What each of the ranks must touch in a reduction and an AdamW update, shared equally."""
    return HOST_BYTES_OF_UPDATE * parameter_bytes // num_ranks


def evicting_bytes(last_cache_bytes: int) -> int:
    """How much a rank reads before a turn with cold buffers."""
    return CACHES_READ * last_cache_bytes


def num_buffers(num_bytes: int, *, cold: bool) -> int:
    """How many buffers take turns: cold ones are used once between two evictions, hot ones are one."""
    return repeats(num_bytes) if cold else 1


def repeats(num_bytes: int) -> int:
    """How often an operation runs between two looks at the clock: small ones are shorter than leaving a barrier."""
    return 20 if num_bytes <= 64 << 10 else 8 if num_bytes <= 1 << 20 else 4 if num_bytes <= 4 << 20 else 1


def cache_bytes(text: str) -> int:
    """The size that the kernel writes as `32768K`; the usual one when it writes nothing readable."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = text.strip()[:-1], text.strip()[-1:]
    return int(number) * units[unit] if number.isdigit() and unit in units else USUAL_L3_BYTES


def last_cache_bytes() -> int:
    """Of the machine that this runs on."""
    try:
        return cache_bytes(Path(LAST_CACHES).read_text(encoding="ascii"))
    except OSError:
        return USUAL_L3_BYTES
