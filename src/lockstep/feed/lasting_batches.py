"""The batches that workers fetch, in order, whatever happens to the workers.

When one dies, all of this loader's workers are ended (the dead one may hold locks that the others need) and as many new
ones begin at the first batch that has not come. Each lane has its own random stream, so the batches are the same.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from lockstep.feed.child_ends import ChildEnded, Interruptible
from lockstep.feed.worker_batches import InnerLoader, WorkerBatches
from lockstep.feed.worker_deaths import Death, Deaths, replaced_sentence
from lockstep.machine.memory_pressure import explain_kill, read_memory_pressure
from lockstep.notices import say


class LastingBatches(Iterator[Any]):
    """One epoch's batches, or one evaluation's.

    Args:
        inner: with workers; nobody else iterates it meanwhile.
        parts: what is fetched for each batch.
        assign: makes `inner` fetch these parts the next time.

    Raises:
        WorldError: when a worker dies at the sample at which the one before did.
        RuntimeError: as torch's, when too many died, or the data set has changed since the workers began.
    """

    def __init__(self, inner: InnerLoader, parts: Sequence[Any], assign: Callable[[Sequence[Any]], None]) -> None:
        self._inner, self._parts, self._assign = inner, parts, assign
        self._num_fetched = 0
        self._deaths = Deaths()
        self._pressure = read_memory_pressure()
        self._batches: WorkerBatches | None = inner.kept
        assign(parts)
        _, deaths = self._tried(self._begin)
        if deaths:
            self._replace(deaths)

    def _begin(self) -> None:
        kept = self._batches  # torch asks kept workers whether they are ready
        with nullcontext() if kept is None else Interruptible(kept.has_lost):
            begun: Any = iter(self._inner)
        self._batches = begun

    def __next__(self) -> Any:
        if self._num_fetched == len(self._parts):
            raise StopIteration
        while True:
            batch, deaths = self._tried(self._fetch)
            if not deaths:
                self._num_fetched += 1
                self._end_if_over()
                return batch
            self._replace(deaths)

    def _end_if_over(self) -> None:
        """Let the workers end after the last batch, which nobody may ask whether it is: they remove their sockets then."""
        if self._num_fetched == len(self._parts):
            self._batches = None

    def _fetch(self) -> Any:
        assert self._batches is not None
        with Interruptible(self._batches.has_lost):
            return next(self._batches)

    def _tried(self, work: Callable[[], Any]) -> tuple[Any, list[Death]]:
        """Do `work`; return its result, or the workers whose deaths it failed of.

        What follows is done outside of `except`: an error that is raised then does not come from what torch raised.
        """
        try:
            return work(), []
        except Exception as error:
            if deaths := self._deaths_behind(error):
                return None, deaths
            _tell(self._batches, error)
            raise

    def _deaths_behind(self, error: Exception) -> list[Death]:
        """The workers whose end is behind `error`."""
        batches = self._batches
        if batches is None or not isinstance(error, ChildEnded):
            return []
        return [Death(pid, code, self._inner.under_way.doing(number)) for number, pid, code in batches.lost()]

    def _replace(self, deaths: list[Death]) -> None:
        began = time.monotonic()
        assert self._batches is not None
        self._batches.abandon()
        self._batches = None
        killed = any(death.exit_code == -signal.SIGKILL for death in deaths)
        why = explain_kill(self._pressure, read_memory_pressure()) if killed else ""
        verdict = self._deaths.verdict(deaths, self._num_fetched, why, has_changed=self._inner.has_changed)
        if verdict is not None:
            raise verdict
        self._assign(self._parts[self._num_fetched :])
        try:
            self._batches = self._inner.begin_again()
        except OSError as error:
            raise deaths[0].as_torch_says() from error
        say(replaced_sentence(deaths, time.monotonic() - began, why))


def unreplaced(inner: InnerLoader) -> Iterator[Any]:
    """The batches of workers that are not replaced alone: the death of one is its rank's failure, as with torch alone.

    Raises:
        RuntimeError: as torch's, with the sample.
    """
    batches: Any = iter(inner)
    while True:
        try:
            with Interruptible(batches.has_lost):
                batch = next(batches)
        except StopIteration:
            return
        except ChildEnded as ended:
            number, pid, code = batches.lost()[0]
            batches.abandon()
            raise Death(pid, code, inner.under_way.doing(number)).as_torch_says() from ended
        except Exception as error:
            _tell(batches, error)
            raise
        yield batch


def _tell(batches: WorkerBatches | None, error: Exception) -> None:
    """Add the sample to an error of torch's own."""
    if batches is not None and not batches.has_arrived and str(error).startswith("DataLoader "):
        for words in (batches.awaited_words(), batches.awaited_line()):
            if words:
                error.add_note(f"lockstep: {words}")
