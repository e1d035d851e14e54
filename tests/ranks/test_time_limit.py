"""A test that hangs shows where: the Python stack of every rank, of the test kit and under the launcher."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import until

ROOT = Path(__file__).parents[2]

# Each rank leaves a file when it has begun to wait. The limit ends when both have, however long they took to start.
HANGING = """
import os, signal, sys, threading
from pathlib import Path
from samebits.testing.ranks import Started, run_ranks
from tests.support.launching import start, write_script

BEGUN = Path(__file__).parent / "begun"

def wait_for_ever():
    (BEGUN / str(os.getpid())).touch()
    threading.Event().wait()

def test_in_the_kit():
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 77, "the limit is not set"
    run_ranks(wait_for_ever, Started(2))

def test_under_the_launcher(tmp_path):
    script = write_script(tmp_path, f'''
import os, threading
def wait_in_the_script():
  open(os.path.join({str(BEGUN)!r}, str(os.getpid())), "w").close()
  threading.Event().wait()
wait_in_the_script()''')
    start(tmp_path, "-n", "2", script).process.wait()
"""


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "stack"),
    [("kit", "wait_for_ever"), pytest.param("launcher", "wait_in_the_script", marks=pytest.mark.thorough)],
)
def test_a_test_that_hangs_shows_the_stack_of_every_rank(tmp_path, name, stack):
    (tmp_path / "test_hanging.py").write_text(HANGING)
    begun = tmp_path / "begun"
    begun.mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-s", "--rootdir"]
    hanging = subprocess.Popen(
        [*command, tmp_path, "-k", name, f"--basetemp={tmp_path / 'base'}", tmp_path / "test_hanging.py"],
        env=os.environ | {"SAMEBITS_TEST_LIMIT_S": "77"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: len(list(begun.iterdir())) == 2 or hanging.poll() is not None, "both ranks to begin")
    hanging.send_signal(signal.SIGALRM)
    out, err = hanging.communicate(timeout=100)
    logs = "".join(log.read_text() for log in (tmp_path / "base").rglob("rank-*.log"))
    assert "the test took longer than 77 s" in out
    assert (err + logs).count(f"in {stack}") >= 2
