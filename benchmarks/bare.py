"""Compiles bare.cpp, bare_copies.cpp and bare_windows.cpp, which is what the machine does without any library, and makes it callable."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.cases import COPY, KIB, REWRITE, STREAM

Copy = Callable[[int, int, int], object]
"""Called with the addresses of target and source, and n."""
SOURCES = [Path(__file__).with_name(name) for name in ("bare.cpp", "bare_copies.cpp", "bare_windows.cpp")]


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
        self.exchange_flags = loaded.exchange_flags
        self.exchange_flags.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint32]
        self.exchange_flags.restype = None
        self.stream_copy = loaded.stream_copy
        self.stream_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self.stream_copy.restype = None
        self._rewrite = loaded.rewrite
        self._rewrite.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]
        self._rewrite.restype = None

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

    def limits(self) -> dict[str, Copy]:
        """Ways to touch 2 n bytes, by name; the fastest one is what the machine allows."""
        return {
            COPY: ctypes.memmove,
            STREAM: self.stream_copy,
            REWRITE: lambda _, source, n: self._rewrite(source, n, 0),
        }
