"""`lockstep doctor` on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks


def doctor(place: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lockstep", "doctor", *options]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_the_doctor_finds_this_machine_fit_and_leaves_nothing(tmp_path: Path) -> None:
    import torch

    done = doctor(tmp_path, "--json")
    told = json.loads(done.stdout)
    problems = [row for row in told["rows"] if row["state"] == "problem"]
    assert (done.returncode, told["ok"], problems) == (0, True, []), done.stderr
    assert told["torch"]["version"] == torch.__version__
    assert "gloo" in told["torch"]["backends"]
    assert {"Python", "torch", "driver", "devices", "cores", "back ends", "shared memory"} <= {
        row["what"] for row in told["rows"]
    }
    assert list(tmp_path.iterdir()) == []


def test_a_torch_that_cannot_be_imported_is_a_problem_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    path = f"{tmp_path / 'broken'}:{os.environ.get('PYTHONPATH', '')}"
    done = doctor(tmp_path, PYTHONPATH=path, NO_COLOR="1", COLUMNS="80")
    assert done.returncode == 1
    assert "problem  torch          cannot be imported: OSError: libcudart.so.12" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("A run would not work here: see torch")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Traceback" not in done.stdout + done.stderr
