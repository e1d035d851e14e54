"""pip gets a package in every case: compiled where there is a compiler, pure Python where there is none.

The tests call the hooks that pip calls (PEP 517, PEP 660) on a copy of the sources, and unpack the wheel as pip does.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from samebits.protocol.installation import VERSION

ROOT = Path(__file__).parents[5]
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
IMPORT = "import site; site.addsitedir({site!r}); import samebits.rank.transport.local.native as n; print(n.__file__, n.why_not())"

pytestmark = pytest.mark.ranks


@pytest.fixture
def sources(tmp_path):
    """A checkout without anything compiled."""
    copy = tmp_path / "checkout"
    for folder in ("src", "native"):
        ignored = shutil.ignore_patterns("_native*.so", "__pycache__", "CMakeFiles", "CMakeCache.txt")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / file, copy / file)
    return copy


def without_compiler(tmp_path):
    """An environment in which CMake and Ninja are found, and no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cmake", "ninja", "sh", "uname"):
        found = shutil.which(name, path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
        if found:
            (folder / name).write_text(f'#!/bin/sh\nexec {found} "$@"\n')
            (folder / name).chmod(0o755)
    (folder / "sh").unlink()
    (folder / "sh").symlink_to("/bin/sh")
    return {"PATH": str(folder)}


def build(sources, hook, changes):
    """Run a build hook as pip does, in a process of its own; return the wheel and what the hook said."""
    wheels = sources.parent / hook
    wheels.mkdir()
    program = f"import build_backend; build_backend.{hook}({str(wheels)!r})"
    environment = {**os.environ, "PYTHONPATH": str(sources / "native"), **changes}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=sources, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return next(wheels.glob("*.whl")), done.stdout


def imported(wheel, tmp_path):
    """Install the wheel into an empty folder, and import it from there alone."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        archive.extractall(site)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT.format(site=str(site))], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("hook", ["build_wheel", pytest.param("build_editable", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("lack", ["no compiler", pytest.param("a compiler that fails", marks=pytest.mark.thorough)])
def test_without_a_working_compiler_the_package_is_pure_python_and_says_why(sources, tmp_path, hook, lack):
    changes = without_compiler(tmp_path) if lack == "no compiler" else {"CC": "/bin/false", "CXX": "/bin/false"}
    (sources / "src" / "samebits" / "_native.of-an-earlier-build.so").touch()
    wheel, said = build(sources, hook, changes)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "without its compiled part" in said
    assert "C++20 compiler" in imported(wheel, tmp_path)


@pytest.mark.thorough
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.compiles
def test_with_a_compiler_the_wheel_has_the_module_and_no_sources_of_it(sources, tmp_path):
    wheel, _ = build(sources, "build_wheel", {})
    assert "none-any" not in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert len([name for name in names if name.endswith(".so")]) == 1
    assert not [name for name in names if name.endswith((".cpp", ".hpp", ".a", "CMakeLists.txt"))]
    assert imported(wheel, tmp_path).split() == [str(tmp_path / "site/samebits/rank/transport/local/native.py")]


@pytest.mark.thorough
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.compiles
def test_an_editable_install_is_a_path_and_no_import_hook(sources, tmp_path):
    wheel, _ = build(sources, "build_editable", {})
    assert imported(wheel, tmp_path).split() == [str(sources / "src/samebits/rank/transport/local/native.py")]
    left = {path.name for path in (tmp_path / "site").iterdir()}
    assert left == {"_samebits.pth", f"samebits-{VERSION}.dist-info"}
    assert not any(path.name.startswith("CMake") and path.name != "CMakeLists.txt" for path in sources.rglob("*"))


@pytest.mark.thorough
def test_an_sdist_has_what_the_build_needs_and_nothing_compiled(sources, tmp_path):
    (sources / "src" / "samebits" / "_native.abi3.so").touch()
    program = f"import build_backend; build_backend.build_sdist({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": str(sources / "native")}
    subprocess.run([sys.executable, "-c", program], cwd=sources, env=environment, check=True, timeout=60)
    listed = subprocess.run(
        ["tar", "tzf", next(tmp_path.glob("*.tar.gz"))], capture_output=True, text=True, check=True, timeout=60
    )
    assert "/native/CMakeLists.txt" in listed.stdout
    assert "/native/build_backend.py" in listed.stdout
    assert ".so\n" not in listed.stdout
