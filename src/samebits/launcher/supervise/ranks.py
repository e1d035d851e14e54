"""What the supervisor knows of each rank: its process, what was sent to it, what it reported, how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from samebits.launcher.blame import RankEnd, was_stopped
from samebits.protocol.journal.failure import Failure, read_failure
from samebits.protocol.journal.signals import LostNode, News
from samebits.protocol.nursery_messages import Exited
from samebits.protocol.run_folder import RunFolder


@dataclass
class _Rank:
    pid: int = 0
    sent: set[int] = field(default_factory=set)
    """The signals that the launcher sent it."""
    failure: Failure | None = None
    """What it reported because it could not write its record."""
    leaving: News | None = None
    """That its script has ended, and its process has not yet; others may miss it before it does."""
    end: RankEnd | None = None


class Ranks:
    """The ranks of one attempt, once they are ordered."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._all: dict[int, _Rank] = {}

    def add(self, number: int) -> None:
        """A rank is ordered, perhaps in the place of one that has ended."""
        self._all[number] = _Rank()

    def __len__(self) -> int:
        return len(self._all)

    def began(self, number: int, pid: int) -> None:
        """Its process has begun."""
        self._all[number].pid = pid

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank that has one."""
        return {number: rank.pid for number, rank in self._all.items() if rank.pid}

    @property
    def running_pids(self) -> dict[int, int]:
        """The process of each rank that has one and has not ended."""
        return {number: rank.pid for number, rank in self._all.items() if rank.pid and rank.end is None}

    @property
    def running(self) -> frozenset[int]:
        """Those that have not ended."""
        return frozenset(number for number, rank in self._all.items() if rank.end is None)

    @property
    def have_ended(self) -> bool:
        """Whether there are ranks, and all have ended."""
        return bool(self._all) and not self.running

    @property
    def ends(self) -> dict[int, RankEnd]:
        """How those that have ended did."""
        return {number: rank.end for number, rank in self._all.items() if rank.end is not None}

    def sent(self, number: int, ranks: Iterable[int]) -> None:
        """Signal `number` was sent to `ranks`."""
        for rank in ranks:
            self._all[rank].sent.add(number)

    def report_lost_node(self) -> None:
        """Let those that run know that a node is lost: connections to it may stay open."""
        for number in self.running:
            LostNode(self._folder.journal(number)).tell()

    def leaving(self, news: News) -> None:
        """Its script has ended."""
        self._all[news.rank].leaving = news

    def reported(self, number: int, failure: Failure | None) -> Failure | None:
        """It has failed; `failure` is what it could not write down. Returns its failure."""
        self._all[number].failure = failure
        return self.failure_of(number)

    def failure_of(self, number: int) -> Failure | None:
        """What it left, if it has failed."""
        return self._all[number].failure or read_failure(self._folder.failure(number))

    def exited(self, message: Exited) -> RankEnd:
        """Its process has ended."""
        number, rank = message.rank, self._all[message.rank]
        failure = self.failure_of(number)
        stopped, leaving = was_stopped(message.signal, rank.sent), rank.leaving
        rank.end = RankEnd(
            number, message.code, message.signal, message.time_ns, stopped, failure, peak_bytes=message.peak_bytes
        )
        if leaving is not None:
            rank.end = replace(rank.end, left=bool(leaving.code), left_at=leaving.place)
            if stopped:
                # Its script had ended by itself before the launcher's signal came.
                rank.end = replace(rank.end, code=leaving.code, signal=0, time_ns=leaving.time_ns, stopped=False)
        return rank.end

    def killed_from_outside(self, number: int) -> RankEnd:
        """Somebody else has killed it, and not for lack of memory."""
        rank = self._all[number]
        assert rank.end is not None
        rank.end = replace(rank.end, is_from_outside=True)
        return rank.end

    def vanished(self, code: int, signal: int, time_ns: int) -> None:
        """All that still ran were killed with the nursery."""
        for number in self.running:
            self._all[number].end = RankEnd(number, code, signal, time_ns, True, self.failure_of(number))
