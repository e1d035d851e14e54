"""Starts the contestants, gives them their turns, and ends them: one socket, at which every rank waits without a core."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.peers.cases import Amount, PeerCase
from benchmarks.peers.contestants import Contestant
from benchmarks.peers.descendants import below, held, kill_and_wait, reap

START_S, SLICE_S, END_S, TIDY_S = 60.0, 40.0, 10.0, 2.0
"""How long a contestant may take to come, for a slice, to end, and to clear up when it is ended; then it is killed."""
ROOT = Path(__file__).parents[2]


class PeerFailed(Exception):  # noqa: N818 - it happened to the peer
    """A contestant hung, ended, or gave wrong numbers; it takes no further part."""


@dataclass(frozen=True)
class Caller:
    """One rank that has come."""

    pid: int
    connection: socket.socket


class Ranks:
    """The processes of one contestant; `end` ends them all."""

    def __init__(self, contestant: Contestant, log: Path) -> None:
        self.contestant, self._log = contestant, log
        self._callers: dict[int, Caller] = {}
        with log.open("wb") as file:
            self._launcher = subprocess.Popen(
                contestant.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=ROOT, start_new_session=True,
                env={**os.environ, "TMPDIR": str(log.parent), **contestant.environment, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def end(self, *, hard: bool = False) -> None:
        """Let everybody go; who does not, or when it is `hard`, is killed."""
        for caller in self._callers.values():
            with suppress(OSError):
                os.kill(caller.pid, signal.SIGCONT)
                caller.connection.sendall(b"end\n")
        try:
            self._launcher.wait(0.0 if hard else END_S)
        except subprocess.TimeoutExpired:
            self._kill()
        for caller in self._callers.values():
            caller.connection.close()

    def _kill(self) -> None:
        """Let the launcher clear up; then kill and reap what is left of it and of everything below it."""
        own = below(self._launcher.pid)
        segments = {segment for pid in own for segment in _segments(pid)}
        with held(own) as descriptors:
            self._launcher.terminate()  # MPICH's has a file in /tmp, whatever TMPDIR is, and removes it
            with suppress(subprocess.TimeoutExpired):
                self._launcher.wait(TIDY_S)
            for descriptor in descriptors.values():
                kill_and_wait(descriptor, END_S)
            with suppress(ProcessLookupError):
                os.killpg(self._launcher.pid, signal.SIGKILL)
            self._launcher.wait()
            reap(descriptors)
        for segment in segments:
            segment.unlink(missing_ok=True)

    def gather(self, listening: socket.socket, num_ranks: int) -> None:
        """Wait for the ranks of this contestant; nobody else is on the way.

        Raises:
            PeerFailed: when they do not come.
        """
        end = time.monotonic() + START_S
        listening.settimeout(0.2)
        while len(self._callers) < num_ranks:
            if self._launcher.poll() is not None or time.monotonic() > end:
                raise PeerFailed(f"did not start: {self._last_line()}")
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                rank, pid, _ = _line(connection, START_S).split(" ", 2)
                self._callers[int(rank)] = Caller(int(pid), connection)
        self._signal(signal.SIGSTOP)

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "nothing was said"

    def _signal(self, number: signal.Signals) -> None:
        for caller in self._callers.values() if self.contestant.is_stopped else ():
            with suppress(ProcessLookupError):
                os.kill(caller.pid, number)

    def slice(self, side: str, case: PeerCase, num_buffers: int, amount: Amount) -> float:
        """Nanoseconds of one operation: the median over blocks of the slowest rank's.

        Raises:
            PeerFailed: when a rank hangs, ends, or has wrong numbers.
        """
        numbers = self.contestant.sides.index(side), case.num_bytes, num_buffers, amount.often, amount.num_blocks
        self._signal(signal.SIGCONT)
        try:
            for caller in self._callers.values():
                caller.connection.sendall((" ".join(map(str, numbers)) + "\n").encode())
            told = [_line(caller.connection, SLICE_S).split() for caller in self._callers.values()]
        except TimeoutError:
            raise PeerFailed(f"took longer than {SLICE_S:.0f} s for {case.what}") from None
        except OSError:
            raise PeerFailed(f"ended at {case.what}: {self._last_line()}") from None
        if any(words[:1] != ["ok"] for words in told):
            raise PeerFailed(f"{case.what}: {next(' '.join(words) for words in told if words[:1] != ['ok'])}")
        self._signal(signal.SIGSTOP)
        return median(max(map(float, block)) for block in zip(*(words[1:] for words in told), strict=True))


def _segments(pid: int) -> list[Path]:
    """The shared memory with a name that a process has mapped: who is killed leaves it behind."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    names = {line.split(maxsplit=5)[5] for line in maps if "/dev/shm/" in line}
    return [Path(name) for name in names if not name.endswith("(deleted)")]


def _line(connection: socket.socket, patience_s: float) -> str:
    """One line of a rank.

    Raises:
        TimeoutError: when it does not come.
        OSError: when the rank has ended.
    """
    connection.settimeout(patience_s)
    told = b""
    while not told.endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionError
        told += part
    return told.decode().strip()
