"""The link: a process of each node that is in touch with the others, so that the launcher needs no torch and no network.

On the run's first node it holds the run's store, which listens on loopback only, and the gate in front of it; on every node a
tunnel, a port on 127.0.0.1 whose connections end at that store. It adds to the log what the launcher tells, and tells the
launcher what anybody added, line by line, in order. It decides nothing.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.machine.processes import die_with_parent
from lockstep.nodes.gate import Gate
from lockstep.nodes.log import RunLog
from lockstep.nodes.tunnel import Tunnel

FOREVER = dt.timedelta(days=7)
CONNECT_S = 5.0
"""How long one attempt to reach the first node may take."""
AGAIN_S = 0.5
"""Between two attempts."""
LINGER_S = 3.0
"""How long the run's first node stays for others that have not heard yet how the run ends."""


@dataclass(frozen=True)
class LinkOrder:
    """What a link is to do."""

    is_host: bool
    """Whether the run's store is here."""
    address: str
    """That of the run's first node."""
    port: int
    key: str
    node: str
    """A word that names this node, unlike any other."""
    patience_s: float
    """How long to try to reach the first node."""
    log: str
    """A file for what torch says about connections."""


class Link:
    """Serves one launcher, over a socket, until that closes.

    Args:
        order: what to do.
        launcher: a stream socket.
        listener: bound to the named address; None where the store is elsewhere.
    """

    def __init__(self, order: LinkOrder, launcher: socket.socket, listener: socket.socket | None) -> None:
        self._order, self._launcher, self._listener = order, launcher, listener
        self._store_class = importlib.import_module("torch.distributed").TCPStore
        self._telling = threading.Lock()
        self._adding = threading.Lock()
        self._writes: RunLog | None = None
        self._there: set[str] = set()
        """Other nodes that have connections to the gate here."""

    def run(self) -> None:
        """Serve."""
        try:
            served = self._serve_store() if self._order.is_host else None
            self._tunnel = self._dig()
            self._writes = RunLog(self._client(), self._order.node)
            reads = RunLog(self._client())
        except (LockstepError, RuntimeError, OSError) as error:
            self._fail(error)
            return
        self._tell({"kind": "port", "port": self._tunnel.port})
        threading.Thread(target=self._pass_on, args=(reads,), daemon=True).start()
        self._take_orders()
        until = time.monotonic() + LINGER_S
        while self._there and time.monotonic() < until:
            time.sleep(0.01)
        del served

    def _serve_store(self) -> Any:
        """The store on loopback, and the gate in front of it."""
        own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
        store = self._store_class("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=own.detach())
        assert self._listener is not None
        gate = Gate(self._listener, port, self._order.key, self._on_gate)
        return store, gate

    def _dig(self) -> Tunnel:
        """The tunnel; tried again while the first node may not have started yet."""
        order, deadline, told = self._order, time.monotonic() + self._order.patience_s, ""
        while True:
            try:
                return Tunnel(order.address, order.port, order.key, order.node, self._on_tunnel)
            except UsageError:
                raise
            except LockstepError as error:
                if time.monotonic() > deadline:
                    raise
                if str(error) != told:
                    told = str(error)
                    self._tell({"kind": "unreachable", "why": told})
            time.sleep(AGAIN_S)

    def _client(self) -> Any:
        return self._store_class("127.0.0.1", self._tunnel.port, None, False, timeout=FOREVER)

    def _on_gate(self, node: str, is_there: bool) -> None:
        """A node's last connection has ended, or its first one has come."""
        if node == self._order.node:
            return
        (self._there.add if is_there else self._there.discard)(node)
        if not is_there:
            threading.Thread(target=self._add, args=({"kind": "gone", "node": node},), daemon=True).start()

    def _on_tunnel(self, why: str) -> None:
        """The first node is gone."""
        self._tell({"kind": "cut", "why": why})

    def _pass_on(self, log: RunLog) -> None:
        """Tell the launcher every entry."""
        try:
            while True:
                self._tell(log.next(FOREVER))
        except RuntimeError:
            self._tell({"kind": "cut", "why": ""})

    def _take_orders(self) -> None:
        """Add what the launcher tells."""
        with self._launcher.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                self._add(json.loads(line))

    def _add(self, entry: dict[str, Any]) -> None:
        with self._adding, suppress(RuntimeError):
            if self._writes is not None:
                self._writes.add(entry)

    def _tell(self, told: dict[str, Any]) -> None:
        with self._telling, suppress(OSError):
            self._launcher.sendall(json.dumps(told).encode() + b"\n")

    def _fail(self, error: Exception) -> None:
        usage = isinstance(error, UsageError)
        problem, fix = (error.problem, error.fix) if isinstance(error, UsageError) else (str(error), "")
        self._tell({"kind": "failed", "is_usage": usage, "why": problem, "fix": fix})


def run_link(order: LinkOrder, launcher: int, listener: int, parent: int) -> int:
    """Be a link until the launcher closes its end.

    Args:
        order: what to do.
        launcher: a socket to it.
        listener: a bound socket for the gate; negative where the store is elsewhere.
        parent: the nursery; when it ends, the link ends.
    """
    die_with_parent(parent)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    gate = socket.socket(fileno=listener) if listener >= 0 else None
    with socket.socket(fileno=launcher) as ours:
        Link(order, ours, gate).run()
    return 0
