"""Stars on loopback, all in the thread of the test: `Sky` makes them, and turns them until something is so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from samebits.launcher.nodes.address import ListenAddress
from samebits.launcher.nodes.interfaces import listen
from samebits.launcher.nodes.key import Key
from samebits.launcher.nodes.node_star import NodeStar
from samebits.launcher.nodes.star import HostStar, Star
from samebits.machine.clocks import readable

LIMIT_S = 20.0


class Sky:
    """Node 0, called `a`, and others.

    Args:
        key: of the run.
        how: what else `HostStar` takes.
    """

    def __init__(self, key: Key | None = None, **how: Any) -> None:
        self.key = key or Key.made()
        listener = listen(ListenAddress("127.0.0.1", 0))
        self.place = ListenAddress("127.0.0.1", listener.getsockname()[1])
        self.host = HostStar("a", listener, self.key, **how)
        self.stars: dict[str, Star] = {"a": self.host}
        self.heard: dict[str, list[dict[str, Any]]] = {"a": []}

    def node(self, name: str, *, key: Key | None = None, patience_s: float = LIMIT_S) -> NodeStar:
        """Another node, which begins to call."""
        star = NodeStar(name, self.place, key or self.key, "", patience_s)
        self.stars[name], self.heard[name] = star, []
        return star

    def turn(self, limit_s: float = 0.05) -> None:
        """Let each do what it has to do, once something is to be done."""
        for star in readable(list(self.stars.values()), limit_s):
            self.heard[star.node] += star.read()

    def until(self, is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Turn until something is so."""
        end = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end, self.heard
            self.turn()

    def joined(self, *names: str) -> None:
        """Let these nodes come."""
        for name in names:
            self.node(name)
        self.until(lambda: set(names) <= set(self.host.nodes()) and all(self.kinds(name) for name in names))

    def kinds(self, name: str) -> list[str]:
        """What a node heard, in short."""
        return [str(message["kind"]) for message in self.heard[name]]

    def entries(self, name: str) -> list[dict[str, Any]]:
        """The entries that a node has read."""
        own = {"there", "silent", "heard", "unauthenticated", "cut", "unreachable", "failed"}
        return [message for message in self.heard[name] if message["kind"] not in own]

    def close(self) -> None:
        """End all at once, without a farewell."""
        for star in self.stars.values():
            for wire in star.wires().values():
                wire.close()
            if isinstance(star, NodeStar):
                star._is_over = True
                star._caller.join()
            star.loop.close()
        for caller in list(self.host._callers._callers):
            caller.end.close()
        self.host._callers._listener.close()
