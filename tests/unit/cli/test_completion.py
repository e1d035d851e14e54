"""What a real bash completes at Tab: files for SCRIPT, runs by their names, strategies, trackers."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samebits.cli.completion import VARIABLE

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with scripts and runs, and a command `samebits` in `bin`."""
    command = tmp_path / "bin" / "samebits"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m samebits "$@"\n')
    command.chmod(0o700)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "quickstart.py").write_text("")
    for age, name in enumerate(("tbrun", "20261128-145114-tt", "20261127-101010-tt")):
        (tmp_path / "samebits-runs" / name).mkdir(parents=True)
        os.utime(tmp_path / "samebits-runs" / name, (1e9 - age, 1e9 - age))
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != "SAMEBITS_RUNS"}
    return {**own, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PS1": "", "TERM": "dumb"}


def completed(place: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f'eval "$(samebits completion bash)"; compopt() {{ COMPREPLY+=("$2"); }}; COMP_WORDS=({quoted}); '
        f'COMP_CWORD={len(words) - 1}; _samebits_completion samebits; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=place, env=environment(place), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


RUNS = ["tbrun", "20261128-145114-tt", "20261127-101010-tt"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("watch", ""), RUNS),
        (("diagnose", "2026"), RUNS[1:]),
        (("report", "tbrun", "20261128"), RUNS[1:2]),
        (("checkpoint", "show", "t"), RUNS[:1]),
        (("replay", "--step", "3", "t"), RUNS[:1]),
        (("audit", "t"), RUNS[:1]),
        (("record", "show", "t"), RUNS[:1]),
        (("run", "--strategy", "z"), ["zero1"]),
        (("bench", "--strategies", "ddp,z"), ["ddp,zero1"]),
        (("run", "--device", "c"), ["cpu", "cuda"]),
        (("run", "--track", "w"), ["wandb"]),
        (("run", "examples/qui"), ["default"]),
        (("verify", "--ranks", "1,2", "examples/qui"), ["default"]),
        (("run", "examples/quickstart.py", "--data", "exa"), ["default"]),
        (("diag",), ["diagnose"]),
    ],
)
def test_bash_offers_what_can_stand_there(place: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(place, "samebits", *words) == offered


def test_bash_offers_no_run_whose_name_it_would_execute(place: Path) -> None:
    for name in ("t$(touch found)", "t;id", "t a", "t\nplain,tother"):
        (place / "samebits-runs" / name).mkdir()
    assert completed(place, "samebits", "watch", "t") == ["tbrun"]


def test_tab_in_bash_completes_the_file_of_a_script(place: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(place)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment(place))
    try:
        os.write(terminal, b'eval "$(samebits completion bash)"; echo re""ady\n')
        assert b"ready" in read_until(terminal, b"ready")
        os.write(terminal, b"samebits run examples/qui\t")
        assert b"samebits run examples/quickstart.py" in read_until(terminal, b"quickstart.py")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, wanted: bytes) -> bytes:
    found, until_s = b"", time.monotonic() + 60
    while wanted not in found and select.select([terminal], [], [], max(until_s - time.monotonic(), 0))[0]:
        found += os.read(terminal, 4096)
    return found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_of_theirs(place: Path, shell: str) -> None:
    done = subprocess.run(
        ["samebits", "completion", shell], cwd=place, env=environment(place), capture_output=True, text=True, check=True
    )
    assert f"{VARIABLE}={shell}_complete" in done.stdout
