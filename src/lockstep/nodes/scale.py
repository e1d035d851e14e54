"""What a run on very many nodes costs, on paper: pure arithmetic over what the code does, for 2 to 10,000 nodes.

    added             each node tells what it has to tell with two requests, however many others tell something
    read_by_all       every node reads every batch of the log; a wave of answers that takes a second is some batches
    sent_bytes        every node reads every entry: this grows with the square of the nodes
    met               each rank asks the store three times where the others are
    met_bytes         every rank reads where every other one is, and has a number for each: this grows with the cube of the ranks

Everything else grows with the nodes, or not at all. docs/design/0028 has the table, and what would break first. The tests
compare these numbers with those of the real log and of real groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.nodes.files import for_another
from lockstep.nodes.log import MOST_BYTES
from lockstep.nodes.order import pause_s
from lockstep.nodes.preflight import partners
from lockstep.nodes.tunnel import BEAT_S

NODE_BYTES, MEMBER_BYTES = 20, 27
"""What a preflight's question and a roster have for each node."""
PACKED_BYTES, GAUGES_BYTES = 35, 65
"""What a node tells in one wave, as it is read in a batch of many: 16 to 31 bytes with 40 nodes; and at the end of a round for each rank."""
PREFLIGHT_S = 5.0
"""How long it may take."""
ADDS, READS = 2, 2
"""Requests of a node to add an entry: it is put into the queue, and the store says so; to read a batch: it waits for it, and takes it."""
MEETS = 3
"""How often a rank asks the store when a Gloo group is made: it says where it is, waits for all, and reads where they are."""
PLACE_BYTES, PAIR_BYTES = 165, 8
"""What it says and each other one reads: where it is, and a number for each rank of the group."""


@dataclass(frozen=True)
class Shape:
    """A run.

    Args:
        nodes: at least 2.
        ranks: of each node.
        spread_s: how long the nodes take, from the first to the last, to answer when all are to.
        groups: of torch's over all ranks, a plain script's own one for example.
        is_first: whether the round is the first one, or has new nodes: then a preflight comes before it.
    """

    nodes: int
    ranks: int = 8
    spread_s: float = 1.0
    groups: int = 1
    is_first: bool = True


@dataclass(frozen=True)
class Control:
    """What one round costs, from the question of the first node to the decision after it."""

    entries: int
    added: int
    """Requests of all nodes together to add them."""
    batches: int
    """In which they are read."""
    read_by_all: int
    """Requests of all nodes together to read them; the first one hands them to its launcher without."""
    preflight: int
    """Of these requests, those of the preflight."""
    met: int
    """Requests of all ranks together to find each other."""
    met_bytes: int
    """That they read for that."""
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
    nodes, ranks, world = shape.nodes, shape.ranks, shape.nodes * shape.ranks
    checks = int(shape.is_first)
    waves, alone = (
        2 + 2 * checks,
        2 + checks,
    )  # all ask and end, listen and report; roster and decision, the check's question
    entries = waves * nodes + alone
    batches = waves * batches_of_a_wave(nodes, shape.spread_s) + alone
    check = checks * (2 * batches_of_a_wave(nodes, shape.spread_s) + 1)
    roster = MEMBER_BYTES * nodes
    return Control(
        entries=entries,
        added=ADDS * entries,
        batches=math.ceil(batches),
        read_by_all=READS * math.ceil(batches * (nodes - 1)),
        preflight=checks * ADDS * (2 * nodes + 1) + READS * math.ceil(check * (nodes - 1)),
        met=MEETS * shape.groups * world,
        met_bytes=shape.groups * world**2 * (PLACE_BYTES + PAIR_BYTES * world),
        roster_bytes=roster,
        sent_bytes=(nodes - 1)
        * (nodes * (waves * PACKED_BYTES + ranks * GAUGES_BYTES) + roster + checks * NODE_BYTES * nodes),
        beats_per_s=(nodes - 1) / BEAT_S,
        files=(nodes - 1) * for_another(ranks),
    )


def batches_of_a_wave(nodes: int, spread_s: float) -> float:
    """In how many batches all nodes' answers are read: one, and one for each pause meanwhile, and at most one for each node."""
    return min(nodes, 1 + spread_s / pause_s(nodes - 1))


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
        bytes_per_s: that leave the first node.
    """

    requests_per_s: float
    open_files: int = 1_048_576
    patience_s: float = 60.0
    bytes_per_s: float = 125e6


@dataclass(frozen=True)
class Break:
    """What no longer works, and from how many nodes on."""

    what: str
    nodes: int


def breaks(limits: Limits, ranks: int = 8, most: int = 1 << 20) -> Sequence[Break]:
    """What breaks up to `most` nodes, the first first."""

    def fails(what: str, nodes: int) -> bool:
        return _failures(control(Shape(nodes, ranks)), limits)[what]

    found = []
    for what, is_hopeless in _failures(control(Shape(most, ranks)), limits).items():
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
        "the ranks have not found each other in time": costs.met > in_time
        or costs.met_bytes > limits.bytes_per_s * limits.patience_s,
        "the log has not been written and read in time": costs.added + costs.read_by_all > in_time,
        "the log's bytes have not left the first node in time": costs.sent_bytes
        > limits.bytes_per_s * limits.patience_s,
        "the roster is longer than an entry may be": costs.roster_bytes > MOST_BYTES,
        "the beats alone keep the first node busy": costs.beats_per_s > limits.requests_per_s,
        "the first node may not open so many files": costs.files > limits.open_files,
    }
