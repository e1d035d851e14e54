"""What this machine allows: how many bytes must be touched, and programs that do it without any library.

bare.cpp, bare_copies.cpp and bare_windows.cpp are compiled here and made callable.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20
LEAST_WORK = "least work"
"""The additions and copies of a collective in windows between two exchanges of flags, without a library: their limit."""
LEAST_COPIES = "least copies"
"""The least number of copies through shared memory, without a library: the limit of ordinary tensors."""
SOURCES = [Path(__file__).with_name(name) for name in ("bare.cpp", "bare_copies.cpp", "bare_windows.cpp")]


USUAL_L3_BYTES = 32 << 20
LAST_CACHES = "/sys/devices/system/cpu/cpu0/cache/index3/size"
CACHES_READ = 2
"""Before a turn with cold buffers every rank reads this many times the last cache, so nothing else is left there."""


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


class Way(NamedTuple):
    """How the least copies are made: what is tried, because no size is best for every machine."""

    piece_bytes: int
    slot_bytes: int
    streams: bool
    """Whether what leaves staging goes past the caches."""


class WindowWay(NamedTuple):
    """How the least work in windows is done."""

    pushes: bool
    """Whether ranks write into the others' tensors instead of reading them."""
    streams: bool


WINDOW_WAYS = [WindowWay(pushes, streams) for pushes in (False, True) for streams in (False, True)]
WAYS = [Way(size * KIB, size * KIB, streams) for size in (16, 64, 256) for streams in (False, True)]


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")


def build(folder: Path) -> Path:
    """Compile into `folder` and return the library.

    Raises:
        SystemExit: when there is no compiler, or it fails.
    """
    found = compiler()
    if found is None:
        raise SystemExit("The limits are measured by a small C++ program, and there is no compiler. Install g++.")
    library = folder / "bare.so"
    command = [found, "-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), *map(str, SOURCES)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' and '.join(source.name for source in SOURCES)} could not be compiled:\n{done.stderr}")
    return library


class Bare:
    """The compiled functions. Addresses are those of `Tensor.data_ptr()`."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self.exchange = loaded.bare_exchange
        address, size = ctypes.c_void_p, ctypes.c_size_t
        self.exchange.argtypes = [address, ctypes.c_int, size, size, address, address, size, size, size, ctypes.c_bool]
        self.exchange.restype = None
        self.in_windows = loaded.bare_windows
        flag = ctypes.c_bool
        self.in_windows.argtypes = [address, ctypes.c_int, size, size, address, size, flag, flag]
        self.in_windows.restype = None
        self._bytes = loaded.bare_bytes
        self._bytes.argtypes = [size, size]
        self._bytes.restype = size

    def exchange_bytes(self, num_ranks: int) -> int:
        """The zeroed shared memory that `exchange` needs for every way."""
        return int(self._bytes(num_ranks, max(way.slot_bytes for way in WAYS)))
