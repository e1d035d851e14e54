"""Runs of one number of ranks, seen from outside: what they found, and what the death of a rank takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rank_program import ROOT

LOOK_S = 0.002
LIMIT_S = 120.0
STEPS = 60


def measured(num_ranks: int, seconds: float) -> dict[str, float]:
    """Everything about this number of ranks.

    Args:
        num_ranks: from 1 on.
        seconds: for each time that is a median.
    """
    return _plain(num_ranks, seconds) | _prepared(num_ranks)


def _plain(num_ranks: int, seconds: float) -> dict[str, float]:
    with _run("plain", num_ranks, str(time.monotonic_ns()), str(seconds)) as (launcher, folder):
        pids = _pids(folder, num_ranks, launcher)
        found: dict[str, float] = json.loads((folder / "measured.json").read_text())
        began = time.monotonic()
        os.kill(pids[-1], signal.SIGKILL)
        _until(lambda: "FAILED" in (folder / "err").read_text(), launcher, folder, may_end=True)
        found["named_s"] = time.monotonic() - began
        _until(lambda: launcher.poll() is not None, launcher, folder, may_end=True)
        _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), launcher, folder, may_end=True)
        return found | {"gone_s": time.monotonic() - began}


def _prepared(num_ranks: int) -> dict[str, float]:
    with _run("prepared", num_ranks, str(STEPS)) as (launcher, folder):
        pids = _pids(folder, num_ranks, launcher)
        if num_ranks > 1:
            os.kill(pids[-1], signal.SIGKILL)
        _until(lambda: launcher.poll() is not None, launcher, folder, may_end=True)
        if launcher.returncode:
            raise SystemExit(_failed(launcher, folder))
        found: dict[str, float] = json.loads((folder / "steps.json").read_text())
        return found if num_ranks > 1 else {name: found[name] for name in ("prepare_s", "step_s")}


@contextmanager
def _run(program: str, num_ranks: int, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """One of the programs under `lockstep run`; whatever happens, nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="growth-") as place:
        folder = Path(place)
        command = [sys.executable, "-m", "lockstep", "run", "--log-dir", place, "-n", str(num_ranks), "--threads", "1"]
        command += ["--device", "cpu", "-m", f"benchmarks.growth.programs.{program}", place, *words]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            launcher = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err)
        try:
            yield launcher, folder
        finally:
            if launcher.poll() is None:
                launcher.terminate()
                launcher.wait()


def _pids(folder: Path, num_ranks: int, launcher: subprocess.Popen[Any]) -> list[int]:
    """The processes of all ranks, once they have counted."""
    files = [folder / f"pid-{rank}" for rank in range(num_ranks)]
    _until(lambda: all(file.exists() and file.read_text() for file in files), launcher, folder)
    return [int(file.read_text()) for file in files]


def _until(is_so: Callable[[], bool], launcher: subprocess.Popen[Any], folder: Path, *, may_end: bool = False) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > deadline or (not may_end and launcher.poll() is not None):
            raise SystemExit(_failed(launcher, folder))
        time.sleep(LOOK_S)


def _failed(launcher: subprocess.Popen[Any], folder: Path) -> str:
    state = f"ended with {launcher.returncode}" if launcher.poll() is not None else f"took longer than {LIMIT_S:.0f} s"
    return f"A run of {folder.name} {state}:\n{(folder / 'err').read_text()[-2000:]}"
