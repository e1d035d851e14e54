"""The stack of a process whose memory may not be read: it writes it down when a signal asks, and goes on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from samebits.machine.stacks import answers, ask
from tests.support.launching import until

START = """
import ctypes, os, sys, threading, time
from pathlib import Path
from samebits.machine.stacks import answer_into
answer_into(Path(sys.argv[1]))
def there():
    {what}
print("there", flush=True)
there()
print("went on", flush=True)
"""


@contextmanager
def process(what: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is about to do this in `there`, and says what it read after it."""
    command = [sys.executable, "-c", START.format(what=what), str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "there\n"
            yield started
        finally:
            started.kill()


def functions(pid: int, file: Path) -> list[str]:
    return [line.function for line in ask(pid, file)]


@pytest.mark.parametrize(
    "what",
    [
        "time.sleep(600)",
        "while True: pass",
        "ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)",  # native code that keeps the interpreter's lock
        "os.read(0, 1)",
        "threading.Event().wait()",
    ],
)
def test_a_process_answers_whatever_it_does(tmp_path, what):
    file = tmp_path / "stacks"
    with process(what, file) as asked:
        until(lambda: "there" in functions(asked.pid, file), "the line")
        assert asked.poll() is None


def test_what_was_interrupted_goes_on(tmp_path):
    file = tmp_path / "stacks"
    with process("assert os.read(0, 9) == b'whole'; time.sleep(0.2)", file) as asked:
        for _ in range(5):
            until(lambda: "there" in functions(asked.pid, file), "the line")
        assert asked.communicate("whole")[0] == "went on\n"
        assert asked.returncode == 0


def test_a_child_of_it_answers_too_and_another_process_is_not_asked(tmp_path):
    file = tmp_path / "stacks"
    fork = "pid = os.fork() or time.sleep(600); os.write(1, f'{pid}\\n'.encode()); os.waitpid(pid, 0)"
    with process(fork, file) as asked:
        assert asked.stdout is not None
        child = int(asked.stdout.readline())
        until(lambda: "there" in functions(child, file), "the line of the child")
        os.kill(child, 9)
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert not answers(other.pid)
        assert ask(other.pid, file) == []
        assert other.poll() is None  # the signal would have ended it
        other.kill()


def test_a_file_that_cannot_be_made_costs_only_the_answers(tmp_path):
    with process("time.sleep(600)", tmp_path / "missing" / "stacks") as asked:
        assert not answers(asked.pid)
