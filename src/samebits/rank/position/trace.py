"""`--trace 20steps`: what a rank did in its first steps, for Perfetto: phases, lanes, buckets of gradients, waits.

The step timer keeps its intervals; other code, in any thread, adds ranges (`samebits.protocol.journal.spans`). Times are
nanoseconds of `time.monotonic_ns`, one clock for all processes of a node.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from samebits.protocol.journal.ring import Phase
from samebits.protocol.journal.spans import spans
from samebits.protocol.run_folder import write_private

NAMES = {
    Phase.DATA: "data",
    Phase.COMPUTE: "compute",
    Phase.EXCHANGE: "exchange",
    Phase.UPDATE: "optimizer",
    Phase.EVALUATE: "evaluation",
}
"""Every other phase is the script's own."""
Interval = tuple[Phase, str, int, int]


class Trace:
    """The trace of one rank, from its construction until its steps are over.

    Args:
        path: where it goes.
        num_steps: how many steps are in it.
    """

    def __init__(self, path: Path, rank: int, num_steps: int) -> None:
        self._path, self._rank, self._num_steps = path, rank, num_steps
        self._first: int | None = None
        self.intervals: list[Interval] = []
        """Filled by the step timer, with times of `time.perf_counter_ns`."""
        # On Linux both are one clock; elsewhere they may count from different moments.
        self._offset_ns = time.monotonic_ns() - time.perf_counter_ns()
        spans.take()

    def is_over(self, step: int) -> bool:
        """Whether `step`, which is over, was the last one."""
        self._first = step if self._first is None else self._first
        return step >= self._first + self._num_steps - 1

    def write(self) -> None:
        """Write what was taken, and take no more; a full disk loses it, not the run."""
        phases = [
            (NAMES.get(phase, "script"), operation, begin + self._offset_ns, end + self._offset_ns)
            for phase, operation, begin, end in self.intervals
        ]
        found = {"rank": self._rank, "pid": os.getpid(), "phases": phases, "spans": spans.taken()}
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(self._path, json.dumps(found))
