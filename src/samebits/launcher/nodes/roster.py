"""What each node publishes about itself, and which of them make the next round: a pure decision, made on the run's first node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeRecord:
    """One node. Everything is JSON."""

    node: str
    """A word that names it, unlike any other."""
    host: str
    """Its name, for people."""
    number: int | None
    """The number that it was given; None: any."""
    is_host: bool
    """Whether the run's store is there; it is number 0."""
    least: int
    most: int
    """How many nodes the run has, by its --nnodes."""
    ranks: int
    threads: int
    """Per rank."""
    launcher: int = 0
    """The launcher's process; 0: unknown."""
    same: dict[str, str] = field(default_factory=dict)
    """What must be the same on all nodes, by what people call it."""
    alike: dict[str, str] = field(default_factory=dict)
    """What the bits may depend on."""
    cores: int = 0
    """Where nobody named the threads; 0 where somebody did."""


LAST_CALL_S = 1.0
"""How long a run that may have more nodes waits for them once it has enough for its first round."""


@dataclass(frozen=True)
class Member:
    """A node with a number."""

    number: int
    record: NodeRecord

    @property
    def text(self) -> str:
        """`node 1 (host b)`."""
        return f"node {self.number} (host {self.record.host})"


@dataclass(frozen=True)
class Refused:
    """Why nodes may not take part."""

    nodes: tuple[str, ...]
    problem: str
    fix: str


def disagreement(asking: Sequence[NodeRecord]) -> Refused | None:
    """What the nodes that ask cannot all mean, if there is something.

    Args:
        asking: the run's first node first.
    """
    if not asking:
        return None
    first = asking[0]
    for other in asking[1:]:
        if problem := _contradiction(first, other):
            return Refused((other.node,), *problem)
    return _misnumbered(asking, first.most)


def _misnumbered(asking: Sequence[NodeRecord], most: int) -> Refused | None:
    taken: dict[int, NodeRecord] = {}
    for one in asking:
        number = 0 if one.is_host else one.number
        if number is None:
            continue
        if number >= most:
            return Refused(
                (one.node,),
                f"Node {number} (host {one.host}) does not fit --nnodes {most}: nodes count from 0.",
                f"Give it a --node-rank from 0 to {most - 1}.",
            )
        if number in taken:
            two = f"{taken[number].host} and {one.host}"
            return Refused(
                (one.node,), f"Two nodes, {two}, were started as node {number}.", "Give each its own --node-rank."
            )
        taken[number] = one
    return None


def _contradiction(first: NodeRecord, other: NodeRecord) -> tuple[str, str] | None:
    if (first.least, first.most) != (other.least, other.most):
        both = f"{first.host} has --nnodes {_nodes(first)}, {other.host} --nnodes {_nodes(other)}"
        return f"The nodes disagree about how many they are: {both}.", "Give all of them the same."
    for what in first.same:
        mine, theirs = first.same[what], other.same.get(what, "nothing")
        if mine != theirs:
            return (
                f"The nodes differ in {what}: {mine} on {first.host}, {theirs} on {other.host}.",
                "The result would depend on it, so make it the same on all nodes.",
            )
    return None


def _nodes(record: NodeRecord) -> str:
    return str(record.most) if record.least == record.most else f"{record.least}:{record.most}"


def numbered(asking: Sequence[NodeRecord], before: Mapping[str, int]) -> list[Member]:
    """Give every node its number: that of the round before, the one it was given, else the lowest that is free.

    Args:
        asking: the run's first node first, then in the order in which they came.
        before: the numbers of nodes that had one.
    """
    numbers = {one.node: 0 if one.is_host else before[one.node] for one in asking if one.is_host or one.node in before}
    for one in asking:
        if one.node not in numbers and one.number is not None and one.number not in numbers.values():
            numbers[one.node] = one.number
    for one in asking:
        if one.node not in numbers:
            numbers[one.node] = next(number for number in range(len(asking) + 1) if number not in numbers.values())
    return sorted((Member(numbers[one.node], one) for one in asking), key=lambda member: member.number)


def is_complete(asking: Sequence[NodeRecord], expected: Collection[str], since_s: float, now_s: float) -> bool:
    """Whether the round begins with those who ask.

    Args:
        asking: the run's first node first.
        expected: nodes of the round before that are there and have not asked yet.
        since_s: when the first `least` nodes had asked.
        now_s: now.
    """
    first = asking[0]
    if len(asking) >= first.most:
        return True
    if len(asking) < first.least or expected:
        return False
    return now_s - since_s >= LAST_CALL_S


def surplus(first: NodeRecord, one: NodeRecord) -> Refused:
    """Why a node finds no place."""
    return Refused(
        (one.node,),
        f"The run has its {first.most} nodes already, and host {one.host} is one more.",
        "Leave it out, or start all nodes again with a larger --nnodes.",
    )


def missing(asking: Sequence[NodeRecord], before: Sequence[Member], hosts: Sequence[str] = ()) -> str:
    """`waiting for 1 of 3 nodes: host c (node 2) never connected`.

    Args:
        asking: the run's first node first.
        before: the members of the round before; empty at the start.
        hosts: the names of all nodes in the order of their numbers; empty where no launcher lists them.
    """
    first, there = asking[0], {one.node for one in asking}
    lacking = max(first.least - len(asking), 0) or first.most - len(asking)
    total = first.least if len(asking) < first.least else first.most
    away = [member.text for member in before if member.record.node not in there]
    numbers = {one.number for one in asking if one.number is not None} | {0}
    if away:
        who = f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} not back"
    elif all(one.is_host or one.number is not None for one in asking):
        never = [_called(number, hosts) for number in range(total) if number not in numbers]
        who = f"{', '.join(never)} never connected"
    else:
        who = f"only {', '.join(one.host for one in asking)} {'has' if len(asking) == 1 else 'have'} connected"
    return f"waiting for {lacking} of {total} nodes: {who}"


def _called(number: int, hosts: Sequence[str]) -> str:
    return f"host {hosts[number]} (node {number})" if number < len(hosts) else f"node {number}"


def withdrawal(number: int | None, host: str, problem: str, fix: str) -> Refused:
    """Why all nodes end where this one could not start; `number` is None where nobody gave it one."""
    who = f"Node {number} (host {host})" if number is not None else f"The node on host {host}"
    fix = f"On {host}: {fix}" if fix else f"Look at what {host} says, and start all nodes again."
    return Refused((), f"{who} cannot start: {problem}", fix)
