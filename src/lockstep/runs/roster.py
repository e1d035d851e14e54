"""The nodes of a run, as the folder of one of them has them: a file that may be half written or hostile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lockstep.diagnosis.words import ranks_text
from lockstep.visible import visible

MOST_NODES = 10_000
MOST_RANKS = 4096
"""On one node."""


@dataclass(frozen=True)
class Roster:
    """The nodes of one start of the ranks."""

    hosts: tuple[str, ...]
    """`node 1 (host b)`, in their order."""
    sizes: tuple[int, ...]
    """The ranks of each."""
    here: int
    """Whose folder it is."""

    @property
    def numbers(self) -> range:
        """The ranks of this node."""
        first = [0, *accumulate(self.sizes)][self.here]
        return range(first, first + self.sizes[self.here])

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """The ranks of the others."""
        return tuple(rank for rank in range(sum(self.sizes)) if rank not in self.numbers)

    @property
    def text(self) -> str:
        """`ranks 2-3 of 4, on node 1 (host b) of 2 nodes`."""
        count = len(self.sizes)
        nodes = f"{count} node{'s' * (count != 1)}"
        return f"{ranks_text(self.numbers)} of {sum(self.sizes)}, on {self.hosts[self.here]} of {nodes}"


def roster_of(lines: Sequence[dict[str, Any]]) -> Roster | None:
    """The last of the lines in `nodes.jsonl`; None if there is none, or it is none."""
    for told in reversed(lines):
        nodes, here = told.get("nodes"), told.get("here")
        if not isinstance(nodes, list) or type(here) is not int or not 0 <= here < len(nodes) <= MOST_NODES:
            return None
        known = [found for one in nodes if (found := _node(one)) is not None]
        if len(known) < len(nodes):
            return None
        return Roster(tuple(host for host, _ in known), tuple(ranks for _, ranks in known), here)
    return None


def _node(told: Any) -> tuple[str, int] | None:
    match told:
        case {"node": int(number), "host": str(host), "ranks": int(ranks)} if 0 < ranks <= MOST_RANKS:
            return f"node {number} (host {visible(host)})", ranks
    return None
