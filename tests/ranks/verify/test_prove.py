"""`samebits run --prove`: a run whose claim was proved before it began, or none at all."""

import subprocess
import sys
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
    (folder / "train.py").write_text(SCRIPT.format(**HONEST | slots))
    command = [sys.executable, "-m", "samebits", "run", "-n", "2", "--threads", "1", "--prove", "2steps", "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_what_was_proved_stands_in_the_last_lines(tmp_path: Path) -> None:
    ended = started(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "with 2 lanes and 1 thread; proved over 2 steps on 1 and 2 ranks" in ended.stderr


@promise(
    "what-verify-proves",
    "`--prove` starts nothing that is not proved",
    also=["test_what_was_proved_stands_in_the_last_lines"],
)
@pytest.mark.thorough
def test_a_script_that_is_not_proved_does_not_start(tmp_path: Path) -> None:
    ended = started(tmp_path, **HANDS_ON)
    assert ended.returncode == 1
    assert "DIFFERENT BITS" in ended.stdout
    assert "nothing was started" in ended.stderr
    assert not list((tmp_path / "samebits-runs").iterdir())
