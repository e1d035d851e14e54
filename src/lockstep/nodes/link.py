"""The link: a process of each node that is in touch with the others, so that the launcher needs no torch and no network.

On the run's first node it holds the run's store, which listens on loopback only, and the gate in front of it; on every node a
tunnel, a port on 127.0.0.1 whose connections end at that store. It adds to the log what the launcher tells, and tells the
launcher what anybody added, line by line, in order; on the first node it makes that order. It decides nothing.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from lockstep.errors import LockstepError, UsageError, WorldError
from lockstep.machine.process_state import process_state
from lockstep.machine.processes import die_with_parent, raise_open_file_limit
from lockstep.nodes.address import Place
from lockstep.nodes.dial import ANSWER_S, NotYet, Silent, Unreachable, key_of_job
from lockstep.nodes.door import Door
from lockstep.nodes.gate import Gate, GateEvent, NodeGone, NodeWithdrew, Presence, StrangerCame
from lockstep.nodes.key import Key
from lockstep.nodes.link_order import LinkOrder
from lockstep.nodes.log import RunLog
from lockstep.nodes.munge import seal
from lockstep.nodes.order import LogOrder
from lockstep.nodes.reach import Reach
from lockstep.nodes.telling import Telling
from lockstep.nodes.tunnel import GateLost, Tunnel
from lockstep.nodes.withdrawal import Withdrawal

FOREVER = dt.timedelta(days=7)
LINGER_S = 8.0
"""How long the run's first node stays for others that have not heard yet how the run ends; a busy machine stood still for 3."""
SILENT_S, GIVEN_UP_S = 4.5, 30.0
"""After how long without a word it is said that a link is cut, and after how long the other side is given up."""
STOPPED_S = 2.0
"""After how long it is told that this node's launcher or nursery is stopped."""
LOOK_S = 0.25
SLOW_S = 30.0
"""How long something that listens and says nothing may be node 0 that begins."""
MOST_STRANGERS = 3
"""Of so many addresses it is said that somebody there does not have the key."""
STORE_OF = "round {}"


class Link:
    """Serves one launcher, over a socket, until that closes.

    Args:
        order: what to do.
        launcher: a stream socket.
        listener: bound to the named address; None where the store is elsewhere.
        nursery: the number of the nursery's process.
    """

    def __init__(self, order: LinkOrder, launcher: socket.socket, listener: socket.socket | None, nursery: int) -> None:
        self._order, self._launcher, self._listener = order, launcher, listener
        self._store_class = importlib.import_module("torch.distributed").TCPStore
        self._telling = Telling(launcher)
        self._tell = self._telling.tell
        self._adding = threading.Lock()
        self._writes: RunLog | None = None
        self._gate: Gate | None = None
        self._stores: list[Any] = []
        """Of the newest rounds."""
        self._round_tunnel: Tunnel | None = None
        self._silent: set[str] = set()
        """Nodes of which was said that nothing is heard of them."""
        self._strangers: set[str] = set()
        """Addresses of those who were not let in, as far as that was said."""
        self._watched = {"launcher": order.launcher, "nursery": nursery}
        self._stopped: dict[str, float] = {}
        """Which of these are stopped, and since when."""
        self._told_stopped = ""
        self._has_given_up = False
        """Whether it was told that node 0 is lost."""

    def run(self) -> None:
        """Serve."""
        with self._telling:
            self._be_in_touch()

    def _be_in_touch(self) -> None:
        try:
            with self._adding:  # what the gate hears meanwhile is added as soon as there is a log
                served = self._serve_store() if self._order.is_host else None
                self._tunnel = self._dig()
                self._writes = RunLog(self._client())
                entries = self._ordered(served) if served is not None else self._read(RunLog(self._client()))
        except (LockstepError, RuntimeError, OSError) as error:
            self._fail(error)
            return
        self._tell({"kind": "port", "port": self._tunnel.port})
        for task in (partial(self._pass_on, entries), self._listen):
            threading.Thread(target=task, daemon=True).start()
        self._take_orders()
        until = time.monotonic() + LINGER_S
        while self._others() and time.monotonic() < until:
            time.sleep(0.01)
        del served

    def _others(self) -> dict[str, Presence]:
        """Other nodes that have connections to the gate here."""
        nodes = self._gate.nodes() if self._gate is not None else {}
        return {node: presence for node, presence in nodes.items() if node != self._order.node}

    def _serve_store(self) -> Any:
        """The store on loopback, locked for all but the gate in front of it."""
        store, port, own = self._new_store()
        assert self._listener is not None
        key, job = Key(self._order.key.encode()), self._order.job
        self._gate = Gate(
            self._listener,
            port,
            key,
            self._on_gate,
            seal=(lambda: seal(key, job)) if job else None,
            door=Door(own),
        ).start()
        own.close()
        return store

    def _new_store(self) -> tuple[Any, int, socket.socket]:
        own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        own.bind(("127.0.0.1", 0))
        port, served = own.getsockname()[1], own.dup().detach()
        store = self._store_class("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=served)
        return store, port, own

    def _dig(self) -> Tunnel:
        """The tunnel; tried again while the first node may not have started yet."""
        order, place = self._order, Place(self._order.address, self._order.port, self._order.source)
        hello = {"node": order.node, "host": order.host}
        try:
            return self._tunnel_to(place, hello, 0.0)
        except NotYet as early:
            if isinstance(early, Silent) and order.patience_s <= ANSWER_S:
                raise
            self._tell({"kind": "unreachable", "why": str(early)})
            patience_s = min(order.patience_s, SLOW_S) if isinstance(early, Silent) else order.patience_s
            return self._tunnel_to(place, hello, patience_s)

    def _tunnel_to(self, place: Place, hello: dict[str, Any], patience_s: float) -> Tunnel:
        secret = self._order.key
        key = Key(secret.encode()) if secret else key_of_job(place, self._order.job, patience_s)
        self._key = key
        return Tunnel(place, key, hello, self._on_tunnel).start(patience_s)

    # A store for each round, for ranks that do not know of rounds

    def _serve_round(self, number: int) -> None:
        """Hold a store for one round, on the run's first node, before the round begins."""
        store, port, own = self._new_store()
        own.close()
        self._stores = [*self._stores[-1:], store]
        assert self._gate is not None
        self._gate.lead_to(STORE_OF.format(number), port)

    def _join_round(self, number: int) -> None:
        """Open a port for the ranks of this node that leads to the store of a round that has begun."""
        order = self._order
        place = Place(order.address, order.port, order.source)
        hello = {"node": order.node, "host": order.host, "store": STORE_OF.format(number)}
        tunnel = Tunnel(place, self._key, hello, self._on_tunnel).start()
        if self._round_tunnel is not None:
            self._round_tunnel.close()
        self._round_tunnel = tunnel
        self._tell({"kind": "round", "round": number, "port": tunnel.port})

    def _client(self) -> Any:
        return self._store_class("127.0.0.1", self._tunnel.port, None, False, timeout=FOREVER)

    def _on_gate(self, event: GateEvent) -> None:
        match event:
            case NodeGone(node) if node != self._order.node:
                entry = {"kind": "gone", "node": node}
            case NodeWithdrew(hello):
                entry = Withdrawal.of(hello).entry()
            case StrangerCame(address) if len(self._strangers) < MOST_STRANGERS and address not in self._strangers:
                self._strangers.add(address)
                told = {"kind": "stranger", "address": address}
                threading.Thread(target=self._tell, args=(told,), daemon=True).start()
                return
            case _:
                return
        threading.Thread(target=self._add, args=(entry,), daemon=True).start()

    def _on_tunnel(self, lost: GateLost) -> None:
        self._tell({"kind": "cut", "why": f"node 0 is gone ({lost.reason})"})

    def _listen(self) -> None:
        """Say which nodes are silent, and give them up when that lasts; tell when this node's launcher is stopped."""
        while True:
            time.sleep(LOOK_S)
            now = time.monotonic()
            self._look_at_launcher(now)
            heard = {node: now - presence.heard_at for node, presence in self._others().items()}
            if not self._order.is_host:
                heard = {"": now - self._tunnel.heard_at}
            for node, silent_s in heard.items():
                if (silent_s >= SILENT_S) != (node in self._silent):
                    (self._silent.discard if node in self._silent else self._silent.add)(node)
                    self._tell({"kind": "silent" if node in self._silent else "heard", "node": node})
                if silent_s >= GIVEN_UP_S:
                    self._give_up(node)

    def _look_at_launcher(self, now: float) -> None:
        """Tell all nodes when nobody watches the ranks here because a signal has stopped who should, and when it goes on."""
        states = {what: process_state(pid) for what, pid in self._watched.items()}
        stopped = {what for what, state in states.items() if state is not None and state.is_stopped}
        self._stopped = {what: self._stopped.get(what, now) for what in stopped}
        told = next((what for what, since in self._stopped.items() if now - since >= STOPPED_S), "")
        if told != self._told_stopped:
            self._told_stopped = told
            process = self._watched.get(told, 0)
            entry = {"kind": "stopped", "node": self._order.node, "what": told, "process": process}
            threading.Thread(target=self._add, args=(entry,), daemon=True).start()

    def _give_up(self, node: str) -> None:
        if self._gate is not None:
            self._gate.bar(node)
        elif not self._has_given_up:
            self._has_given_up = True
            self._tell({"kind": "cut", "why": f"nothing was heard of node 0 for {GIVEN_UP_S:.0f} s"})
            self._tunnel.close()  # else what is being written into the store would wait for days

    def _ordered(self, store: Any) -> Iterator[dict[str, Any]]:
        """Put what all nodes tell into the log, on the run's first node; the entries, which need not be read again."""
        order = LogOrder(store, lambda: len(self._others()))
        while True:
            yield from order.next(FOREVER)

    def _read(self, log: RunLog) -> Iterator[dict[str, Any]]:
        """The entries of the log, as they come."""
        while True:
            yield log.next(FOREVER)

    def _pass_on(self, entries: Iterator[dict[str, Any]]) -> None:
        """Tell the launcher every entry."""
        reach = Reach(self._order.node, self._order.own, self._add)
        try:
            for entry in entries:
                self._tell(entry)
                reach.take(entry)
        except RuntimeError:  # the connection to the store has ended
            self._tell({"kind": "cut", "why": ""})
        except Exception as error:  # noqa: BLE001 - nothing else would tell the launcher that it hears no more
            self._tell({"kind": "cut", "why": f"the run's log cannot be read ({type(error).__name__}: {error})"})

    def _take_orders(self) -> None:
        """Add what the launcher tells, and do what it asks for."""
        with self._launcher.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                match told := json.loads(line):
                    case {"kind": "gauges"}:
                        self._show(told)
                    case {"kind": "given up", "node": node}:
                        self._give_up(node)
                    case {"serve": number}:
                        self._try(partial(self._serve_round, number))
                    case {"join": number}:
                        self._try(partial(self._join_round, number))
                    case _:
                        self._add(told)

    def _try(self, task: Callable[[], None]) -> None:
        """Do it, or tell the launcher why that failed; without this the link would end, and nobody would know why."""
        try:
            task()
        except (LockstepError, RuntimeError, OSError) as error:
            self._fail(error)

    def _add(self, entry: dict[str, Any]) -> None:
        with self._adding, suppress(RuntimeError):
            if self._writes is None:
                return
            try:
                self._writes.add(entry)
            except ValueError as error:
                self._fail(WorldError(f"The other nodes cannot be told: {error}."))

    def _show(self, told: dict[str, Any]) -> None:
        """Put this node's gauges over those before, and tell the launcher those of the nodes for which it asks."""
        with self._adding, suppress(RuntimeError):
            if self._writes is None:
                return
            self._writes.show(told["node"], told)
            for shown in self._writes.shown(told["of"]):
                self._tell(shown)

    def _fail(self, error: Exception) -> None:
        usage = isinstance(error, UsageError | Unreachable | Silent)
        problem, fix = str(error), "Correct --rdzv-endpoint, or look at what node 0 says."
        if isinstance(error, UsageError | Unreachable):
            problem, fix = error.problem, error.fix
        self._tell({"kind": "failed", "is_usage": usage, "why": problem, "fix": fix})


def run_link(order: LinkOrder, launcher: int, listener: int, parent: int) -> NoReturn:
    """Be a link until the launcher closes its end, and end this process.

    Args:
        order: what to do.
        launcher: a socket to it.
        listener: a bound socket for the gate; negative where the store is elsewhere.
        parent: the nursery; when it ends, the link ends.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to all; the launcher decides
    die_with_parent(parent)
    raise_open_file_limit()  # on the first node the link holds three sockets for each connection of another node
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if order.log else null, 2)
    gate = socket.socket(fileno=listener) if listener >= 0 else None
    with socket.socket(fileno=launcher) as ours:
        Link(order, ours, gate, parent).run()
    os._exit(0)  # the interpreter's own end aborts where a thread of gate or tunnel holds a lock that it wants
