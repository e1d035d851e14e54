"""What a run finds at its standard input where its user has a terminal, and where not."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

ASKS = """
import subprocess, sys
from samebits.verify.repeat.terminal import nothing_to_read
words = "import os; print(os.popen('stty size').read().strip() or 'no terminal')\\ntry: input()\\nexcept EOFError: print('over')"
with nothing_to_read() as read:
    ended = subprocess.run([sys.executable, "-c", words], stdin=read, capture_output=True, text=True, timeout=30, start_new_session=True)
print(ended.stdout, file=sys.stderr)
"""


@pytest.mark.parametrize(("is_terminal", "size"), [(True, "33 101"), (False, "no terminal")])
def test_a_run_may_ask_for_the_size_and_reads_nothing(is_terminal, size):
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    if is_terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    stdin = theirs if is_terminal else ours
    try:
        ended = subprocess.run([sys.executable, "-c", ASKS], stdin=stdin, stderr=subprocess.PIPE, text=True, check=True)
    finally:
        os.close(ours)
        os.close(theirs)
    assert ended.stderr.split("\n")[:2] == [size, "over"]
