"""What a run on very many nodes costs, on paper: pure arithmetic over what the code does, for 2 to 10,000 nodes.

    read_by_each      every node reads every entry of the log, so the first node answers nodes x entries
    taken_before      of nodes that add an entry at once, each tries every number that another one was quicker to take
    met               each rank asks the store where every other rank is

These three grow with the square of the nodes; everything else grows with the nodes, or not at all. docs/design/0028 has the
table, and what would break first. The tests compare these numbers with those of the real log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.nodes.files import for_another
from lockstep.nodes.log import MOST_BYTES
from lockstep.nodes.preflight import partners
from lockstep.nodes.tunnel import BEAT_S

NODE_BYTES, LISTENS_BYTES, REACHED_BYTES = 20, 200, 130
"""Of a preflight: what its question has for each node, and what a node answers."""
PREFLIGHT_S = 5.0
"""How long it may take."""
LOOKS_PER_RANK = 2
"""How often a rank asks the store about each rank of a Gloo group before all are connected: until it is there, and where."""


@dataclass(frozen=True)
class Shape:
    """A run.

    Args:
        nodes: at least 2.
        ranks: of each node.
        record_bytes: what a node says about itself, as JSON.
        groups: of torch's over all ranks, a plain script's own one for example.
        is_first: whether the round is the first one, or has new nodes: then a preflight comes before it.
    """

    nodes: int
    ranks: int = 8
    record_bytes: int = 550
    groups: int = 1
    is_first: bool = True


@dataclass(frozen=True)
class Control:
    """What one round costs, from the question of the first node to the decision after it."""

    entries: int
    read_by_each: int
    """Requests of one node to the store to read them."""
    read_by_all: int
    """Of all nodes."""
    taken_before: int
    """Requests of all nodes together to add them."""
    preflight: int
    """Of these requests, those of the preflight."""
    met: int
    """Requests of all ranks together to find each other."""
    roster_bytes: int
    """The largest entry."""
    sent_bytes: int
    """From the first node to all others."""
    beats_per_s: float
    """That reach the first node while everything goes well."""
    files: int
    """Open in the first node's link for the others."""


def control(shape: Shape) -> Control:
    """What the log, the store and the gate have to do. Invariant: nothing becomes less with more nodes or ranks."""
    nodes, ranks, record = shape.nodes, shape.ranks, shape.record_bytes
    checks = int(shape.is_first)
    entries = 2 * nodes + 2  # each asks, the roster, each ends, the decision
    check = checks * (2 * nodes + 1)  # the first node asks, each listens, each reports
    roster = nodes * record
    asked, reported = NODE_BYTES * nodes, (LISTENS_BYTES + REACHED_BYTES) * nodes
    entries += check
    return Control(
        entries=entries,
        read_by_each=2 * entries,  # it waits for an entry, then takes it
        read_by_all=2 * entries * nodes,
        taken_before=added(nodes) + checks * added(nodes, preflight=True),
        preflight=2 * check * nodes + checks * added(nodes, preflight=True),
        met=LOOKS_PER_RANK * shape.groups * (nodes * ranks) ** 2,
        roster_bytes=roster,
        sent_bytes=(nodes - 1) * (nodes * record + roster + checks * (asked + reported)),
        beats_per_s=(nodes - 1) / BEAT_S,
        files=(nodes - 1) * for_another(ranks),
    )


def added(nodes: int, *, preflight: bool = False) -> int:
    """Compare-and-sets of one round, or of the preflight before it.

    A node begins behind what it has read, so only entries that are added at once stand in each other's way: all ask, and all
    end; in a preflight all listen, and all report. Of each such wave the k-th tries k numbers. The first node adds the roster and the
    decision, or the question of the preflight, when it has read all before.
    """
    waves, alone = (2, 1) if preflight else (2, 2)
    return waves * (nodes * (nodes + 1) // 2) + alone


def tried(nodes: int) -> int:
    """Connections between nodes that a preflight opens: all pairs both ways, and of many nodes a few for each."""
    return nodes * len(partners(0, nodes))


def sent_for_a_sum(nodes: int, size_bytes: float, subtrees: int = 1) -> float:
    """Bytes that leave a node for one sum over all of them, whose node has so many subtrees of the lane tree; 1: a ring's.

    Invariant: below `(subtrees + 1) x size`, whatever the number of nodes.
    """
    return (nodes - 1) / nodes * (subtrees + 1) * size_bytes


@dataclass(frozen=True)
class Limits:
    """What a machine gives.

    Args:
        requests_per_s: that the store answers through the gate.
        open_files: of a process.
        patience_s: how long ranks wait until all are connected.
    """

    requests_per_s: float
    open_files: int = 1_048_576
    patience_s: float = 60.0


@dataclass(frozen=True)
class Break:
    """What no longer works, and from how many nodes on."""

    what: str
    nodes: int


def breaks(limits: Limits, ranks: int = 8, record_bytes: int = 550, most: int = 1 << 20) -> Sequence[Break]:
    """What breaks up to `most` nodes, the first first."""

    def fails(what: str, nodes: int) -> bool:
        return _failures(control(Shape(nodes, ranks, record_bytes)), limits)[what]

    found = []
    for what, is_hopeless in _failures(control(Shape(most, ranks, record_bytes)), limits).items():
        low, high = 1, most  # works with `low`, fails with `high`
        while is_hopeless and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails(what, middle) else (middle, high)
        found += [Break(what, high)] if is_hopeless else []
    return sorted(found, key=lambda one: one.nodes)


def _failures(costs: Control, limits: Limits) -> Mapping[str, bool]:
    in_time = limits.requests_per_s * limits.patience_s
    return {
        "the preflight takes longer than it may": costs.preflight > limits.requests_per_s * PREFLIGHT_S,
        "the ranks have not found each other in time": costs.met > in_time,
        "the log has not been written and read in time": costs.taken_before + costs.read_by_all > in_time,
        "the roster is longer than an entry may be": costs.roster_bytes > MOST_BYTES,
        "the beats alone keep the first node busy": costs.beats_per_s > limits.requests_per_s,
        "the first node may not open so many files": costs.files > limits.open_files,
    }


def largest_world(limits: Limits) -> int:
    """How many ranks find each other in time."""
    return math.isqrt(int(limits.requests_per_s * limits.patience_s / LOOKS_PER_RANK))
