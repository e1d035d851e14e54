"""`--trace 20steps`: what a rank did in its first steps, for Perfetto: phases, lanes, buckets of gradients, waits.

The step timer keeps its intervals; other code, in any thread, adds ranges (`samebits.protocol.journal.spans`). Times are
nanoseconds of `time.monotonic_ns`, one clock for all processes of a node.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
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
        self._steps: list[tuple[int, int, int, int]] = []
        """Of each that has ended: its number, its epoch, the samples so far, and the interval in which it ended."""
        self.intervals: list[Interval] = []
        """Filled by the step timer, with times of `time.perf_counter_ns`."""
        # On Linux both are one clock; elsewhere they may count from different moments.
        self._offset_ns = time.monotonic_ns() - time.perf_counter_ns()
        spans.take()

    def end_step(self, step: int, epoch: int, samples: int) -> bool:
        """Note that `step` is over, unless that is known; whether it was the last one. `samples`: of all steps so far."""
        if not self._steps or step > self._steps[-1][0]:
            self._steps.append((step, epoch, samples, len(self.intervals)))
        return step >= self._steps[0][0] + self._num_steps - 1

    def write(self) -> None:
        """Write what was taken, and take no more; a full disk loses it, not the run."""
        phases = [
            (NAMES.get(phase, "script"), operation, begin + self._offset_ns, end + self._offset_ns)
            for phase, operation, begin, end in self.intervals
        ]
        found = {
            "rank": self._rank,
            "pid": os.getpid(),
            "since_1970_ns": time.time_ns() - time.monotonic_ns(),
            "steps": list(self._outer()),
            "phases": phases,
            "spans": spans.taken(),
        }
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(self._path, json.dumps(found))

    def _outer(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Of each step its number, epoch, samples, begin and end, so that whole intervals are inside or outside.

        It begins where it first waits for data, and ends with the interval in which it was counted.
        """
        first = before = 0
        for step, epoch, samples, last in self._steps:
            inside = self.intervals[first : last + 1]
            begins = [begin for phase, _, begin, _ in inside if phase is Phase.DATA] or [one[2] for one in inside]
            if begins:
                yield step, epoch, samples - before, begins[0] + self._offset_ns, inside[-1][3] + self._offset_ns
            first, before = last + 1, samples
