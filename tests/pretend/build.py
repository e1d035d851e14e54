"""Compile the pretended device against the installed torch, once for each version and each state of the sources.

The libraries lie in `build/pretend/`, in a folder that is named after both, so nothing stale is ever loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tests.support.environment import ROOT

NATIVE = Path(__file__).parent / "native"
BUILD = ROOT / "build" / "pretend"
LIBRARIES = {"device.cpp": "libdevice.so", "nccl.cpp": "pretended_nccl.so"}
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-DUSE_C10D_GLOO")


class CannotPretend(Exception):  # noqa: N818 - a reason to skip, not an error
    """Why there is no pretended device here."""


def tested_version() -> str:
    """The version that the sources were written for: they use torch's C++ headers, which change."""
    found = re.search(r"^torch==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def why_not(version: str, is_for_cpus: bool, tested: str, compiler: str | None) -> str:
    """Why the device cannot be made, in a sentence; empty if it can.

    Args:
        version: of the installed torch, "2.13.0+cpu".
        is_for_cpus: whether it knows neither CUDA nor ROCm.
        tested: the version that the sources fit.
        compiler: a C++ compiler.
    """
    if not is_for_cpus:
        return "This torch has real GPUs, and a pretended one must never be loaded into it."
    if version.partition("+")[0] != tested:
        return f"The pretended device fits the headers of torch {tested}, but {version} is installed."
    return "" if compiler else "There is no C++ compiler (apt-get install g++)."


def made() -> Path:
    """The folder of the libraries, which are compiled if they are not there.

    Raises:
        CannotPretend: with the reason.
    """
    torch = _torch_folder()
    told = (torch / "version.py").read_text()
    version = re.search(r"__version__ = '([^']+)'", told)
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    is_for_cpus = all(re.search(rf"^{name}\b[^=\n]*= None$", told, re.MULTILINE) for name in ("cuda", "hip"))
    if problem := why_not(version[1] if version else "unknown", is_for_cpus, tested_version(), compiler):
        raise CannotPretend(problem)
    assert version is not None and compiler is not None
    folder = BUILD / f"{version[1]}-{_digest(torch)}"
    with _alone():
        if not all((folder / name).exists() for name in LIBRARIES.values()):
            _compile(compiler, torch, folder)
    return folder


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _digest(torch: Path) -> str:
    """Of the sources and of where they are compiled for: libraries know the folder of their torch."""
    sources = b"".join(path.read_bytes() for path in sorted(NATIVE.iterdir()))
    return hashlib.sha256(sources + " ".join([*FLAGS, str(torch), sys.version]).encode()).hexdigest()[:12]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep other test processes out: they wait, and find what this one has made."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, torch: Path, folder: Path) -> None:
    """Both at the same time: about 15 s on two cores."""
    folder.mkdir(exist_ok=True)
    include = [torch / "include", torch / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    rest = [
        *(f"-I{path}" for path in include),
        f"-L{torch / 'lib'}",
        "-ltorch_cpu",
        "-lc10",
        f"-Wl,-rpath,{torch / 'lib'}",
    ]
    running = {
        name: subprocess.Popen(
            [compiler, *FLAGS, str(NATIVE / source), "-o", str(folder / f"{name}.new"), *rest],
            stderr=subprocess.PIPE,
            text=True,
        )
        for source, name in LIBRARIES.items()
    }
    told = {name: process.communicate()[1] for name, process in running.items()}
    for name, process in running.items():
        if process.returncode:
            raise CannotPretend(f"{name} does not compile:\n{told[name][-4000:]}")
        (folder / f"{name}.new").rename(folder / name)
