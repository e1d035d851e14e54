"""Waiting for something in a thread of its own, so that the rank's own thread goes on, or can be called away.

The sender waits for what a node adds up and sends it: operations in a node's memory move only while somebody waits for them,
and a link that stands still is time lost. The waiter waits for Gloo, which sometimes forgets one who waits when the connection
ends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from lockstep.machine.effort import name_own_thread

Job = Callable[[], None]
"""Does not raise."""

LAST_JOB_S = 0.5
"""How long the end of the thread is waited for."""


class Errands:
    """A thread that does jobs in their order; it begins with the first one, and sleeps while there is none.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_stopped = False

    def do(self, job: Job) -> None:
        """Do this after the others; here and now if the thread was stopped."""
        with self._lock:
            if not self._has_stopped:
                if self._thread is None:
                    self._thread = threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
                    self._thread.start()
                self._jobs.put(job)
                return
        job()

    def stop(self) -> None:
        """End the thread, after the jobs that it has, and wait a while for it; not for the thread itself."""
        with self._lock:
            if not self._has_stopped:
                self._has_stopped = True
                self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(LAST_JOB_S)


def _work(jobs: queue.SimpleQueue[Job | None]) -> None:
    name_own_thread("errand")
    while (job := jobs.get()) is not None:
        job()
        del job
