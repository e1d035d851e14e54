"""Who of a run is there: launchers that are silent, a nursery that is stopped, and nodes whose ranks do not reach each other.

A path between two nodes is cut while bytes of a rank are sent again and again and nobody acknowledges them, as the kernel reports of the
connections that exchange tensors; a process that stands still there acknowledges, because its kernel does. A path over which nothing
is sent is not looked at: nobody waits for it. It is lossy while much is sent again and some of it arrives.

    1.5 s   in doubt, or lossy: no rank is called stalled while a path is
    5 s     reported, with both names
    30 s    one of the two nodes is given up
"""

from __future__ import annotations

import ipaddress
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from samebits.launcher.nodes.roster import Member
from samebits.launcher.nodes.star import GIVEN_UP_S, SILENT_S, Star
from samebits.launcher.nodes.view import RunView
from samebits.machine.processes import process_state
from samebits.machine.socket_bytes import Connection, connections

DOUBT_S, CUT_S = 1.5, 3.5
"""After how long it is published that a path is in doubt, and cut: a moment after the kernel first tried again, and before the next look."""
PAIR_GIVEN_UP_S = GIVEN_UP_S - SILENT_S
"""How long after that one side is given up."""
LOOK_S = 1.0
LOSS_S, LOSSY_LOOKS, LOSSY_SHARE = 10.0, 3, 0.1
"""A path is lossy where so often within this time packets were sent again, and at least this share of all."""
LOSSY_DOUBT_S = 60.0
"""Longer waits are not for packets that are sent again."""
STILL_S = 2.0
"""After how long it is published that this node's nursery is stopped."""


class Path(StrEnum):
    """How a node stands with another one."""

    WORKS = "works"
    LOSSY = "lossy"
    DOUBTFUL = "doubtful"
    CUT = "cut"


@dataclass
class Paths:
    """From one node to the others. Pure.

    Args:
        addresses: of the other nodes, as their ranks use them.
    """

    addresses: Mapping[str, str]
    lost: dict[str, float] = field(default_factory=dict)
    """The share of packets that were sent again, as the last look found it."""
    _since: dict[str, float] = field(default_factory=dict)
    _reported: dict[str, Path] = field(default_factory=dict)
    _sent: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)
    """When looked at within `LOSS_S`: the packets sent until then, and those sent again."""

    def quiet(self, connections: Iterable[Connection], quiet_s: float) -> set[str]:
        """The nodes whose ranks are connected with those here, and sent nothing for so long."""
        found = list(connections)
        since = {
            node: [one.quiet_s for one in found if one.peer == ipaddress.ip_address(address).packed]
            for node, address in self.addresses.items()
        }
        return {node for node, times in since.items() if times and min(times) >= quiet_s}

    def look(self, connections: Iterable[Connection], now: float) -> dict[str, Path]:
        """What is new about the paths since the last look."""
        news, every, found = {}, list(Path), list(connections)
        for node, address in self.addresses.items():
            there = [one for one in found if one.peer == ipaddress.ip_address(address).packed]
            before = self._reported.get(node, Path.WORKS)
            path = self._loss(node, there, now)
            if any(one.is_unanswered for one in there):
                lasts_s = now - self._since.setdefault(node, now)
                path = Path.CUT if lasts_s >= CUT_S else Path.DOUBTFUL if lasts_s >= DOUBT_S else path
                path = max(path, before, key=every.index)
            else:
                self._since.pop(node, None)
            # Connections that ended say nothing: that a path is cut may be why.
            if there and path is not before:
                self._reported[node] = news[node] = path
        return news

    def _loss(self, node: str, there: Iterable[Connection], now: float) -> Path:
        """Whether much was sent again lately, and often: one short interruption is no loss."""
        newest = now, sum(one.sent for one in there), sum(one.sent_again for one in there)
        looks = [one for one in self._sent.get(node, []) if now - one[0] <= LOSS_S and one[1] <= newest[1]]
        looks = self._sent[node] = [*looks, newest]
        often = sum(one[2] < other[2] for one, other in pairwise(looks))
        self.lost[node] = (newest[2] - looks[0][2]) / max(newest[1] - looks[0][1], 1)
        return Path.LOSSY if often >= LOSSY_LOOKS and self.lost[node] >= LOSSY_SHARE else Path.WORKS


def to_give_up(pairs: Collection[frozenset[str]], members: Iterable[Member]) -> str:
    """Of nodes that do not reach each other, the one without which most others do; of two alike that with the higher number, never node 0."""
    ranked = [
        (sum(one.record.node in pair for pair in pairs), one.number, one.record.node)
        for one in members
        if not one.record.is_host and any(one.record.node in pair for pair in pairs)
    ]
    return max(ranked)[2] if ranked else ""


@dataclass
class Liveness:
    """What one node finds out, and publishes.

    Args:
        node: this node.
        view: what it knows of the run.
        star: its side of it.
        publish: adds to the log.
        own: this node's address for exchanges with others.
    """

    node: str
    view: RunView
    star: Star
    publish: Callable[[dict[str, Any]], None]
    own: str
    nursery: int = 0
    """The process of this node's nursery; 0: there is none to be watched."""
    ranks: Callable[[], Iterable[int]] = tuple
    """The processes of the ranks here."""
    silent: dict[str, float] = field(default_factory=dict)
    """Nodes whose launcher is silent, empty for the first one, and since when that is known."""
    lost_first: str = ""
    """Why the run's first node counts as lost."""
    _paths: tuple[int, Paths] | None = None
    """Those of a round."""
    _looked_at: float = 0.0
    _cut_since: dict[frozenset[str], float] = field(default_factory=dict)
    """Since when node 0 knows which pairs do not reach each other."""
    _stopped_since: float = 0.0
    """Since when the nursery is stopped by a signal; 0.0 while it is not."""

    @property
    def doubt_s(self) -> float:
        """For how long it may be the network because of which ranks wait; a lossy one delays, and does not end, what ranks wait for."""
        paths = set(self.view.paths.values())
        if paths - {Path.LOSSY} or self.star.is_unanswered(time.monotonic(), DOUBT_S):
            return math.inf
        return LOSSY_DOUBT_S if paths else 0.0

    def take(self, event: Mapping[str, Any]) -> None:
        """Note that a launcher is silent, or no longer."""
        if event["kind"] == "silent":
            self.silent[event["node"]] = time.monotonic()
        else:
            self.silent.pop(event["node"], None)

    def look(self) -> None:
        """Look, and publish what is new; costs something once a second only."""
        now = time.monotonic()
        self._look_at_nursery(now)
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            if self.node in self.view.numbers() and (pids := [*self.ranks()]):
                self._look_at_paths(pids, now)

    def _look_at_paths(self, pids: list[int], now: float) -> None:
        """Publish whom the ranks here do not reach; on the first node, give one side up when that lasts."""
        if self._paths is None or self._paths[0] != self.view.round:
            self._paths = self.view.round, Paths(self.view.addresses_elsewhere(self.node, self.own))
        if not (paths := self._paths[1]).addresses:
            return
        found = connections([*pids, os.getpid()]) or []
        self._give_up_frozen(paths.quiet(found, GIVEN_UP_S), now)
        for node, path in paths.look(found, now).items():
            entry = {"kind": "path", "round": self.view.round, "node": self.node, "to": node}
            self.publish({**entry, "path": path, "lost": paths.lost[node]})
        if not self._is_host:
            return
        pairs = self.view.cut_pairs()
        # A pair that reaches each other again is forgotten, and counts anew.
        self._cut_since = {pair: self._cut_since.get(pair, now) for pair in pairs}
        if any(now - since >= PAIR_GIVEN_UP_S for since in self._cut_since.values()):
            self._give_up(
                to_give_up(pairs, self.view.members), "its ranks and those of another node do not reach each other"
            )

    def _give_up_frozen(self, quiet: set[str], now: float) -> None:
        """Give up a node of which neither the launcher nor the ranks send anything, although its machine answers."""
        for node, since in list(self.silent.items()):
            named = node or next((one.record.node for one in self.view.members if one.record.is_host), "")
            if named not in quiet or now - since < PAIR_GIVEN_UP_S:
                continue
            if self._is_host:
                self._give_up(node, f"nothing was received from its launcher or its ranks for {GIVEN_UP_S:.0f} s")
            else:
                self.lost_first = f"nothing was received from node 0 for {GIVEN_UP_S:.0f} s"

    def _give_up(self, node: str, why: str) -> None:
        if node:
            self.publish({"kind": "given up", "node": node, "why": why})

    @property
    def _is_host(self) -> bool:
        return any(one.record.is_host and one.record.node == self.node for one in self.view.members)

    def _look_at_nursery(self, now: float) -> None:
        """Publish when a signal has stopped this one's nursery for a while, and when it has resumed."""
        state = process_state(self.nursery) if self.nursery else None
        was_reported = self._stopped_since and now - self._stopped_since >= STILL_S
        if state is None or not state.is_stopped:
            self._stopped_since = 0.0
            if was_reported:
                self.publish({"kind": "stopped", "node": self.node, "what": "", "process": 0})
        elif not was_reported:
            self._stopped_since = self._stopped_since or now
            if now - self._stopped_since >= STILL_S:
                self._stopped_since = now - STILL_S
                self.publish({"kind": "stopped", "node": self.node, "what": "nursery", "process": self.nursery})
