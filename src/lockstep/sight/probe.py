"""Looks at one rank that others wait for, again and again, without its help and without stopping it."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

from lockstep.diagnosis.movement import Sample
from lockstep.diagnosis.stack import Frame, Stack, line_in_worker, read_dump, waits_for_samples
from lockstep.machine.leftovers import descendants
from lockstep.machine.process_state import file_bytes, process_state, processor_s_below
from lockstep.machine.stack_dump import dump

EVERY_S = 0.2
"""Between two samples; one takes 20 ms of processor time."""
KEPT = 24


class Probe:
    """A thread that takes samples of one process until `stop`; it dies with the launcher.

    Args:
        pid: the rank's process.
        every_s: the time between two samples.
    """

    def __init__(self, pid: int, every_s: float = EVERY_S) -> None:
        self.pid, self._every_s = pid, every_s
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._over = threading.Event()
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
            stack = _stack_of(self.pid)
            workers = stack is not None and waits_for_samples(stack.main)
            self._samples.append(
                Sample(
                    at_s=time.monotonic(),
                    processor_s=state.processor_s,
                    others_s=processor_s_below(self.pid),
                    file_bytes=file_bytes(self.pid),
                    stack=stack,
                    workers=tuple(filter(None, map(_stack_of, descendants(self.pid)))) if workers else (),
                )
            )
            self._over.wait(self._every_s)


def _stack_of(pid: int) -> Stack | None:
    with suppress(ValueError):
        return read_dump(dump(pid), pid)
    return None
