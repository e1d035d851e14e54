"""The ranks of a run that are replaced in place, while the others wait for them inside their step.

    a rank was lost          -> take      may it be replaced? order a rank in its place, in a new generation
    it has caught up         -> hear      say so
    another one is lost      -> take      whoever has not caught up is started once more, together with it

Which rank is lost is the supervisor's knowledge, and whether to replace it a decision of `recovery`.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.handover.generation import RESCUE, Generation
from lockstep.handover.run_folder import RunFolder
from lockstep.journal.news import Event, News
from lockstep.launch.recovery import Loss, loss_of, may_replace
from lockstep.launch.request import LaunchRequest, Verbosity
from lockstep.launch.screen.failure_block import last_work
from lockstep.launch.screen.report import replaced_line
from lockstep.launch.screen.saying import Saying
from lockstep.launch.supervise.observer import Observer
from lockstep.launch.verdict import RankEnd

START_S = 30.0
START_TIMES = 3
"""How long a replacement may start and catch up before it counts as stalled: so many times what the slowest rank took at
the beginning of the world until it could be replaced, and at least so many seconds."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of mode 0700, with the launcher's process in its name


@dataclass(frozen=True)
class _Lost:
    """One rank whose replacement has not caught up."""

    end: RankEnd
    loss: Loss
    at_s: float


@dataclass
class Replacements:
    """Those of one world of ranks.

    Args:
        request: the run.
        folder: its folder.
        saying: where lines go.
        observer: what the launcher sees of the ranks.
        history: the losses after which ranks were started again, for all worlds; this adds to it.
        start: orders a rank for a generation.
        kill: sends a signal to ranks.
    """

    request: LaunchRequest
    folder: RunFolder
    saying: Saying
    observer: Observer
    history: list[Loss]
    start: Callable[[int, Generation], None]
    kill: Callable[[int, frozenset[int]], None]
    _outliving: set[int] = field(default_factory=set)
    """Ranks that can be replaced, and can wait for others to be."""
    losses: dict[int, Loss] = field(default_factory=dict)
    """What `end_of` gave back, in words."""
    _waited_for: dict[int, _Lost] = field(default_factory=dict)
    _started: set[int] = field(default_factory=set)
    """Those of them that have a process."""
    _number: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _start_s: float = 0.0
    """What the slowest rank took from there until it could be replaced."""
    _ordered_s: float = 0.0
    """When the last replacements were ordered."""
    _finished: set[int] = field(default_factory=set)
    """Ranks whose script is over, exit handlers and all."""
    _folders: list[Path] = field(default_factory=list)

    def may_take(self, end: RankEnd, running: frozenset[int]) -> bool:
        """Whether a rank that ended like this may be replaced.

        Args:
            end: how it ended.
            running: the other ranks that have a process.
        """
        settled = running - self._started - {end.rank}
        everybody = len(self._outliving) == self.request.ranks
        if not everybody or not settled or end.stopped:
            return False
        return may_replace(end, self._loss_of(end), self.request.recovery, self.history)

    def take(self, end: RankEnd, running: frozenset[int]) -> bool:
        """Replace a rank that has ended; False if that may not be.

        Args:
            end: how it ended.
            running: the other ranks that have a process.
        """
        if end.rank in self._finished and end.signal:
            return True
        if not running - self._started:  # nobody is left that a replacement could meet
            self.kill(signal.SIGKILL, frozenset(self._started))
            return False
        if end.rank in self._started and end.stopped:  # started once more, because another one was lost meanwhile
            self._started.discard(end.rank)
            self._start_all(running)
            return True
        if not self.may_take(end, running):
            return False
        loss = self._loss_of(end)
        self.history.append(loss)
        self._started.discard(end.rank)
        self._waited_for.setdefault(end.rank, _Lost(end, loss, time.monotonic()))
        self.kill(signal.SIGKILL, frozenset(self._started))
        self._start_all(running)
        return True

    def _loss_of(self, end: RankEnd) -> Loss:
        return loss_of(end, last_work(self.observer.tail(end.rank)), uses_lockstep=True)

    def _start_all(self, running: frozenset[int]) -> None:
        """Start a rank for each one that is lost, once those that did not catch up are gone."""
        if self._started:
            return
        self._number += 1
        self._ordered_s = time.monotonic()
        folder = SHARED_MEMORY / RESCUE.format(os.getpid(), f"{id(self):x}-{self._number}")
        self._folders.append(folder)
        lost = tuple(sorted(self._waited_for))
        generation = Generation(self._number, min(running - self._waited_for.keys()), str(folder), lost)
        generation.write(self.folder.generation)
        for rank in sorted(self._waited_for):
            self._started.add(rank)
            self.start(rank, generation)

    def hear(self, news: News) -> None:
        """Take what a rank tells about itself."""
        match news.event:
            case Event.OUTLIVES:
                self._outliving.add(news.rank)
                if not self._number:
                    self._start_s = time.monotonic() - self._began_s
            case Event.LIVE:
                self._live(news.rank)
            case Event.FINISHED:
                self._end(news.rank, at_exit=bool(news.code))

    def starting(self, now: float) -> frozenset[int]:
        """Replacements that have not caught up, but still have time to."""
        given_s = max(START_S, START_TIMES * self._start_s)
        return frozenset(self._started) if now < self._ordered_s + given_s else frozenset()

    def _live(self, rank: int) -> None:
        """A replacement has caught up."""
        self._started.discard(rank)
        if (lost := self._waited_for.pop(rank, None)) is None:
            return
        if self.request.verbosity is not Verbosity.QUIET:
            self.saying.line(replaced_line(lost.loss, time.monotonic() - lost.at_s))

    def _end(self, rank: int, *, at_exit: bool) -> None:
        """All ranks have done what a run does; nobody waits for a replacement any more.

        Args:
            rank: it says so.
            at_exit: whether its script is over too, and so every rank's.
        """
        self._outliving.discard(rank)
        if at_exit:
            self._finished.add(rank)
        self.kill(signal.SIGKILL, frozenset(self._started))
        self._started.clear()

    def end_of(self, rank: int, end: RankEnd) -> RankEnd:
        """How a rank ended: a replacement that did not catch up, for whatever reason, ended as the rank that was lost."""
        if rank in self._finished and end.signal and end.failure is None:  # its script was over
            return RankEnd(rank, 0, 0, end.time_ns, False, None)
        lost = self._waited_for.get(rank)
        if lost is None:
            return end
        if lost.loss in self.history:
            self.history.remove(lost.loss)  # it is told once more, as the end of all ranks
        self.losses[rank] = lost.loss
        return lost.end

    def clean_up(self) -> None:
        """Remove what was left for replacements."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
