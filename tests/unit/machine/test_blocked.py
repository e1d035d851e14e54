"""In which call of the kernel a process sleeps, and who could end that. Real processes, each in one such call."""

import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.machine.blocked import Blocked, blocked
from lockstep.machine.process_state import process_state
from tests.support.launching import until

LOCK_RECORD = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX)"
LOCK_FILE = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.flock(file, fcntl.LOCK_EX)"


@contextmanager
def process(program: str, *arguments: str, **how: object) -> Iterator[int]:
    """A process that runs a program; its number."""
    command = [sys.executable, "-S", "-c", program, *arguments]
    with subprocess.Popen(command, **how) as started:  # type: ignore[call-overload]
        try:
            yield started.pid
        finally:
            started.kill()


def found(pid: int, *calls: str) -> Blocked:
    """What is found of a process once it is in one of these calls, in two looks, as a probe takes them."""
    look: list[Blocked] = []

    def is_there() -> bool:
        state = process_state(pid)
        assert state is not None, "it has ended"
        look.append(blocked(pid, state.letter, look[-1] if look else None))
        return len(look) > 1 and look[-1].is_asleep and look[-1].call in calls and look[-2].call == look[-1].call

    until(is_there, f"{calls} in {pid}")
    return look[-1]


@pytest.mark.parametrize(("program", "call"), [(LOCK_FILE, "flock"), (LOCK_RECORD, "fcntl")])
def test_who_holds_the_lock_of_a_file_is_told(tmp_path, program, call):
    file = tmp_path / "shared.lock"
    file.touch()
    holder = f"{program}; print(flush=True); sys.stdin.read()"
    with process(holder, str(file), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holds:
        until(lambda: re.search(rf"\b{holds}\b", Path("/proc/locks").read_text()) is not None, "the lock")
        with process(program, str(file)) as waits:
            look = found(waits, call)
    assert (look.file, look.mount != "") == (str(file), True)
    assert [other.pid for other in look.others] == [holds]
    assert look.others[0].text.startswith(f"process {holds} (python")


def test_a_pipe_that_nobody_empties_is_told_with_its_other_end():
    theirs, ours = os.pipe()
    with process("input()", stdin=subprocess.PIPE, pass_fds=[theirs]) as has_it:
        os.close(theirs)
        with process(f"import os; os.write({ours}, bytes(1 << 20))", pass_fds=[ours]) as writes:
            os.close(ours)
            look = found(writes, "write")
            assert look.file.startswith("pipe:[")
            assert [other.pid for other in look.others] == [has_it]


def test_what_is_read_from_is_told():
    ours, theirs = os.openpty()
    with process("input()", stdin=theirs) as reads:
        assert found(reads, "read").file == os.ttyname(theirs)
    os.close(ours)
    os.close(theirs)
    listens = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname());"
    )
    with process(f"{listens} c.recv(1)") as receives:
        look = found(receives, "recvfrom")
        assert look.peer.startswith("127.0.0.1:")


def test_a_child_that_is_waited_for_and_a_sleep_are_told():
    child = "import os, time\npid = os.fork()\nif not pid: time.sleep(600)\nos.waitpid(pid, 0)"
    with process(child) as waits:
        (other,) = found(waits, "wait4").others
        assert found(other.pid, "clock_nanosleep").call == "clock_nanosleep"
        os.kill(other.pid, signal.SIGKILL)


def test_a_process_that_computes_is_in_no_call():
    with process("while True: pass") as computes:
        until(lambda: (state := process_state(computes)) is not None and state.processor_s > 0.05, "the loop")
        assert not blocked(computes, "R").is_asleep


@contextmanager
def a_mount_that_never_answers(place: Path) -> Iterator[None]:
    """A FUSE mount whose server, this process, answers nothing; skips the test where none can be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"there is no /dev/fuse here: {error}")
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    if libc.mount(b"never", bytes(place), b"fuse", 0, options) != 0:
        os.close(device)
        pytest.skip(f"nothing can be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.umount2(bytes(place), 2)
        os.close(device)


def test_a_process_in_state_d_is_told_with_the_mount(tmp_path):
    with a_mount_that_never_answers(tmp_path), process(f"open({str(tmp_path / 'data.bin')!r})") as opens:
        until(lambda: (state := process_state(opens)) is not None and state.letter == "D", "state D")
        look = found(opens, "openat")
        assert (look.letter, look.file, look.mount) == ("D", str(tmp_path / "data.bin"), f"{tmp_path} (fuse)")


def test_a_lock_is_told_where_the_kernel_hides_the_call(tmp_path):
    """/proc/PID/syscall is for those who may trace the process, /proc/locks for everybody."""
    file = tmp_path / "shared.lock"
    with file.open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        with process(LOCK_FILE, str(file)) as waits:
            found(waits, "flock")
            fake = tmp_path / "proc"
            (fake / str(waits)).mkdir(parents=True)
            (fake / "locks").write_text(Path("/proc/locks").read_text())
            look = blocked(waits, "S", None, fake)
            assert look.is_asleep
            assert [other.pid for other in look.others] == [os.getpid()]
