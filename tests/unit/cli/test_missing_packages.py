"""A command without one of the packages that it needs says so in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("rich", "doctor"),
        ("torch", "run -n 1 script.py"),
        *(
            pytest.param("rich", words, marks=pytest.mark.thorough)
            for words in ("verify script.py", "watch", "checkpoint ls")
        ),
        *(
            pytest.param("torch", words, marks=pytest.mark.thorough)
            for words in ("verify script.py", "bench script.py")
        ),
        pytest.param("numpy", "run -n 1 script.py", marks=pytest.mark.thorough),
    ],
)
def test_a_missing_package_is_one_sentence(tmp_path: Path, package: str, words: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(package=package))
    (tmp_path / "script.py").write_text("import lockstep\nrun = lockstep.init()\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "lockstep", *words.split()]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 2, ended.stderr
    assert f"error: {package} is not installed for {sys.executable}." in ended.stderr
    assert "Traceback" not in ended.stderr
