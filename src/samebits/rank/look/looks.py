"""When a run looks at what its script keeps, and what it has found.

between steps   at the end of the first three steps of a start: what changed is what a resumed run begins anew
between lanes   around a lane of the second step: what it leaves is what other lanes may read, on this rank or not at all
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from typing import Any

from samebits.machine.torch_private import DisableTorchFunction, dispatching
from samebits.rank.look.observation import Observation, Prepared, look
from samebits.rank.look.verdict import Named, changed, counted, counts_of_lanes, left_behind, unread

LOOKS = 3
"""At the ends of so many steps."""
MOST_S = 0.15
"""Of all looks together."""
VERDICT_S = 0.1
"""Of the comparison of what they saw."""
NOT_YET = "whatever the script kept in its first 3 steps"
"""In place of names, in the states of these steps."""
FOUND = "carried", "handed_on", "unread"
GRADIENTS = Named("the gradients left at the end of an epoch", "")


@dataclass
class Looks:
    """Those of one start of a run, on one rank. Nothing here raises, exchanges or keeps an object of the script."""

    carried: list[Named] = field(default_factory=list)
    """What a step changes and a later one reads, and no state holds."""
    handed_on: list[Named] = field(default_factory=list)
    """What a lane changes and something reads."""
    unread: list[Named] = field(default_factory=list)
    """What the loop reads and could not be looked at whole."""
    own_samples: list[Named] = field(default_factory=list)
    """What data sets keep from one sample to the next."""
    copied: list[str] = field(default_factory=list)
    """An attribute of a data set that the script has changed inside an epoch, where workers hold copies."""
    behind: list[Named] = field(default_factory=list)
    behind_last: list[Named] = field(default_factory=list)
    """What the script reads behind a loop, and no state holds: a run that resumes in a later one lacks it; of the last loop."""
    has_begun: bool = False
    """Whether the first step has."""
    is_over: bool = False
    """Whether there are no more looks."""
    counts_lanes: bool = True
    """Whether an int that a lane changes is handed on; not where a library counts its batches in lanes by design."""
    accumulates: bool = False
    """Whether a pass has begun with gradients of an earlier step, to which it adds."""
    is_shared: bool = False
    """Whether it is what all ranks have found."""
    kept: set[int] = field(default_factory=set)
    """Parameters with gradients of an earlier step that nothing has reset in this one, by identity. A GAN's other network has such
    until it is reset before its own pass; only an update with them, or none at all, is an accumulation."""
    _steps: list[Observation | None] = field(default_factory=list)
    """None of a look that failed."""
    _lane: Observation | None = None
    _lanes_seen: int = 0
    _compared: int = 0
    _spent_s: float = 0.0

    @property
    def has_compared(self) -> bool:
        """Whether the ends of two steps at least were compared, so that it is known what a state lacks."""
        return self.is_over and self._compared > 0

    def after_step(self, prepared: Callable[[], Prepared]) -> bool:
        """A step is over; whether that was the last look.

        Args:
            prepared: what the run holds, with `run.state` and what is tracked.
        """
        self._steps.append(self._look(prepared))
        if len(self._steps) < LOOKS:
            return False
        self.end()
        return True

    def end(self) -> None:
        """There are no more looks: put together what they show. A second call changes nothing."""
        if self.is_over:
            return
        self.is_over, self._lane = True, None
        self.accumulates |= bool(self.kept)
        seen = [one for one in self._steps if one is not None]
        self._steps.clear()
        with suppress(Exception):  # then it stays unknown what a state lacks
            until_s = time.thread_time() + VERDICT_S
            pairs = list(itertools.pairwise(seen))
            carried = [one for before, after in pairs for one in changed(before, after, until_s)]
            self.unread = unread(seen, until_s)
            self.carried = list(dict.fromkeys([*(one for first in seen[:1] for one in counted(first)), *carried]))
            self._compared = 0 if any(one.is_cut for one in seen) else len(pairs)

    def note_update(self, parameters: Iterable[Any]) -> None:
        """An optimizer of these parameters is about to step."""
        self.accumulates |= any(id(one) in self.kept for one in parameters)
        self.kept.difference_update(map(id, parameters))

    def found(self) -> list[Any]:
        """What this rank has found, for the others; empty while there are more looks, and where they know it."""
        if self.is_shared or not self.is_over:
            return []
        return [self._compared, *([astuple(one) for one in getattr(self, name)] for name in FOUND)]

    def share(self, gathered: Sequence[list[Any]]) -> None:
        """Take what the ranks have found; where one could not compare, it is not known what a state lacks."""
        self.is_shared, self._compared = True, min(found[0] for found in gathered)
        for name, *lists in zip(FOUND, *(found[1:] for found in gathered), strict=True):
            setattr(self, name, [*dict.fromkeys(Named(*one) for found in lists for one in found)])

    def enter_lane(self, prepared: Callable[[], Prepared]) -> None:
        """A lane begins; only that of a start's second step is looked at."""
        if not self.is_over and len(self._steps) == 1 and not self._lanes_seen:
            self._lane = self._look(prepared)

    def leave_lane(self, prepared: Callable[[], Prepared]) -> None:
        """The lane is over."""
        if self._lane is None:
            return
        before, self._lane, self._lanes_seen = self._lane, None, 1
        after = self._look(prepared)
        with suppress(Exception):
            until_s = time.thread_time() + VERDICT_S
            found = changed(before, after, until_s, counts_too=self.counts_lanes) if after else []
            # A library's loop has nothing behind its lanes.
            left = left_behind(after) if after and self.counts_lanes else []
            self.handed_on = [*found, *(one for one in left if one.name not in {each.name for each in found})]
            self.handed_on += counts_of_lanes(after) if after and not self.counts_lanes else []

    def _look(self, prepared: Callable[[], Prepared]) -> Observation | None:
        began_s = time.thread_time()
        try:
            # Not through what the script has put between itself and torch: that would be its code.
            with DisableTorchFunction(), dispatching._disable_current_modes():  # noqa: SLF001 - there is no public way
                return look(prepared(), MOST_S - self._spent_s)
        except Exception:  # noqa: BLE001 - what only labels never ends a run
            return None
        finally:
            self._spent_s += time.thread_time() - began_s
