"""Stacks of other processes, as py-spy reads them here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.diagnosis.stack import native_call, read_dump
from lockstep.machine.stack_dump import dump, refusal
from tests.support.launching import until

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
CATASTROPHE = "import re\ndef there(): re.match('(a+)+$', 'a' * 40 + 'b')\nthere()"

needs_stacks = pytest.mark.skipif(bool(refusal()), reason=f"no stacks here: {refusal()}")


@needs_stacks
def test_the_native_function_in_which_a_process_stays_is_told():
    with subprocess.Popen([sys.executable, "-S", "-c", CATASTROPHE]) as other:
        try:
            until(lambda: "there" in dump(other.pid), "the line")
            frames = read_dump(dump(other.pid, native=True), other.pid).main
            if not frames or frames[0].file.endswith(".py"):
                pytest.skip("py-spy shows no native code here")
            assert native_call(frames).startswith("sre_")
            (main, *_) = json.loads(dump(other.pid))
            assert main["owns_gil"]
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
