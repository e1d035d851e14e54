"""Preflight: can every node reach every other one, and are their processors alike? Pure, and the connections (`Reach`).

The run's first node asks for a check before a round with nodes that were not checked together. Then, in the log:

    first node   preflight {number, nodes}
    each node    listens   {number, address, port, token}    one short-lived socket, on the address that its ranks will use
    each node    reached   {number, not: {node: why}}

and the first node decides, once all have reported or are gone.

Runs in: the launcher's thread; connections in short-lived ones, named samebits-preflight.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from samebits.launcher.nodes.address import family
from samebits.launcher.nodes.roster import Member, Refused
from samebits.launcher.nodes.wire import Loop

MOST_PAIRED = 64
"""Up to so many nodes, each one connects to each other one."""
MOST_NAMED = 3


@dataclass
class Check:
    """One preflight, as far as the log says."""

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
        """Take what a node publishes about this check."""
        if entry["number"] == self.number and entry.get("node") in self.nodes:
            found = self.listening if entry["kind"] == "listens" else self.reports
            found[entry["node"]] = dict(entry)

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
    # Each node calls log2 of all nodes, and as many call it.
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


def notes(members: Sequence[Member]) -> list[str]:
    """What people should know of these nodes before they trust bits; nothing of it keeps a run from working."""
    return [*_mixed(members), *_threads(members)]


def _mixed(members: Sequence[Member]) -> list[str]:
    """Of each thing that bits may depend on and that is not the same everywhere: who has what."""
    found = []
    for what in dict.fromkeys(what for member in members for what in member.record.alike):
        groups: dict[str, list[Member]] = {}
        for member in members:
            groups.setdefault(member.record.alike.get(what, "unknown"), []).append(member)
        if len(groups) > 1:
            values = "; ".join(f"{value} on {_named(group)}" for value, group in groups.items())
            found.append(f"{what} differ, and bits may depend on them: {values}")
    return found


def _threads(members: Sequence[Member]) -> list[str]:
    counts = {member.record.threads for member in members}
    if len(counts) == 1:
        return []
    threads = ", ".join(
        f"{count} on {_named([one for one in members if one.record.threads == count])}" for count in sorted(counts)
    )
    return [f"threads per rank differ ({threads}), and bits depend on them, so every rank takes at most {min(counts)}"]


def _named(members: Sequence[Member]) -> str:
    shown = [member.text for member in members[:MOST_NAMED]]
    more = [f"{len(members) - MOST_NAMED} more"] if len(members) > MOST_NAMED else []
    return ", ".join([*shown, *more])


CONNECT_S = 3.0
"""How long a connection may take."""
LINGER_S = 5.0
"""How long others may take longer than this node."""


class Reach:
    """Does what the log asks of this node; `take` gets every entry, `look` is called twice a second.

    Args:
        node: this node.
        address: the one that its ranks will use for exchanges between nodes.
        publish: adds to the log.
        loop: watches the listening socket.
    """

    def __init__(self, node: str, address: str, publish: Callable[[dict[str, Any]], None], loop: Loop) -> None:
        self._node, self._address, self._publish, self._loop = node, address, publish, loop
        self._check: Check | None = None
        self._gone: set[str] = set()
        self._listener: socket.socket | None = None
        self._token = ""
        self._calls: dict[str, str | None] | None = None
        """Why other nodes were not reached, empty where they were; None while they are called. None: not begun."""
        self._until = 0.0

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry of the log."""
        match entry.get("kind"):
            case "preflight" if self._node in entry["nodes"]:
                self.close()
                self._begin(Check.of(entry))
            case "listens" | "reached" if self._check is not None:
                self._check.take(entry)
            case "gone":
                self._gone.add(str(entry["node"]))
            case "roster" | "refused":
                self.close()
        self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Do what can be done next, as far as the others are."""
        if (check := self._check) is None:
            return
        if self._calls is None:
            if check.all_listen(self._gone):
                self._calls = self._call_all(check)
        elif not self._until and None not in self._calls.values():
            self._until = now + LINGER_S
            missed = {node: why for node, why in self._calls.items() if why}
            self._publish({"kind": "reached", "number": check.number, "node": self._node, "not": missed})
        if self._until and (now > self._until or check.is_over(self._gone)):
            self.close()

    def close(self) -> None:
        """End what is under way."""
        if self._listener is not None:
            self._loop.forget(self._listener)
            self._listener.close()
        self._check, self._listener, self._calls, self._until = None, None, None, 0.0

    def _begin(self, check: Check) -> None:
        # Whoever else listens at that port by then does not know the token.
        self._check, self._token, port, why = check, secrets.token_hex(8), 0, ""
        try:
            self._listener = listener = socket.create_server((self._address, 0), family=family(self._address))
            listener.setblocking(False)
            self._loop.watch(listener, self._answer)
            port = listener.getsockname()[1]
        except OSError as error:
            why = f"its address cannot be used: {os.strerror(error.errno or 0)}"
        own = {"address": self._address, "port": port, "token": self._token, "why": why}
        self._publish({"kind": "listens", "number": check.number, "node": self._node, **own})

    def _answer(self, _mask: int) -> None:
        """Say who this is; nothing is read."""
        assert self._listener is not None
        with suppress(OSError):
            end, _ = self._listener.accept()
            with end:
                end.send(self._token.encode())

    def _call_all(self, check: Check) -> dict[str, str | None]:
        """Connect to the others, as far as this node is to, in threads that end by themselves after `CONNECT_S`."""
        others = [check.nodes[place] for place in partners(check.nodes.index(self._node), len(check.nodes))]
        # Of this check alone: a thread that is late must not answer for the next one.
        calls: dict[str, str | None] = {node: None for node in others if node in check.listening}

        def call(node: str) -> None:
            calls[node] = _why_not(self._address, check.listening[node])
            self._loop.wake()

        for node in calls:
            threading.Thread(target=call, args=(node,), name="samebits-preflight", daemon=True).start()
        return calls


def _why_not(address: str, peer: Mapping[str, Any]) -> str:
    """Why a node was not reached from this address; empty where it was."""
    if not peer["port"]:
        return str(peer["why"])
    try:
        with socket.create_connection((peer["address"], peer["port"]), CONNECT_S, (address, 0)) as end:
            came = end.recv(100)
    except TimeoutError:
        return "nothing answers"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else "it broke off"
    if came == peer["token"].encode():
        return ""
    return "another program answers" if came else "it broke off"
