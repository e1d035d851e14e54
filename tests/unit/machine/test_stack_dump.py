"""Stacks of other processes, as py-spy reads them here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.launcher.diagnosis.stack import read_dump
from samebits.machine.stacks import dump, refusal
from tests.support.launching import until

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
CATASTROPHE = "import re\ndef there(): re.match('(a+)+$', 'a' * 40 + 'b')\nthere()"

needs_stacks = pytest.mark.skipif(bool(refusal()), reason=f"no stacks here: {refusal()}")


@needs_stacks
def test_a_process_is_read_that_holds_the_interpreters_lock():
    with subprocess.Popen([sys.executable, "-S", "-c", CATASTROPHE]) as other:
        try:
            until(lambda: "there" in dump(other.pid), "the line")
            assert read_dump(dump(other.pid), other.pid).threads[0].holds_gil
        finally:
            other.kill()


@pytest.mark.skipif(
    not YAMA.exists() or os.geteuid() == 0, reason="needs a kernel with Yama, and a user that is not root"
)
def test_a_process_that_let_its_launcher_read_is_read_under_yama():
    """`refusal` starts a process that is no descendant of py-spy, as a rank is none."""
    if YAMA.read_text().strip() not in ("0", "1"):
        pytest.skip("ptrace_scope is 2 or more")
    assert refusal() == ""
