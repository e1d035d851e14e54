"""A command without one of the packages that it needs says so in one sentence, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import os, runpy, sys

package, commands = sys.argv[1], sys.argv[2:]

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
for words in commands:
    if os.fork() == 0:
        sys.argv = ["samebits", *words.split()]
        runpy.run_module("samebits", run_name="__main__", alter_sys=True)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 2, words
"""
STARTS = (
    "run -n 1 script.py",
    "run --start-method=spawn -n 2 script.py",
    "doctor",
    "verify script.py",
    "bench script.py",
)


@pytest.mark.parametrize(
    ("package", "commands"),
    [
        ("torch", STARTS),
        ("rich", (*STARTS[2:], "watch", "diagnose", "checkpoint ls")),
        ("click", STARTS[:1]),
    ],
)
def test_a_missing_package_is_one_sentence(tmp_path: Path, package: str, commands: tuple[str, ...]) -> None:
    (tmp_path / "script.py").write_text("import samebits\nrun = samebits.init()\n")
    command = [sys.executable, "-c", WITHOUT, package, *commands]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count(f"error: {package} is not installed for {sys.executable}.\nhelp: ") == len(commands)
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
