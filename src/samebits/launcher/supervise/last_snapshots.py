"""Whether ranks that are to end still take a snapshot of their step's beginning (`rank.checkpoint.when.last_snapshot`).

All ranks start again when one is lost, from the newest snapshot. A survivor of each node takes a last one, when it comes to
the exchange that cannot end; so the ranks of this node are not sent away before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from samebits.launcher.blame import RankEnd
from samebits.launcher.choices import Recovery
from samebits.launcher.recovery import Loss, loss_of, may_start_again
from samebits.launcher.supervise.observer import Observer
from samebits.launcher.terminal.failure_block import last_work
from samebits.protocol.journal.signals import Event, News

PATIENCE_S = 30.0
"""How long survivors may take to come to the exchange. Steps may be long; without it the newest older snapshot does."""


@dataclass
class LastSnapshots:
    """Those of the ranks of one node, in one attempt.

    Args:
        recovery: what was requested.
        observer: what the launcher sees of the ranks.
        history: the losses after which ranks were started again, in all attempts.
    """

    recovery: Recovery
    observer: Observer
    history: list[Loss]

    _able: set[int] = field(default_factory=set)
    """Ranks that would take one."""
    _are_over: bool = False
    """Whether one was taken, or none is wanted."""
    _until_s: float = 0.0
    """Until when one is waited for; 0.0 while none is."""

    def take(self, news: News) -> None:
        """Take what a rank reports about itself."""
        if news.event is Event.KEEPS:
            self._able.add(news.rank)
        elif news.code:
            self._able.discard(news.rank)
        else:
            # Ranks that take one hold the same state, so one snapshot on each node is enough.
            self._are_over = True

    def expect_after(self, end: RankEnd, now: float) -> None:
        """A rank here has ended: `expect`, if all will start again because of that."""
        loss = loss_of(end, last_work(self.observer.tail(end.rank)), uses_samebits=True)
        if may_start_again(end, loss, self.recovery, self.history):
            self.expect(now)

    def expect(self, now: float) -> None:
        """A rank was lost somewhere, and all will start again."""
        self._until_s = self._until_s or now + PATIENCE_S

    @property
    def is_expected(self) -> bool:
        """Whether one is waited for, or was taken."""
        return bool(self._until_s)

    def give_up(self) -> None:
        """Nothing starts again, or at once."""
        self._are_over, self._until_s = True, 0.0

    def until(self, running: frozenset[int], now: float) -> float:
        """Until when the ranks that run are left alone; 0.0 when they need not be.

        Args:
            running: the ranks of this node that have a process.
            now: time.monotonic().
        """
        is_due = not self._are_over and running & self._able and now < self._until_s
        return self._until_s if is_due else 0.0
