"""`samebits doctor` on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks


def doctor(place: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "samebits", "doctor", *options]
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
    assert {"Python", "torch", "devices", "cores", "backends", "shared memory"} <= {row["what"] for row in told["rows"]}
    assert list(tmp_path.iterdir()) == []


TORCH_OF_TOMORROW = """
import os, signal
from samebits.rank.start.guards.wrapping import when_imported
def broken(c10d):
    make = c10d._new_process_group_helper
    def made(*args, **kwargs):
        group, store = make(*args, **kwargs)
        if group.name() == "samebits":
            {happens}
        return group, store
    c10d._new_process_group_helper = made
when_imported("torch.version", lambda version: setattr(version, "__version__", "9.9.0.dev20300101"))
when_imported("torch.distributed.distributed_c10d", broken)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("happens", "told"),
    [
        ("raise TypeError('torch has changed')", "does not work with torch 9.9.0.dev20300101 (TypeError: torch has changed)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "Trying it crashed the process."),
    ],
)  # fmt: skip
def test_a_torch_of_tomorrow_is_tried_and_what_a_run_does_then_is_said(tmp_path: Path, happens: str, told: str) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(TORCH_OF_TOMORROW.format(happens=happens))
    done = doctor(tmp_path, "--json", PYTHONPATH=f"{tmp_path / 'path'}:{os.environ.get('PYTHONPATH', '')}")
    rows = {row["what"]: row for row in json.loads(done.stdout)["rows"]}
    assert (done.returncode, rows["torch"]["state"], rows["backends"]["state"]) == (0, "note", "note"), done.stderr
    assert "newer than any tested with samebits" in rows["torch"]["text"]
    assert "Here gloo is used" in rows["backends"]["text"]
    assert told in rows["backends"]["text"]


def test_a_torch_that_cannot_be_imported_is_a_problem_with_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    path = f"{tmp_path / 'broken'}:{os.environ.get('PYTHONPATH', '')}"
    done = doctor(tmp_path, PYTHONPATH=path, NO_COLOR="1", COLUMNS="80")
    assert done.returncode == 1
    assert "problem  torch          cannot be imported: OSError: libcudart.so.12" in done.stdout
    assert done.stdout.splitlines()[0].startswith("A run would not work here: see torch")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Traceback" not in done.stdout + done.stderr
