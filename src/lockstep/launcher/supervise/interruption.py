"""A person's signal, and what one world of ranks still does because of it.

a run in a loop that saves by itself   -> asked to save and end; after a time of grace stopped
any other run, and a second signal     -> stopped as `stopping` says
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.launcher import stopping
from lockstep.launcher.request import LaunchRequest, Verbosity
from lockstep.launcher.terminal.report import asked_line
from lockstep.launcher.terminal.saying import Saying
from lockstep.launcher.verdict import RankEnd
from lockstep.protocol.journal.asking import Asking
from lockstep.protocol.run_folder import RunFolder


@dataclass
class Interruption:
    """That of one world of ranks; at most one.

    Args:
        request: the run.
        folder: its folder.
        saying: where lines go.
    """

    request: LaunchRequest
    folder: RunFolder
    saying: Saying
    by: int = 0
    """The first signal; 0 when there was none."""
    is_asked: bool = False
    """Whether the ranks were asked to save and end, and have time for it."""
    waited_s: float = 0.0
    """The time of grace, if it went by in vain."""

    def take(self, number: int, running: frozenset[int], *, may_ask: bool) -> stopping.Plan:
        """Decide what follows a signal, and ask the ranks if they can be asked.

        Args:
            number: the signal.
            running: the ranks that have not ended.
            may_ask: whether nothing else is stopping the run.
        """
        again, self.by = bool(self.by), self.by or number
        now, grace_s = time.monotonic(), self.request.grace_s
        if again or not (may_ask and grace_s and running):
            self.is_asked = False
            return stopping.after_signal(now, number, running, again)
        asking = Asking(self.folder.journal(self.request.numbers.start))
        if not asking.listens:
            return stopping.after_signal(now, number, running, again)
        asking.ask(number)
        self.is_asked = True
        if self.request.verbosity is not Verbosity.QUIET:
            self.saying.line(asked_line(number, grace_s))
        return stopping.after_signal(now + grace_s, number, running, again)

    def leave(self, number: int, running: frozenset[int]) -> stopping.Plan:
        """The run goes on without this node, and says when the ranks here may end; they end by themselves if it is late."""
        self.by = number
        return stopping.after_signal(time.monotonic() + self.request.grace_s, number, running, again=False)

    def gave_up(self, end: RankEnd, running: frozenset[int]) -> stopping.Plan | None:
        """What follows when a rank does not end as it was asked to: the others would wait for it."""
        if not self.is_asked or (end.code in (0, 128 + self.by) and not end.signal and end.failure is None):
            return None
        self.is_asked = False
        self.waited_s = self.request.grace_s if end.stopped else 0.0
        return None if end.stopped else stopping.after_signal(time.monotonic(), self.by, running, again=False)

    def ended(self, ends: Iterable[RankEnd]) -> int:
        """The signal that ended the run; 0 when all ranks came to the end of their script before they heard of it."""
        return 0 if self.is_asked and all(end.code == 0 for end in ends) else self.by
