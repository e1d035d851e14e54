"""Which samples loader workers are fetching: all that is known about a worker that was killed or is stuck.

A worker writes down each sample before fetching it, in memory that it shares with its rank. This costs about a
microsecond per sample.
"""

from __future__ import annotations

import mmap
import signal
from multiprocessing.connection import wait
from typing import Any

from lockstep.errors import SAMPLE_NOTE

ROW = 64
MAX_INDEX = ROW - 2
ENDS_WITHIN_S = 5.0
"""How long a worker may take to end after its connection broke."""
IN_WORKER = "in DataLoader worker process"
"""In the message of an exception that a worker passed on; then the worker lives."""
NOTHING, ONE, SEVERAL = 0, 1, 2
_ROUND_IT = "lockstep: while fetching a whole lane of the data set at once: sample {index} or a later one of the lane"
_UNKNOWN = "lockstep: while fetching an unknown sample of the data set"


class UnderWay:
    """A row for each worker. Spawned workers have none: they do not inherit memory.

    Args:
        num_workers: of one DataLoader.
    """

    def __init__(self, num_workers: int) -> None:
        self._rows: mmap.mmap | None = mmap.mmap(-1, num_workers * ROW)
        self._worker = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_rows": None, "_worker": self._worker}

    def be_worker(self, number: int) -> None:
        """Make this process worker `number`: from now on it writes to that row."""
        self._worker = number

    def begin(self, index: Any, *, several: bool = False) -> None:
        """Note the sample that is fetched now, or the first of several that are fetched at once."""
        if self._rows is not None:
            text = str(index).encode(errors="replace")[:MAX_INDEX]
            start = self._worker * ROW
            self._rows[start : start + 2 + len(text)] = bytes((SEVERAL if several else ONE, len(text))) + text

    def end(self) -> None:
        """Note that nothing is being fetched any more."""
        if self._rows is not None:
            self._rows[self._worker * ROW] = NOTHING

    def told(self, workers: list[int]) -> str:
        """Say what the first of `workers` that is fetching something is fetching."""
        for worker in workers:
            row = self._rows[worker * ROW : (worker + 1) * ROW] if self._rows is not None else bytes(ROW)
            if row[0] != NOTHING:
                note = SAMPLE_NOTE if row[0] == ONE else _ROUND_IT
                return note.format(index=row[2 : 2 + row[1]].decode(errors="replace"))
        return _UNKNOWN


def killed_worker(iterator: Any, error: Exception) -> RuntimeError | None:
    """Say as torch does that a signal killed a worker, if that is what `error` comes from.

    torch says it in one of three ways, by what it noticed first: so, or that a worker "exited unexpectedly", or with
    the error of a connection that broke while its process was ending.
    """
    if IN_WORKER in str(error):
        return None
    workers = list(getattr(iterator, "_workers", ()))
    try:
        if isinstance(error, ConnectionError | EOFError):
            wait([worker.sentinel for worker in workers], ENDS_WITHIN_S)
        ended = [(worker.pid, -worker.exitcode) for worker in workers if (worker.exitcode or 0) < 0]
    except RuntimeError as told:  # torch's handler of SIGCHLD raises wherever the process is
        return told
    if not ended:
        return None
    pid, number = ended[0]
    return RuntimeError(f"DataLoader worker (pid {pid}) is killed by signal: {signal.strsignal(number)}.")


def blamed(iterator: Any) -> list[int]:
    """The dead workers of a DataLoader's iterator; if none is dead, all of them, the awaited one first."""
    workers = list(getattr(iterator, "_workers", ()))
    dead = [number for number, worker in enumerate(workers) if not worker.is_alive()]
    if dead:
        return dead
    awaited = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None), (0,))[0]
    return sorted(range(len(workers)), key=lambda number: number != awaited)
