"""`lockstep run` before it imports anything: is there a nursery that waits, and does this run fit?

Then that nursery forks a launcher where everything is imported, and this process stands for it: it forwards signals, stops and
goes on with it, and ends as it ends. Where nobody waits, nobody answers in time, or something is not the same, nothing has
happened and the run starts as always.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from lockstep.launch.warm.asked import order
from lockstep.launch.warm.place import address, open_folder, places, sockets
from lockstep.machine import packets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WITHIN_S = 2.0
"""How long all nurseries together may take to answer, on a machine that has other things to do."""
LOOKS_EVERY_S = 0.02
"""How soon it is noticed that one has been stopped."""
SAYS_WITHIN_S = 0.2
"""How long the parent of a launcher that has ended may take to say how."""
VARIABLE, NEVER = "LOCKSTEP_WARM", "off"
INSIDE_A_RUN = "LOCKSTEP_NURSERY"
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP, signal.SIGCONT)
KILLED = 128 + signal.SIGKILL


def run_warm() -> int | None:
    """The exit code of the run that this command asked for; None: start it as always, nothing has happened."""
    if sys.gettrace() is not None or sys.getprofile() is not None or sys.stdout is None:
        return None  # somebody looks at this process itself, or a standard stream is closed
    if getattr(sys.stdout, "write_through", False) and not os.environ.get("PYTHONUNBUFFERED"):
        return None  # python -u is for this process only
    if os.environ.get(VARIABLE) == NEVER or INSIDE_A_RUN in os.environ:
        return None
    try:
        until_s = time.monotonic() + WITHIN_S
        for path in places(os.environ, os.geteuid()):
            if (folder := open_folder(path)) is not None:
                try:
                    for name in sockets(folder):
                        if (launcher := _ask(address(folder, name), until_s)) is not None:
                            return launcher.accompany()
                finally:
                    os.close(folder)
    except OSError:  # descriptors that are closed, a limit, a folder that went
        return None
    return None


def _ask(path: str, until_s: float) -> Launcher | None:
    """A launcher of the nursery behind this socket that is ready to begin; None when it has none for this run."""
    try:
        end, peer = packets.connect(path)
    except ConnectionRefusedError:
        _remove(path)
        return None
    except OSError:
        return None
    if _is_stopped(peer):
        end.close()
        return None
    tie, mine = os.pipe()  # closes when this process ends, however it ends
    folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        targets = _own_descriptors()
        packets.send(end, "run", order(targets), descriptors=[*targets, folder, tie])
        if _answers(end, peer, until_s):
            word, told, descriptors = packets.receive(end)
            if word == "ready":
                end.setblocking(True)
                return Launcher(end, descriptors[0], mine, told[0])
    except (OSError, ValueError):
        pass
    finally:
        os.close(tie)
        os.close(folder)
    end.close()
    os.close(mine)
    return None


def _answers(end: socket.socket, peer: int, until_s: float) -> bool:
    """Whether it says something in time."""
    while not select.select([end], [], [], LOOKS_EVERY_S)[0]:
        if time.monotonic() > until_s or _is_stopped(peer):
            return False
    return True


def _own_descriptors() -> list[int]:
    """0, 1 and 2, and all others that a program started from here would inherit."""
    others = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]  # noqa: PTH208
    return [0, 1, 2, *sorted(number for number in others if _is_inheritable(number))]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # it was that of the listing
        return False


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] in "TtZ"
    except OSError:
        return True


def _remove(path: str) -> None:
    """Remove the socket of a nursery that was killed."""
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108


class Launcher:
    """The launcher that does the work of this command."""

    def __init__(self, end: socket.socket, process: int, tie: int, pid: int) -> None:
        """Know it by the connection to it, a descriptor of its process, the pipe that ends with this process, its number."""
        self._end, self._process, self._tie, self.pid = end, process, tie, pid
        self._code = KILLED
        self._read, self._write = os.pipe()

    def accompany(self) -> int:
        """Let it begin; forward signals until it has ended; return its exit code, or end by the signal that ended it."""
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        packets.send(self._end, "go")
        watched: list[Any] = [self._end, self._process, self._read]
        while True:
            ready = select.select(watched, [], [])[0]
            if self._read in ready:
                self._forward()
            if self._end in ready and self._hear():
                watched.remove(self._end)
            if self._process in ready:
                return self._end_as_it_did()

    def _forward(self) -> None:
        for number in os.read(self._read, 256):
            if number == signal.SIGTSTP:
                self._send(signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)  # until somebody sends SIGCONT
                self._send(signal.SIGCONT)
            else:
                self._send(number)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def _hear(self) -> bool:
        """Take what the launcher or its parent says about its end; True when nobody will say more."""
        try:
            word, told, _ = packets.receive(self._end)
        except (OSError, ValueError):
            return True
        if word == "code":
            self._code = told[0]
        elif word == "ended":
            self._code = os.waitstatus_to_exitcode(told[0])
            return True
        return not word

    def _end_as_it_did(self) -> int:
        """Its exit code; its parent knows a signal too, unless it was killed or stopped meanwhile."""
        until_s = time.monotonic() + SAYS_WITHIN_S
        while select.select([self._end], [], [], max(0.0, until_s - time.monotonic()))[0]:
            if self._hear():
                break
        if self._code < 0:
            if -self._code != signal.SIGKILL:
                signal.signal(-self._code, signal.SIG_DFL)
            os.kill(os.getpid(), -self._code)
        return self._code
