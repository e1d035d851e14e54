"""What a run on very many nodes costs, on paper: pure arithmetic over what the code does, for 2 to 10,000 nodes.

    read_by_each      every node reads every entry of the log, so the first node answers nodes x entries
    taken_before      a node that adds an entry tries every number that others took since its last one
    met               each rank asks the store where every other rank is

These three grow with the square of the nodes; everything else grows with the nodes, or not at all. docs/design/0028 has the
table, and what would break first. The tests compare these numbers with those of the real log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.nodes.log import MOST_BYTES
from lockstep.nodes.tunnel import BEAT_S

LINK_CONNECTIONS = 2
"""Of a node's link to the store: one to write the log, one that waits for its next entry."""
FILES_PER_CONNECTION = 3
"""Of the first node's link, for each connection of another node: behind TLS, to the store, and the store's own end."""
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
    """

    nodes: int
    ranks: int = 8
    record_bytes: int = 550
    groups: int = 1


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
    met: int
    """Requests of all ranks together to find each other."""
    roster_bytes: int
    """The largest entry."""
    sent_bytes: int
    """From the first node to all others."""
    beats_per_s: float
    """That reach the first node while everything goes well."""
    files: int
    """Open in the first node's link."""


def control(shape: Shape) -> Control:
    """What the log, the store and the gate have to do. Invariant: nothing becomes less with more nodes or ranks."""
    nodes, ranks, record = shape.nodes, shape.ranks, shape.record_bytes
    entries = 2 * nodes + 2  # each asks, the roster, each ends, the decision
    roster = nodes * record
    return Control(
        entries=entries,
        read_by_each=2 * entries,  # it waits for an entry, then takes it
        read_by_all=2 * entries * nodes,
        taken_before=added(nodes),
        met=LOOKS_PER_RANK * shape.groups * (nodes * ranks) ** 2,
        roster_bytes=roster,
        sent_bytes=(nodes - 1) * (nodes * record + roster),
        beats_per_s=(nodes - 1) / BEAT_S,
        files=(nodes - 1) * (FILES_PER_CONNECTION * (LINK_CONNECTIONS + ranks) + 1),
    )


def added(nodes: int) -> int:
    """Compare-and-sets of one round: the first node adds its question, the roster and the decision, the others two entries.

    One that writes its k-th entry tries all numbers that were taken since its last one. When all end in the order in which
    they asked, each has to pass the others' questions, the roster, and the ends before its own: as many as there are nodes.
    """
    asked = nodes * (nodes + 1) // 2
    roster = nodes
    ended = 1 + (nodes - 1) * (nodes + 1)
    decision = nodes
    return asked + roster + ended + decision


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
        "the ranks have not found each other in time": costs.met > in_time,
        "the log has not been written and read in time": costs.taken_before + costs.read_by_all > in_time,
        "the roster is longer than an entry may be": costs.roster_bytes > MOST_BYTES,
        "the beats alone keep the first node busy": costs.beats_per_s > limits.requests_per_s,
        "the first node may not open so many files": costs.files > limits.open_files,
    }


def largest_world(limits: Limits) -> int:
    """How many ranks find each other in time."""
    return math.isqrt(int(limits.requests_per_s * limits.patience_s / LOOKS_PER_RANK))
