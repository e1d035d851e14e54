"""What tests of numerics="portable" need: the library, OpenBLAS, and emulated CPUs."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from samebits.protocol.portable import LIBRARY

CPUS = {
    "Haswell": "Haswell",
    "EPYC-Rome": "EPYC-Rome",
    "Intel": "max,vendor=GenuineIntel,family=6,model=143,stepping=8,host-cache-info=on",
}
"""Of qemu-user, which has no AVX-512."""

needs_portable = pytest.mark.skipif(
    not LIBRARY.is_file() or importlib.util.find_spec("scipy_openblas32") is None,
    reason="no compiled part, or no scipy-openblas32",
)
needs_emulator = pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None, reason="no qemu-user (apt-get install qemu-user)"
)


def emulated(folder: Path, cpu: str, *, only_rank: int | None = None) -> Path:
    """A program that is this Python on another CPU, for SAMEBITS_PYTHON.

    Args:
        folder: where to write it.
        cpu: one of `CPUS`.
        only_rank: the rank that gets it; the others are as this process.
    """
    program = folder / f"python-on-{cpu}"
    real = Path(sys.executable).resolve()
    choice = f'[ "$RANK" = {only_rank} ] || exec {sys.executable} "$@"\n' if only_rank is not None else ""
    # qemu says which features of that CPU it lacks, in each process.
    emulator = f'exec qemu-x86_64 -cpu {CPUS[cpu]} -0 {sys.executable} {real} "$@"\n'
    program.write_text(f"#!/bin/sh\n{choice}{emulator}")
    program.chmod(0o755)
    return program
