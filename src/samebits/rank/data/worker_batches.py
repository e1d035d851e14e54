"""torch's iterator over the batches that workers fetch, which reports a dead worker only where a batch is waited for.

The rank fails then, with the sample, and leaves its step's beginning (`rank.checkpoint.when.last_snapshot`).
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import wait
from pathlib import Path
from queue import Empty
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from samebits.machine.torch_private import WorkerIterator, remove_worker_pids
from samebits.notices import say
from samebits.rank.data.device_copies import Pinnable
from samebits.rank.data.worker_progress import WorkerProgress


class ChildEnded(Exception):  # noqa: N818 - what happened
    """A process has ended on which a wait depends."""


class Interruptible:
    """A wait that a child's end interrupts: `with Interruptible(has_lost): ...` raises `ChildEnded`.

    Outside the main thread nothing interrupts, and torch looks at its workers every five seconds.

    Args:
        has_lost: whether a child that matters has ended; called in a signal handler.
    """

    def __init__(self, has_lost: Callable[[], bool]) -> None:
        self._has_lost = has_lost

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            _listen()
            _waits.append(self)
        # A signal that came before found no wait to interrupt.
        if self._has_lost():
            self._leave()
            raise ChildEnded

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        with suppress(ValueError):
            _waits.remove(self)

    def look(self) -> None:
        """Raise `ChildEnded`, at most once, if it has come to that."""
        if self._has_lost():
            # Leave first: the exception may be caught in our own `__exit__`.
            self._leave()
            raise ChildEnded


_waits: list[Interruptible] = []


class _Handler:
    def __init__(self, before: Any) -> None:
        self._before = before if callable(before) else None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _waits:
            _waits[-1].look()
        if self._before is not None:
            self._before(number, frame)


def _listen() -> None:
    present = signal.getsignal(signal.SIGCHLD)
    if not isinstance(present, _Handler):
        signal.signal(signal.SIGCHLD, _Handler(present))


def announce(sentinel: int) -> None:
    """Let the end of a process that is not a child of this one (a fork server's) send SIGCHLD as well.

    Args:
        sentinel: the descriptor that becomes readable when it ends.
    """
    with suppress(OSError):
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGCHLD)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)


ENDS_WITHIN_S = 5.0
"""How long a worker may take to end after its connection broke."""
LOOKS_EVERY_S = 5.0
"""How often a wait looks for itself, where no signal arrives."""
STUCK_S = 60.0
"""How long a sample may take before a notice names it."""

TOO_MANY_FILES = (
    "samebits: this process has as many open files as it may: raise `ulimit -n`, or call "
    "torch.multiprocessing.set_sharing_strategy('file_system') at the beginning of the script"
)


def is_out_of_files() -> bool:
    """Whether this process could hardly open another file: then batches cannot come from workers."""
    return len(list(Path("/proc/self/fd").iterdir())) + 10 > resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# [Note: what torch's iterator does when a worker dies]
# Its handler of SIGCHLD raises in the middle of anything, an update or an exchange too. What comes out of a wait is one
# of many exceptions, by what was noticed first. Shutting down waits for locks that the dead worker may hold.
class WorkerBatches(WorkerIterator):
    """The batches of one `InnerLoader` with workers."""

    def __init__(self, loader: InnerLoader) -> None:
        self.has_arrived = False
        """Whether something has arrived for the present batch: what is raised then comes from a worker or the pinning thread."""
        self._under_way: WorkerProgress = loader.progress
        self._since = time.monotonic()
        self._has_said_stuck = False
        super().__init__(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        # From now on torch's handler of SIGCHLD does not know the workers, and ours does.
        if self._worker_pids_set:
            self._worker_pids_set = False
            remove_worker_pids(id(self))
            for worker in self._workers:
                announce(worker.sentinel)
        self.has_arrived = False
        super()._reset(loader, first_iter)

    def __next__(self) -> Any:
        self.has_arrived = False
        self._since = time.monotonic()
        found = super().__next__()
        return found.batch if isinstance(found, Pinnable) else found

    def _try_get_data(self, timeout: float = LOOKS_EVERY_S) -> tuple[bool, Any]:
        """As torch's. Whatever breaks because a worker is gone comes out as `ChildEnded`."""
        try:
            return True, self._data_queue.get(timeout=timeout)
        except Empty:
            if self.has_lost():
                raise ChildEnded from None
            self._say_stuck()
            return False, None
        except ChildEnded:
            raise
        except Exception as error:
            self._wait_for_end()
            if self.has_lost():
                raise ChildEnded from error
            if is_out_of_files():
                error.add_note(TOO_MANY_FILES)
            raise

    def _say_stuck(self) -> None:
        if not self._has_said_stuck and time.monotonic() - self._since > STUCK_S:
            self._has_said_stuck = True
            say(f"no batch has come for {STUCK_S:.0f} s, {self.awaited_words()}")

    def _get_data(self) -> Any:
        try:
            return super()._get_data()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if str(error).startswith("Pin memory thread"):
                self._wait_for_end()
                if self.has_lost():
                    raise ChildEnded from error
            raise

    def _process_data(self, *data: Any, **named: Any) -> Any:
        self.has_arrived = True
        return super()._process_data(*data, **named)  # type: ignore[no-untyped-call]

    def _shutdown_workers(self) -> None:
        if self._shutdown or sys.is_finalizing():
            super()._shutdown_workers()
            return
        try:
            with Interruptible(self.has_lost):
                super()._shutdown_workers()
        except ChildEnded:
            self._shutdown = False
            self.abandon()

    def has_lost(self) -> bool:
        """Whether a worker has ended that should not have."""
        return bool(self.lost())

    def lost(self) -> list[tuple[int, int, int]]:
        """The (number, pid, exit code) of each worker that has ended and should not have.

        When all are to end, or one's stream is at its end, only failing counts.
        """
        codes = [worker.exitcode for worker in self._workers]
        return [
            (number, self._workers[number].pid or 0, code)
            for number, code in enumerate(codes)
            if code or (code == 0 and not self._shutdown and self._workers_status[number])
        ]

    def _wait_for_end(self) -> None:
        """Give a worker time to end whose connection broke: the kernel closes all of its files first."""
        ready = wait([worker.sentinel for worker in self._workers], ENDS_WITHIN_S)
        for worker in self._workers:
            if worker.sentinel in ready:
                worker.join(ENDS_WITHIN_S)

    def abandon(self) -> None:
        """Kill all workers. What they have fetched is lost."""
        if self._shutdown:
            return
        self._shutdown = True
        if self._pin_memory and hasattr(self, "_pin_memory_thread_done_event"):
            self._pin_memory_thread_done_event.set()
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join(ENDS_WITHIN_S)
        for queue in self._index_queues:
            queue.cancel_join_thread()
            queue.close()

    def words_of(self, number: int) -> str:
        """The note that says what a worker was doing when it ended."""
        return self._under_way.doing(number).note

    def awaited_words(self) -> str:
        """What the worker that is awaited is doing: `while fetching sample 7 of the data set (epoch 1, step 2)`."""
        return self._under_way.doing(self._awaited()).note.removeprefix("samebits: ")

    def awaited_line(self) -> str:
        """Ask it for its line, by a signal; empty if it gives none. A system call of the user's may end early by that."""
        number = self._awaited()
        pid = self._workers[number].pid or 0
        line = self._under_way.line_of(number, pid)
        return f"at {line} (worker pid {pid})" if line else ""

    def _awaited(self) -> int:
        """The worker that has the next batch; or another one that is fetching something, if that one is not."""
        awaited: int = self._task_info.get(self._rcvd_idx, (0,))[0]
        order = sorted(range(len(self._workers)), key=lambda number: number != awaited)
        busy = self._under_way.busy(order)
        return awaited if busy is None else busy


class InnerLoader(DataLoader[Any]):
    """A stock DataLoader that reports dead workers.

    Args:
        progress: where its workers write what they fetch.
        settings: as of a DataLoader; with workers.
    """

    def __init__(self, dataset: Any, progress: WorkerProgress, **settings: Any) -> None:
        self.progress = progress
        super().__init__(dataset, **settings)

    @property
    def persistent(self) -> WorkerBatches | None:
        """The iterator that lives from epoch to epoch, with `persistent_workers`."""
        persistent: Any = self._iterator
        return persistent  # type: ignore[no-any-return]

    def _get_iterator(self) -> Any:
        return WorkerBatches(self)


class FetchedByWorkers(Iterator[Any]):
    """The batches of one epoch, or of one evaluation; workers begin with the first at once.

    Args:
        inner: not iterated elsewhere meanwhile.
        most: how many there are, if that is known: after the last one nothing is waited for, so workers may end.

    Raises:
        RuntimeError: as torch's, with the sample, when a worker dies.
    """

    def __init__(self, inner: InnerLoader, most: int | None = None) -> None:
        # torch waits for workers that persist to begin the next epoch.
        persistent = inner.persistent
        with _deaths_reported(persistent), nullcontext() if persistent is None else Interruptible(persistent.has_lost):
            begun: Any = iter(inner)
        self._batches: WorkerBatches | None = begun if most != 0 else None
        self._left = most

    def __next__(self) -> Any:
        batches = self._batches
        if batches is None:
            raise StopIteration
        with _deaths_reported(batches), Interruptible(batches.has_lost):
            batch = next(batches)
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self._batches = None
        return batch


@contextmanager
def _deaths_reported(waits: WorkerBatches | None) -> Iterator[None]:
    """Raise what torch raises when a worker is gone, as the launcher recognises it; add the sample to torch's own errors."""
    try:
        yield
    except ChildEnded as ended:
        assert waits is not None
        number, pid, code = waits.lost()[0]
        waits.abandon()
        how = f"is killed by signal: {signal.strsignal(-code)}." if code < 0 else f"ended with exit code {code}."
        error = RuntimeError(f"DataLoader worker (pid {pid}) {how}")
        error.add_note(waits.words_of(number))
        raise error from ended
    except Exception as error:
        if waits is not None and not waits.has_arrived and str(error).startswith("DataLoader "):
            for words in (waits.awaited_words(), waits.awaited_line()):
                if words:
                    error.add_note(f"samebits: {words}")
        raise
