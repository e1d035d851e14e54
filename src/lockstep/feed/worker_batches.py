"""torch's iterator over the batches that workers fetch, made to be told about dead workers and to be dropped with them.

What torch's own does otherwise when a worker dies: its handler of SIGCHLD raises in the middle of anything; what comes
out of a wait is one of many exceptions, by what was noticed first; and shutting down waits for locks that the dead one
may have taken along.
"""

from __future__ import annotations

import resource
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from queue import Empty
from typing import Any

import torch
from torch.utils.data import DataLoader

from lockstep.feed.child_ends import ChildEnded, Interruptible, announce
from lockstep.feed.dataset_mark import Mark, mark_of
from lockstep.feed.pinning import Pinnable
from lockstep.feed.under_way import UnderWay
from lockstep.notices import say
from lockstep.torch_private import WorkerIterator, remove_worker_pids

ENDS_WITHIN_S = 5.0
"""How long a worker may take to end after its connection broke."""
LOOKS_EVERY_S = 5.0
"""How often a wait looks for itself, where no signal can tell."""
STUCK_S = 60.0
"""How long a sample may take before we say which one it is."""

TOO_MANY_FILES = (
    "lockstep: this process has as many open files as it may: raise `ulimit -n`, or call "
    "torch.multiprocessing.set_sharing_strategy('file_system') at the beginning of the script"
)


def is_out_of_files() -> bool:
    """Whether this process could hardly open another file: then batches cannot come from workers."""
    return len(list(Path("/proc/self/fd").iterdir())) + 10 > resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class WorkerBatches(WorkerIterator):
    """The batches of one `InnerLoader` with workers."""

    def __init__(self, loader: InnerLoader) -> None:
        self.has_arrived = False
        """Whether something came for the present batch: what is raised then, a worker or the pinning thread passed on."""
        self._under_way: UnderWay = loader.under_way
        self._since = time.monotonic()
        self._has_said_stuck = False
        super().__init__(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self._worker_pids_set:  # from now on torch's handler does not know of them
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
        """End all workers without asking them. What they have fetched is lost."""
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

    def awaited_words(self) -> str:
        """What the worker that is awaited is doing: `while fetching sample 7 of the data set (epoch 1, step 2)`."""
        return self._under_way.doing(self._awaited()).note.removeprefix("lockstep: ")

    def awaited_line(self) -> str:
        """Ask it for its line, by a signal; empty if it tells none. A system call of the user's may end early by that."""
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
    """A stock DataLoader whose workers can be replaced.

    Args:
        under_way: where its workers write what they fetch.
        settings: as of a DataLoader; with workers.
    """

    def __init__(self, dataset: Any, under_way: UnderWay, **settings: Any) -> None:
        self.under_way = under_way
        self._seed: torch.Tensor | None = None
        self._mark: Mark = ()
        super().__init__(dataset, **settings)

    @property
    def kept(self) -> WorkerBatches | None:
        """The iterator that lives from epoch to epoch, with `persistent_workers`."""
        kept: Any = self._iterator
        return kept  # type: ignore[no-any-return]

    def _get_iterator(self) -> Any:
        self._seed = self._stream.get_state()
        self._mark = mark_of(self.dataset.dataset)  # type: ignore[attr-defined]
        return WorkerBatches(self)

    @property
    def _stream(self) -> torch.Generator:
        """Where torch draws the seed of the workers."""
        return self.generator if self.generator is not None else torch.default_generator

    @property
    def has_changed(self) -> bool:
        """Whether the data set is another one than its workers began with, as far as can be seen."""
        return self._mark != mark_of(self.dataset.dataset)  # type: ignore[attr-defined]

    def begin_again(self) -> WorkerBatches:
        """Start new workers with the seed of those before. The random streams of this process stay where they are."""
        self._iterator = None
        self.under_way.clear()
        present = self._stream.get_state()
        assert self._seed is not None
        self._stream.set_state(self._seed)
        try:
            begun: Any = iter(self)
        finally:
            self._stream.set_state(present)
        return begun  # type: ignore[no-any-return]
