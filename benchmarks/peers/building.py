"""Compiles the ranks of the peers that are written in C++, and DeepSpeed's operation; kept until a source is newer."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bare import compiler

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O3", "-march=native")
DEEPSPEED = "deepspeed_shm_comm"


def build(installed: Path, programs: Path) -> list[str]:
    """Compile what can be compiled here; a sentence for each program that could not be.

    Raises:
        SystemExit: when there is no compiler.
    """
    found = compiler()
    if found is None:
        raise SystemExit("The ranks of the peers are small C++ programs, and there is no compiler. Install g++.")
    programs.mkdir(parents=True, exist_ok=True)
    problems = [_compile(found, programs / "by_mpi", [HERE / "by_mpi.cpp"], ["-ldl"])]
    library = installed / "oneccl-devel" / "lib" / "ccl" / "cpu" / "lib" / "libccl.a"
    hwloc = next(installed.glob("openmpi/lib/openmpi/libhwloc.so.15"), Path("/usr/lib/x86_64-linux-gnu/libhwloc.so.15"))
    if library.exists():
        needed = [
            f"-I{installed}/oneccl-devel/include",
            library,
            hwloc,
            f"-Wl,-rpath,{hwloc.parent}",
            "-ldl",
            "-lpthread",
        ]
        problems.append(_compile(found, programs / "by_oneccl", [HERE / "by_oneccl.cpp"], needed))
    source = next(installed.glob("deepspeed/lib/python*/site-packages/deepspeed/ops/csrc/cpu/comm/shm.cpp"), None)
    if source is not None:
        files = [source, source.with_name("shm_interface.cpp")]
        problems.append(_compile(found, programs / f"{DEEPSPEED}.so", files, _for_torch()))
    return [problem for problem in problems if problem]


def _for_torch() -> list[object]:
    """As DeepSpeed's builder compiles it, against the torch that is installed."""
    ask = "import torch.utils.cpp_extension as c, torch; print(*c.include_paths(), *c.library_paths(), sep='\\n')"
    told = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True).stdout.split("\n")
    *includes, libraries = [line for line in told if line]
    names = [f"-I{path}" for path in (*includes, sysconfig.get_path("include"))]
    links = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    return [f"-DTORCH_EXTENSION_NAME={DEEPSPEED}", "-shared", "-fPIC", "-fopenmp", *names, *links]


def _compile(found: str, program: Path, sources: Sequence[Path], needed: Sequence[object]) -> str:
    newest = max(file.stat().st_mtime for file in (*sources, HERE / "slices.hpp"))
    if program.exists() and program.stat().st_mtime > newest:
        return ""
    words = [found, *FLAGS, "-o", program.with_suffix(".new"), *sources, *needed]
    done = subprocess.run([str(word) for word in words], check=False, capture_output=True, text=True)
    if done.returncode:
        problem = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        return f"{program.stem} could not be compiled: {problem}"
    program.with_suffix(".new").replace(program)
    return ""


if __name__ == "__main__":
    sys.exit("\n".join(build(Path(sys.argv[1]), Path(sys.argv[1]) / "programs")) or 0)
