"""A rank's handle on the process that writes its states. Plain Python."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from samebits.machine.processes import interpreter, interpreter_options
from samebits.protocol.records import plain, restored

PROGRAM = "samebits.rank.checkpoint.store.writer_process"
GONE = "the process that wrote it has ended"


class Writer:
    """A running process, which writes one state at a time.

    Args:
        memory: a descriptor of the memory in which the states lie.

    Raises:
        OSError: when the system refuses another process.
    """

    def __init__(self, memory: int) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_busy = False
        """Whether a state is being written, as far as is known."""
        self.is_gone = False
        """Whether the process is known to have ended."""
        self.cpu_s = 0.0
        """The processor time that the last state took; without the start of the process."""
        # [Note: why only the main thread asks for the parent's end]
        # PR_SET_PDEATHSIG counts the end of the thread that forked as the parent's.
        is_main = threading.current_thread() is threading.main_thread()
        arguments = [str(theirs.fileno()), str(memory), str(os.getpid() if is_main else 0)]
        try:
            # [Note: why a process and not a thread of rank 0]
            # A thread at niceness 19 takes the GIL and then gets no core: 2 ms of Python in rank 0 took up to 151 ms beside it. And a
            # call to a disk that hangs would keep the rank from ending.
            self._process = subprocess.Popen(
                [interpreter(), *interpreter_options(), "-P", "-m", PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
                # [Note: why the writer has a session of its own]
                # Ctrl-C in the terminal is for the rank, which then waits for its last state.
                start_new_session=True,
            )
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()

    def hand_over(self, at: int, size: int) -> None:
        """Let it write the state whose order lies there in memory. It must not be busy; the memory is its own until then.

        Raises:
            OSError: when the process is gone.
        """
        self._channel.send(json.dumps([at, size]).encode())
        self.is_busy = True

    def answer(self, timeout_s: float | None) -> str | None:
        """Why the state could not be written, or an empty text if it could; None if neither is known after `timeout_s`.

        Args:
            timeout_s: 0 looks without waiting; None waits as long as it takes.
        """
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        if not waiting.poll(None if timeout_s is None else timeout_s * 1000):
            return None
        self.is_busy = False
        try:
            message = self._channel.recv(1 << 16)
        except OSError:
            message = b""
        if not message:
            self.is_gone = True
            return f"{GONE}{self._how()}."
        record: dict[str, Any] = json.loads(message)
        self.cpu_s = record["cpu_s"]
        return str(record["problem"])

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._channel.close()
        with suppress(OSError):
            self._process.kill()
        self._process.wait()

    def _how(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            return f" with signal {-code}" if code < 0 else f" with exit code {code}"
        return ""


@dataclass(frozen=True)
class Image:
    """The bytes of one file, in memory."""

    name: str
    at: int
    """Its first byte."""
    size: int
    """In bytes."""
    tensors: Sequence[str]
    """Names of the tensors in it, sorted."""
    judged: Sequence[tuple[str, str, int, int]] = ()
    """The tensors that are to be finite, in the order of the file: name, dtype's code, first byte in memory and size."""


@dataclass(frozen=True)
class Order:
    """One state to write."""

    target: str
    """An absolute path; the store is its parent."""
    keep: int
    """How many states of the store stay."""
    images: Sequence[Image]
    documents: Mapping[str, Any]
    """The content of state.json."""
    facts: Mapping[str, Any]
    """What the manifest says besides its files."""
    taken_s: float
    """growing_time() when the state was copied: what the run logs while it is written comes after it."""
    keeps_finite: bool = True
    """See `Store`."""
    url: str = ""
    """The place at a URL that gets a copy; empty: none does."""
    others: int = 0
    """How many older states stay besides."""

    def encode(self) -> bytes:
        """As JSON. Raises ValueError for a number that JSON cannot express."""
        return json.dumps(plain(self), allow_nan=False).encode()

    @classmethod
    def decode(cls, text: bytes) -> Order:
        """The inverse of `encode`."""
        return restored(cls, json.loads(text))
