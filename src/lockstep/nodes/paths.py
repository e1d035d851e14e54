"""Whether nodes whose ranks exchange tensors still reach each other, from what the kernel knows of these connections. Pure.

A path is cut while bytes of a rank for another node are sent again and again and nobody acknowledges them; a process that
stands still there acknowledges, because its kernel does. A path over which nothing is sent is not looked at: nobody waits for it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from lockstep.machine.socket_bytes import Connection
from lockstep.nodes.roster import Member

CUT_S, GIVEN_UP_S = 3.5, 25.5
"""After how long it is told that a path is cut, a moment after the kernel first tried again; and how long after that one side is given up."""


@dataclass
class Paths:
    """From one node to the others.

    Args:
        addresses: of the other nodes, as their ranks use them.
    """

    addresses: Mapping[str, str]
    _since: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def quiet(self, connections: Iterable[Connection], quiet_s: float) -> set[str]:
        """The nodes whose ranks are connected with those here, and sent nothing for so long."""
        found = list(connections)
        since = {
            node: [one.quiet_s for one in found if one.peer == ipaddress.ip_address(address).packed]
            for node, address in self.addresses.items()
        }
        return {node for node, times in since.items() if times and min(times) >= quiet_s}

    def look(self, connections: Iterable[Connection], now: float) -> dict[str, bool]:
        """Which nodes this one does not reach any more (True), or reaches again (False), since the last look."""
        cut = {one.peer for one in connections if one.is_unanswered}
        news = {}
        for node, address in self.addresses.items():
            if ipaddress.ip_address(address).packed not in cut:
                self._since.pop(node, None)
                if node in self._told:
                    self._told.discard(node)
                    news[node] = False
            elif now - self._since.setdefault(node, now) >= CUT_S and node not in self._told:
                self._told.add(node)
                news[node] = True
        return news


def to_give_up(pairs: Collection[frozenset[str]], members: Iterable[Member]) -> str:
    """Of nodes that do not reach each other, the one without which most others do; of two alike that with the higher number, never node 0."""
    ranked = [
        (sum(one.record.node in pair for pair in pairs), one.number, one.record.node)
        for one in members
        if not one.record.is_host and any(one.record.node in pair for pair in pairs)
    ]
    return max(ranked)[2] if ranked else ""
