"""What the launcher of one node of several tells the others about its ranks, and what it knows of theirs.

here: ranks wait for long -> what they wait for -> the others    diagnosis.told
there: the same           -> scenes of their ranks
said of a rank here       -> on all terminals, with the node's name
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from lockstep.launcher.diagnosis.findings import Finding
from lockstep.launcher.diagnosis.scene import RankScene
from lockstep.launcher.diagnosis.told import Teller, scenes_of
from lockstep.launcher.nodes.cluster import Cluster
from lockstep.launcher.terminal.report import Line


@dataclass
class OtherNodes:
    """Those of one round, in which this node takes part.

    Args:
        cluster: this node's part in the run.
        teller: decides what is told.
    """

    cluster: Cluster
    teller: Teller
    _came: dict[str, tuple[Mapping[str, Any], float]] = field(default_factory=dict)
    """What each node told last, and when that was heard."""

    def __post_init__(self) -> None:
        members = self.cluster.view.members
        firsts = [0, *accumulate(one.record.ranks for one in members)]
        own = self.cluster.record.node
        self._ranks = {
            one.record.node: range(first, first + one.record.ranks) for one, first in zip(members, firsts, strict=False)
        }
        self.homes = {rank: one.text for one in members for rank in self._ranks[one.record.node]}
        """The node of each rank, for people."""
        self.here = next(one.text for one in members if one.record.node == own)
        self._ranks.pop(own)

    def hear(self) -> None:
        """Note what came just now; call it soon after it came."""
        for node, told in self.cluster.view.waits.items():
            if self._came.get(node, ({}, 0.0))[0] is not told:
                self._came[node] = told, time.monotonic()

    def scenes(self) -> dict[int, RankScene]:
        """The ranks of other nodes, as far as these told."""
        self.hear()
        now, found = time.monotonic(), {}
        for node, ranks in self._ranks.items():
            told, at = self._came.get(node, ({}, now))
            found.update(scenes_of(told, ranks, now - at))
        return found

    def tell(self, scenes: Mapping[int, RankScene]) -> None:
        """Tell what the ranks here wait for, if others have to know.

        Args:
            scenes: of all ranks.
        """
        elsewhere = {rank for ranks in self._ranks.values() for rank in ranks}
        here = {rank: scene for rank, scene in scenes.items() if rank not in elsewhere}
        are_asked = any(scene.wait is not None for rank, scene in scenes.items() if rank in elsewhere)
        told = self.teller.next(here, time.monotonic(), are_asked=are_asked)
        if told is not None:
            self.cluster.sayings.tell_waits(told)

    def say(self, line: Line, finding: Finding | None = None, ranks: frozenset[int] = frozenset()) -> None:
        """Have a line about ranks of this node said on the other nodes as well."""
        name = finding.name if finding is not None else ""
        self.cluster.sayings.tell_said(line.label, line.text, name, sorted(ranks))
