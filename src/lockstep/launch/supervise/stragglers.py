"""Ranks that keep the others waiting in each step: found while the run goes on, from the gauges, and said once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.diagnosis.spent import LEAST_STEPS, Spent, straggler
from lockstep.findings.straggler import FINDING as STRAGGLER
from lockstep.journal.gauges import Gauges
from lockstep.launch.screen.cases import Cases
from lockstep.launch.screen.report import Line
from lockstep.launch.screen.saying import Saying

EQUAL_WORK = ("ddp", "zero1")
"""Strategies under which all ranks do the same; stages differ by design."""


@dataclass
class Stragglers:
    """Those of one world of ranks. A rank must be slow twice in a row, for at least `LEAST_STEPS` steps each time."""

    saying: Saying
    cases: Cases
    _base: Sequence[Gauges] = ()
    _found: tuple[int, str] | None = None
    _said: set[tuple[int, str]] = field(default_factory=set)

    def look(self, gauges: Sequence[Gauges], strategy: str) -> None:
        """Look at the gauges of all ranks, rank r at index r.

        Args:
            gauges: as they are now.
            strategy: as rank 0 decided it; empty before.
        """
        if strategy not in EQUAL_WORK or len(gauges) < 2:
            return
        if not self._base or any(new.step < old.step for old, new in zip(self._base, gauges, strict=True)):
            self._base = gauges
            return
        spent = [Spent.between(old, new) for old, new in zip(self._base, gauges, strict=True)]
        if min(one.steps for one in spent) < LEAST_STEPS:
            return
        self._base, slow = gauges, straggler(spent)
        before, self._found = self._found, (slow.rank, slow.part) if slow is not None else None
        if slow is not None and self._found == before and self._found not in self._said:
            self._said.add((slow.rank, slow.part))
            self.saying.line(Line("slow", slow.text))
            self.cases.add(STRAGGLER, slow.text, [slow.rank])
