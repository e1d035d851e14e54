"""The README's minute: four processes, two of them killed, checked on one; then with one changed label."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samebits.protocol.journal.ring import JournalReader

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[3]
KILLS = ((25, 0), (60, 2))
"""The step behind which a rank is killed, and the rank."""
PATIENCE_S = 200


def minute() -> list[tuple[list[str], list[str]]]:
    """The section's commands, each with the lines that it prints."""
    text = (ROOT / "README.md").read_text().partition("## A run that anybody can check")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    parts = [part.splitlines() for part in block.split("$ samebits ")[1:]]
    return [(shlex.split(line), rest) for line, *rest in parts]


def command(words: list[str]) -> list[str]:
    return [
        sys.executable,
        "-m",
        "samebits",
        *(str(ROOT / one) if one.startswith("examples/") else one for one in words),
    ]


def steps_in(record: Path) -> int:
    return record.read_bytes().count(b'\n{"step":') if record.exists() else 0


def test_the_minute_of_the_readme_is_true(tmp_path: Path) -> None:
    (run, nothing), *audits = minute()
    assert (run[0], nothing, [words[0] for words, _ in audits]) == ("run", [], ["audit", "audit"])
    place, until = tmp_path / "samebits-runs" / "r1", time.monotonic() + PATIENCE_S
    with subprocess.Popen(command(run), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        for step, rank in KILLS:
            while steps_in(place / "record.jsonl") < step and started.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            (journal,) = place.glob(f"*/journal/rank-{rank:05d}.ring")
            pid = JournalReader(journal).pid
            assert pid and started.poll() is None
            os.kill(pid, signal.SIGKILL)
        assert started.wait(PATIENCE_S) == 0
    for words, lines in audits:
        ended = subprocess.run(
            command(words),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "COLUMNS": "200"},
            check=False,
        )
        assert ended.returncode == (0 if lines[0].startswith("MATCH") else 1), ended.stdout + ended.stderr
        # A kill may lose the state that is being written.
        shown = [re.sub(r"\d+ states", "N states", line) for line in ended.stdout.splitlines()]
        said = [re.sub(r"\d+ states", "N states", line) for line in lines]
        assert [line for line in said if not any(one.startswith(line) for one in shown)] == [], ended.stdout
