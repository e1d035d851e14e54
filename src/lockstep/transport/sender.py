"""Sends what a node has added up as soon as it has, while the rank computes or waits for something else.

Operations in a node's memory move only while somebody waits for them, and a link that stands still is time lost: so a thread
waits. It sleeps unless there is something to add up.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]
"""Waits, then sends. It does not raise."""


class Sender:
    """A thread that does jobs in their order; it begins with the first one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_stopped = False

    def do(self, job: Job) -> None:
        """Do this after the others; here and now if the thread was stopped."""
        with self._lock:
            if not self._has_stopped:
                if self._thread is None:
                    self._thread = threading.Thread(target=_work, args=(self._jobs,), name="lockstep sender", daemon=True)
                    self._thread.start()
                self._jobs.put(job)
                return
        job()

    def stop(self) -> None:
        """End the thread, after the jobs that it has, and wait for it; not for the thread itself."""
        with self._lock:
            if not self._has_stopped:
                self._has_stopped = True
                self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()


def _work(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
