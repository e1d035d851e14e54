"""Compiles bare.cpp, which is what the machine does without any library, and makes it callable."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.cases import COPY, REWRITE, STREAM

Copy = Callable[[int, int, int], object]
"""Called with the addresses of target and source, and n."""
SOURCE = Path(__file__).with_name("bare.cpp")


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
    command = [found, "-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{SOURCE.name} could not be compiled:\n{done.stderr}")
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

    def limits(self) -> dict[str, Copy]:
        """Ways to touch 2 n bytes, by name; the fastest one is what the machine allows."""
        return {
            COPY: ctypes.memmove,
            STREAM: self.stream_copy,
            REWRITE: lambda _, source, n: self._rewrite(source, n, 0),
        }
