"""Looks at one rank that others wait for, again and again, without its help and without stopping it."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

from lockstep.diagnosis.movement import Sample
from lockstep.diagnosis.stack import Stack, read_dump
from lockstep.machine.process_state import file_bytes, process_state, processor_s_below
from lockstep.machine.stack_dump import dump

EVERY_S = 0.5
KEPT = 8


class Probe:
    """A thread that takes samples of one process until `stop`; it dies with the launcher.

    Args:
        pid: the rank's process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._over = threading.Event()
        threading.Thread(target=self._run, name=f"probe of {pid}", daemon=True).start()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The newest, oldest first."""
        return tuple(self._samples)

    @property
    def stack(self) -> Stack | None:
        """The newest stack that could be read."""
        return next((sample.stack for sample in reversed(self.samples) if sample.stack is not None), None)

    def stop(self) -> None:
        """Take no more samples; does not wait."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            state = process_state(self.pid)
            if state is None:
                return
            self._samples.append(
                Sample(
                    time.monotonic(),
                    state.processor_s,
                    processor_s_below(self.pid),
                    file_bytes(self.pid),
                    self._stack(),
                )
            )
            self._over.wait(EVERY_S)

    def _stack(self) -> Stack | None:
        with suppress(ValueError):
            return read_dump(dump(self.pid), self.pid)
        return None
