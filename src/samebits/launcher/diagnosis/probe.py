"""Looks at one rank that others wait for, again and again, without its help and without stopping it.

Where nobody may read the rank's memory, it is asked for its stack, less often.

Runs in: a daemon thread of the launcher for each rank that is looked at, named `probe of PID`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from samebits.launcher.diagnosis.movement import Sample
from samebits.launcher.diagnosis.stack import Frame, Stack, Thread, line_in_worker, read_dump, waits_for_samples
from samebits.machine.effort import effort, held_back
from samebits.machine.leftovers import descendants
from samebits.machine.processes import ProcessState, process_state
from samebits.machine.socket_bytes import socket_bytes
from samebits.machine.stacks import ask, dump

EVERY_S = 0.2
"""Between two samples; one takes 20 ms of processor time."""
KEPT = 24
ASKED_EVERY_S = 0.5
"""Between two questions to a rank whose memory cannot be read."""
TRIES = 2
"""How often in a row its memory must have been refused before it is asked."""


class Probe:
    """A thread that takes samples of one process until `stop`; it dies with the launcher.

    Args:
        pid: the rank's process.
        every_s: the time between two samples.
        answers: the file into which the rank writes its stack when it is asked; None: it is not asked.
    """

    def __init__(self, pid: int, every_s: float = EVERY_S, answers: Path | None = None) -> None:
        self.pid, self._every_s, self._answers = pid, every_s, answers
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._over = threading.Event()
        self._refused, self._asked_at = 0, 0.0
        # [Note: why a probe may be missing]
        # The kernel may refuse another thread to this user. Then there are no samples, and nobody is called stalled without them.
        with suppress(RuntimeError):
            threading.Thread(target=self._run, name=f"probe of {pid}", daemon=True).start()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The newest, oldest first."""
        return tuple(self._samples.copy())

    @property
    def stack(self) -> Stack | None:
        """The newest stack that could be read."""
        return next((sample.stack for sample in reversed(self.samples) if sample.stack is not None), None)

    def line(self, script: str) -> Frame | None:
        """Where the rank is in the script, or where a loader worker is that it waits for; None if nobody could see it."""
        workers = self.samples[-1].workers if self.samples else ()
        return line_in_worker(workers, script) or (self.stack.in_script(script) if self.stack is not None else None)

    def stop(self) -> None:
        """Take no more samples; does not wait."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            state = process_state(self.pid)
            if state is None:
                return
            self._samples.append(self._sample(state))
            self._over.wait(self._every_s)

    def _sample(self, state: ProcessState) -> Sample:
        stack = self._stack(state)
        below = descendants(self.pid)
        workers: tuple[Stack, ...] = ()
        if stack is not None and waits_for_samples(stack.main):
            workers = tuple(filter(None, (self._stack_of(pid) for pid in below)))
        return Sample(
            at_s=time.monotonic(),
            effort=effort((self.pid, *below)),
            answer_bytes=_size(self._answers),
            socket_bytes=socket_bytes((self.pid, *below)),
            stack=stack,
            workers=workers,
            letter=state.letter,
            held_back=held_back(self.pid),
        )

    def _stack(self, state: ProcessState) -> Stack | None:
        """The rank's stack; None also between two questions, and of one that is stopped and cannot be read."""
        if self._refused < TRIES:
            stack = read_stack(self.pid)
            self._refused = 0 if stack is not None else self._refused + 1
            return stack
        now = time.monotonic()
        if state.is_stopped or now - self._asked_at < ASKED_EVERY_S:
            return None
        self._asked_at = now
        return self._asked(self.pid)

    def _stack_of(self, pid: int) -> Stack | None:
        return read_stack(pid) if self._refused < TRIES else self._asked(pid)

    def _asked(self, pid: int) -> Stack | None:
        lines = ask(pid, self._answers) if self._answers is not None else []
        frames = tuple(Frame(line.function, line.file, line.number) for line in lines)
        return Stack(pid, (Thread(pid, "", holds_gil=False, frames=frames),)) if frames else None


def _size(file: Path | None) -> int:
    with suppress(OSError):
        return file.stat().st_size if file is not None else 0
    return 0


def read_stack(pid: int) -> Stack | None:
    """The stack of a process; None where it cannot be read."""
    with suppress(ValueError):
        return read_dump(dump(pid), pid)
    return None
