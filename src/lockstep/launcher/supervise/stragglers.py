"""Ranks that keep the others waiting in each step: found while the run goes on, from the gauges, and said once.

Between the two times that a rank must be found, the kernel's counters tell what kept it, or its loader workers, from running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.launcher.diagnosis.causes import Cause, kept_from_running
from lockstep.launcher.diagnosis.findings import STRAGGLER
from lockstep.launcher.diagnosis.spent import LEAST_STEPS, Spent, Straggler, straggler
from lockstep.launcher.supervise.other_nodes import OtherNodes
from lockstep.launcher.terminal.cases import Cases
from lockstep.launcher.terminal.report import Line
from lockstep.launcher.terminal.saying import Saying
from lockstep.machine.held_back import HeldBack, held_back
from lockstep.machine.leftovers import descendants
from lockstep.protocol.journal.gauges import Gauges

EQUAL_WORK = ("ddp", "zero1")
"""Strategies under which all ranks do the same; stages differ by design."""


@dataclass
class Stragglers:
    """Those of one world of ranks. A rank must be slow twice in a row, for at least `LEAST_STEPS` steps each time.

    Args:
        saying: where lines go.
        cases: where they are kept.
        pid_of: the process of a rank; 0 before it began.
        nodes: the other nodes, if there are any.
    """

    saying: Saying
    cases: Cases
    pid_of: Callable[[int], int]
    nodes: OtherNodes | None = None
    _base: Sequence[Gauges] = ()
    _found: tuple[int, str] | None = None
    _since_s: float = 0.0
    _held: Mapping[int, HeldBack] = field(default_factory=dict)
    """What had kept the processes of the rank that was found from running until then; its own first."""
    _said: set[tuple[int, str]] = field(default_factory=set)

    def look(self, gauges: Sequence[Gauges], strategy: str) -> None:
        """Look at the gauges of all ranks, in their order.

        Args:
            gauges: as they are now.
            strategy: as rank 0 decided it; empty before.
        """
        if strategy not in EQUAL_WORK or len(gauges) < 2:
            return
        if len(self._base) != len(gauges) or any(
            new.step < old.step for old, new in zip(self._base, gauges, strict=True)
        ):
            self._base = gauges
            return
        spent = [Spent.between(old, new) for old, new in zip(self._base, gauges, strict=True)]
        if min(one.steps for one in spent) < LEAST_STEPS:
            return
        self._base, slow = gauges, straggler(spent, homes=self.nodes.homes if self.nodes is not None else {})
        before, self._found = self._found, (slow.rank, slow.part) if slow is not None else None
        if slow is None or self._found in self._said:
            return
        if self._found != before:
            self._since_s, self._held = time.monotonic(), self._look_at(slow)
            return
        self._said.add((slow.rank, slow.part))
        why = self._cause(slow)
        said = f"{slow.text}{f'; {why.sentence}' if why is not None else ''}"
        self.saying.line(line := Line("slow", said))
        self.cases.add(STRAGGLER, said, [slow.rank])
        if self.nodes is not None:
            self.nodes.say(line, STRAGGLER, frozenset({slow.rank}))

    def _look_at(self, slow: Straggler) -> dict[int, HeldBack]:
        pid = self.pid_of(slow.rank)
        if not pid:
            return {}
        return {each: held_back(each) for each in (pid, *(descendants(pid) if slow.part == "data" else ()))}

    def _cause(self, slow: Straggler) -> Cause | None:
        """What kept the rank from running since it was found first, or else what kept one of its loader workers."""
        now, seconds = self._look_at(slow), time.monotonic() - self._since_s
        for number, (pid, before) in enumerate(self._held.items()):
            found = kept_from_running(before, now[pid], seconds) if pid in now else None
            if found is not None:
                return Cause(found.why, found.text, "its loader worker") if number else found
        return None
