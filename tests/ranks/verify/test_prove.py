"""`samebits run --prove`: a run whose claim was proved before it began, or none at all."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.scripts.verifying import HONEST, SCRIPT
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
HANDS_ON = {
    "before": "scale = 1.0",
    "lane": "scale = 0.5 + 0.1 * float(x.mean()) * scale",
    "loss": "F.cross_entropy(model(x), y) * scale",
}


def started(folder: Path, **slots: object) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(SCRIPT.format(**HONEST | {"epochs": 1} | slots))
    return command(folder, "run", "-n", "2", "--threads", "1", "--prove", "1step", "train.py")


def command(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"SAMEBITS_PROOFS": str(folder / "proofs")}
    whole = [sys.executable, "-m", "samebits", *words]
    return subprocess.run(whole, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


def said(ended: "subprocess.CompletedProcess[str]") -> str:
    """What the line `bits` says behind the hash, and behind what it says of lanes and threads."""
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("bits ")]
    return line.partition("with 2 lanes and 1 thread; ")[2]


def ran(folder: Path, *words: str) -> str:
    return said(command(folder, "run", "-n", "1", "--threads", "1", *words))


def proved_today() -> str:
    now = datetime.now(UTC).astimezone()
    return f"proved on 1, 2 ranks, {now.day} {now:%b}"


@promise(
    "what-verify-proves",
    "The line `bits` says what was proved of these sources, with its day; with which other arguments; or that nothing was, and which "
    "command proves it",
    also=["test_what_prove_proved_is_said_by_this_run_and_by_later_ones_of_these_sources"],
)
def test_before_a_proof_its_command_is_named_and_behind_it_its_ranks_and_day(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(**HONEST | {"epochs": 1}))
    assert ran(tmp_path, "train.py") == "not proved yet: samebits verify --threads 1 train.py"
    proof = command(tmp_path, "verify", "--threads", "1", "--ranks", "1,2", "--steps", "1", "train.py")
    assert proof.returncode == 0, proof.stdout
    assert ran(tmp_path, "train.py") == proved_today()


def test_what_prove_proved_is_said_by_this_run_and_by_later_ones_of_these_sources(tmp_path: Path) -> None:
    assert said(started(tmp_path)) == proved_today()
    assert ran(tmp_path, "train.py", "--epochs", "1") == "proved with no arguments"
    with (tmp_path / "train.py").open("a") as script:
        script.write("# another\n")
    assert ran(tmp_path, "train.py", "a b") == "not proved yet: samebits verify --threads 1 train.py 'a b'"


@promise(
    "what-verify-proves",
    "`--prove` starts nothing that is not proved",
    also=["test_what_prove_proved_is_said_by_this_run_and_by_later_ones_of_these_sources"],
)
@pytest.mark.thorough
def test_a_script_that_is_not_proved_does_not_start(tmp_path: Path) -> None:
    ended = started(tmp_path, **HANDS_ON)
    assert ended.returncode == 1
    assert "DIFFERENT BITS" in ended.stdout
    assert "nothing was started" in ended.stderr
    assert not list((tmp_path / "samebits-runs").iterdir())
