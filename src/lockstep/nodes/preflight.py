"""Preflight: can every node reach every other one, are their clocks and processors alike? Pure; `reach` opens the connections.

The run's first node asks for a check before a round with nodes that were not checked together. Then, in the log:

first node   preflight {number, nodes}
each node    listens   {number, address, port, token}    one short-lived socket, on the address that its ranks will use
each node    reached   {number, not: {node: why}, clock_s}

and the first node decides, once all have reported or are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.nodes.roster import Member, Refused

MOST_PAIRED = 64
"""Up to so many nodes, each one connects to each other one."""
CLOCKS_S = 1.0
"""A clock that is off by more is named."""
MOST_NAMED = 3


@dataclass
class Check:
    """One preflight, as far as the log tells."""

    number: int
    nodes: tuple[str, ...]
    """The run's first node first."""
    listening: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Check:
        """From the first node's entry."""
        return cls(int(entry["number"]), tuple(entry["nodes"]))

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take what a node tells about this check."""
        if entry["number"] == self.number and entry.get("node") in self.nodes:
            told = self.listening if entry["kind"] == "listens" else self.reports
            told[entry["node"]] = dict(entry)

    def all_listen(self, gone: Collection[str]) -> bool:
        """Whether everybody who is there can be connected to."""
        return all(node in self.listening or node in gone for node in self.nodes)

    def is_over(self, gone: Collection[str]) -> bool:
        """Whether everybody who is there has reported."""
        return all(node in self.reports or node in gone for node in self.nodes)

    def covers(self, nodes: Collection[str]) -> bool:
        """Whether it asks about all of these."""
        return set(nodes) <= set(self.nodes)


def partners(place: int, count: int) -> list[int]:
    """Whom the node at `place` of `count` connects to: all others, or of many those at distances 1, 2, 4, ... behind it."""
    if count <= MOST_PAIRED:
        return [other for other in range(count) if other != place]
    steps = [1 << power for power in range((count - 1).bit_length())]
    return sorted({(place + step) % count for step in steps} - {place})


def unreachable(check: Check, members: Sequence[Member]) -> Refused | None:
    """Who of the members cannot reach whom."""
    by_node = {member.record.node: member for member in members}
    pairs = [
        (by_node[one], by_node[other], why)
        for one, report in check.reports.items()
        for other, why in report["not"].items()
        if one in by_node and other in by_node
    ]
    if not pairs:
        return None
    named = [
        f"{one.text} cannot reach {other.text} at {check.listening[other.record.node]['address']} ({why})"
        for one, other, why in pairs[:MOST_NAMED]
    ]
    more = f", and {len(pairs) - MOST_NAMED} more pairs" if len(pairs) > MOST_NAMED else ""
    text = f"{', '.join(named)}{more}."
    nodes = dict.fromkeys(member.record.node for one, other, _ in pairs for member in (one, other))
    return Refused(
        tuple(nodes),
        text[0].upper() + text[1:],
        "Let the nodes open connections to each other at all ports, or name another network with --local-addr.",
    )


def notes(check: Check | None, members: Sequence[Member]) -> list[str]:
    """What people should know of these nodes before they trust clocks and bits; nothing of it keeps a run from working."""
    return [*_clocks(check, members), *_mixed(members), *_threads(members)]


def _clocks(check: Check | None, members: Sequence[Member]) -> list[str]:
    found = []
    for member in members:
        off_s = check.reports.get(member.record.node, {}).get("clock_s") if check is not None else None
        if off_s is not None and abs(off_s) > CLOCKS_S:
            side = "ahead of" if off_s > 0 else "behind"
            found.append(f"the clock of {member.text} is {abs(off_s):.1f} s {side} node 0's, and so are its logs")
    return found


def _mixed(members: Sequence[Member]) -> list[str]:
    """Of each thing that bits may depend on and that is not the same everywhere: who has what."""
    found = []
    for what in dict.fromkeys(what for member in members for what in member.record.alike):
        groups: dict[str, list[Member]] = {}
        for member in members:
            groups.setdefault(member.record.alike.get(what, "unknown"), []).append(member)
        if len(groups) > 1:
            told = "; ".join(f"{value} on {_named(group)}" for value, group in groups.items())
            found.append(f"{what} differ, and bits may depend on them: {told}")
    return found


def _threads(members: Sequence[Member]) -> list[str]:
    counts = {member.record.threads for member in members}
    if len(counts) == 1:
        return []
    told = ", ".join(
        f"{count} on {_named([one for one in members if one.record.threads == count])}" for count in sorted(counts)
    )
    return [f"threads per rank differ ({told}), and bits depend on them, so all ranks take {min(counts)}"]


def _named(members: Sequence[Member]) -> str:
    shown = [member.text for member in members[:MOST_NAMED]]
    more = [f"{len(members) - MOST_NAMED} more"] if len(members) > MOST_NAMED else []
    return ", ".join([*shown, *more])
