"""A rank's connections to all others, over Gloo: threads that wait for them, who notices that a rank is gone, how they end.

Gloo's own ways to end an exchange do not free a rank that is blocked in one; ending the connections does. So the sockets
are found among this process's, by the addresses at which the ranks listen, and

a rank that leaves         sends each rank a goodbye before its connections end: the others continue
a rank that dies           its connections end without one, which the watching threads of the others notice
a rank that lost another   cuts all of its connections, so the next ranks learn it, and its own exchanges fail at once

Runs in: each rank, and its threads, named samebits watch, samebits waiter and samebits sender.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import queue
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.errors import EnvironmentFailure, PeerLost, SamebitsError
from samebits.machine.effort import name_own_thread
from samebits.machine.own_sockets import Address, OwnSocket, cut, own_sockets, unheard, unread
from samebits.protocol.journal.waiting_note import range_of_wait, subject, waits
from samebits.rank.caller import where
from samebits.rank.transport.contract import Transport
from samebits.rank.transport.local.nodes_store import gloo_reads_at_once, read_all

Task = Callable[[], None]
"""Must not raise."""

LAST_TASK_S = 0.5
"""How long `stop` waits for the end of the thread."""


class BackgroundThread:
    """A thread that runs tasks in order. It starts with the first one, and sleeps while there is none."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_stopped = False

    def do(self, task: Task) -> None:
        """Run this after the others; here and now if the thread was stopped."""
        with self._lock:
            if not self._has_stopped:
                if self._thread is None:
                    self._thread = threading.Thread(target=_work, args=(self._tasks,), name=self._name, daemon=True)
                    self._thread.start()
                self._tasks.put(task)
                return
        task()

    def stop(self) -> None:
        """End the thread after its tasks, and wait a while for it."""
        with self._lock:
            if not self._has_stopped:
                self._has_stopped = True
                self._tasks.put(None)
        if self._thread is not None:
            self._thread.join(LAST_TASK_S)


def _work(tasks: queue.SimpleQueue[Task | None]) -> None:
    name_own_thread("background")
    while (task := tasks.get()) is not None:
        task()
        del task


JOIN = dt.timedelta(seconds=60)
"""How long ranks that have met already may take to connect."""

PATIENCE = dt.timedelta(days=7)
"""How long an exchange may take. Finding out which rank is late is the launcher's job, not a timeout's."""

LOOK_S = 0.5
"""Between two looks whether the connections were cut; `cut` wakes waiting threads, too."""

GOODBYE_S = 2.0
"""How long a rank that leaves waits until the others have received its goodbye."""

READ_S = 0.25
"""How long a rank that sees a connection end lets Gloo read what came before on the others."""

ENDED = "A connection to another rank ended. If a rank failed, its own error says why."

GOODBYE_TAG = 2**31 - 1
"""The tag of the message by which a rank leaves."""


class Across:
    """Connections between ranks. Collective: construct it on every rank.

    Args:
        store: shared by the ranks; nothing else uses its keys.
        names: the ranks' numbers in the run.
        leaders: the ranks that exchange small messages for their nodes, on connections of their own.

    Raises:
        EnvironmentFailure: when the ranks cannot connect.
    """

    def __init__(self, store: Store, rank: int, names: Sequence[int], leaders: Sequence[int]) -> None:
        self._names, self._rank = names, rank
        self.waiter = BackgroundThread("samebits waiter")
        self._tickets: Sequence[_Ticket] = ()
        """What the rank waits for."""
        self._is_cut = False
        self._all: Any
        self._leaders: Any
        # [Note: how Gloo's sockets are found]
        # Gloo does not show them. Those that listen now and did not before are this group's; the ranks exchange these
        # addresses, and then those from which they have connected. So each connection is known by both of its ends.
        before = {one.here for one in own_sockets() if one.there is None}
        try:
            others = [name for name in names if name != names[rank]]
            with waits("the connections between the ranks", others), gloo_reads_at_once(store, JOIN):
                self._all = dist.ProcessGroupGloo(PrefixStore("all", store), rank, len(names), JOIN)
                # Small messages have connections of their own, so they do not wait behind large ones.
                self._leaders = (
                    dist.ProcessGroupGloo(PrefixStore("first", store), leaders.index(rank), len(leaders), JOIN)
                    if rank in leaders
                    else None
                )
        except RuntimeError as error:
            raise EnvironmentFailure(f"Rank {names[rank]} could not connect to the other ranks: {error}.") from error
        self._listening = {one.here for one in own_sockets() if one.there is None} - before
        """Where this process listens for these connections."""
        self._peer_at = self._exchange_addresses(store)
        peers = [peer for peer in range(len(names)) if peer != rank]
        self._has_left = {peer: torch.zeros(1, dtype=torch.uint8, device="cpu") for peer in peers}
        self._goodbyes = [self._all.recv([word], peer, GOODBYE_TAG) for peer, word in self._has_left.items()]
        _alive.add(self)

    def _exchange_addresses(self, store: Store) -> Mapping[Address, int]:
        """Publish where this rank listens and from where it connected; return which rank has which address."""
        found: dict[Address, int] = {}

        def everyone(what: str, mine: Iterable[Address]) -> None:
            store.set(f"{what}/{self._rank}", json.dumps([*mine]))
            for peer, theirs in enumerate(read_all(store, [f"{what}/{peer}" for peer in range(len(self._names))])):
                found.update(dict.fromkeys(map(_address, json.loads(theirs)), peer))

        everyone("ears", self._listening)
        everyone("ends", [one.here for one in own_sockets() if one.there in found and one.here not in found])
        return found

    def connections(self) -> Iterator[tuple[OwnSocket, int]]:
        """This process's sockets that are connected to another rank, and to which."""
        for one in own_sockets():
            peer = self._peer_at.get(one.there, self._rank) if one.there is not None else self._rank
            # A port may be used again by ourselves: a socket between two of our own leads to no other rank.
            if peer != self._rank and self._peer_at.get(one.here) == self._rank:
                yield one, peer

    def send(self, data: Tensor, peer: int, tag: int, *, small: bool = False) -> Any:
        """Begin to send a contiguous tensor. Raises RuntimeError when the connection has ended, as `wait` does."""
        return (self._leaders if small else self._all).send([bytes_of(data)], peer, tag)

    def receive(self, out: Tensor, peer: int, tag: int, *, small: bool = False) -> Any:
        """Begin to receive one. With `small`, peers are counted among the speakers."""
        return (self._leaders if small else self._all).recv([bytes_of(out)], peer, tag)

    def group(self, *, small: bool) -> Any:
        """For collectives, whose order is the same on all ranks; pass a collective to `wait` without a peer."""
        return self._leaders if small else self._all

    def wait(self, works: Sequence[tuple[Any, int | None]], what: str) -> None:
        """Wait until messages are delivered or there.

        Args:
            works: of `send` and `receive`, each with its peer; a collective has none.
            what: what the rank waits for.

        Raises:
            PeerLost: when a connection has ended.
        """
        tickets = [_Ticket(work, what) for work, _ in works]
        self._tickets = tickets
        for ticket in tickets:
            self.waiter.do(ticket.wait)
        for ticket, (_, peer) in zip(tickets, works, strict=True):
            with waits(what, [self._names[each] for each in (self._has_left if peer is None else [peer])]):
                while not self._is_cut and not ticket.over.wait(LOOK_S):
                    pass
            if self._is_cut or ticket.failed:
                raise self.lost(peer)

    def lost(self, peer: int | None) -> PeerLost:
        """What the end of the connection to `peer` means; None: of any connection."""
        # [Note: why a lost connection is not yet a dead rank]
        # A rank that leaves sends its goodbye to all, and the first to notice cuts its own connections. So the end of one may
        # be seen before a goodbye on another is read. Gloo gets a moment to read what has arrived.
        deadline = time.monotonic() + READ_S
        while not self._is_cut and not self._somebody_left and time.monotonic() < deadline:
            if not any(unread(one.descriptor) for one, _ in self.connections()):
                break
            time.sleep(0.001)
        is_dead = not self._somebody_left
        if peer is None:
            return PeerLost(ENDED, is_dead=is_dead)
        name = self._names[peer]
        return PeerLost(
            f"The connection of rank {self._names[self._rank]} to rank {name} ended: rank {name} "
            f"{'left' if self._has_left[peer] else 'is gone, or lost another rank'}. "
            "If a rank failed, its own error says why.",
            is_dead=is_dead,
        )

    @property
    def _somebody_left(self) -> bool:
        return any(map(bool, self._has_left.values()))

    def is_over(self, descriptor: int, peer: int) -> bool | None:
        """Whether a connection that the other end has closed means that its rank is gone; None: not known yet.

        Args:
            descriptor: of the socket.
            peer: the other end.
        """
        if self._has_left[peer]:
            return False
        # While something is unread, it may be the goodbye.
        return None if unread(descriptor) else not self._has_left[peer]

    def cut(self) -> None:
        """End all connections at once, without a goodbye. Any thread may call it."""
        self._is_cut = True
        for one, _ in self.connections():
            cut(one.descriptor)
        for ticket in self._tickets:
            ticket.over.set()

    def close_in_child(self) -> None:
        """Close this process's copies of the sockets: it was forked, and is no rank."""
        for one in own_sockets():
            if self._peer_at.get(one.here) == self._rank:
                os.close(one.descriptor)

    def close(self) -> None:
        """Say goodbye, and end the connections."""
        word, works = torch.ones(1, dtype=torch.uint8, device="cpu"), []
        for peer in self._has_left:
            with contextlib.suppress(RuntimeError):
                works.append(self._all.send([word], peer, GOODBYE_TAG))
        deadline = time.monotonic() + GOODBYE_S
        # Not `work.wait`: Gloo lets it time out where the other side leaves at the same time.
        while any(not self._has_left[peer] and unheard(one.descriptor) for one, peer in self.connections()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        _alive.discard(self)
        self._goodbyes.clear()
        self._tickets = ()
        # Gloo ends its threads and sockets.
        del self._all, self._leaders


def _address(pair: list[Any]) -> Address:
    host, port = pair
    return host, port


class _Ticket:
    """One message that is waited for."""

    def __init__(self, work: Any, what: str) -> None:
        self._work, self._what = work, what
        self.over = threading.Event()
        self.failed = False

    def wait(self) -> None:
        """Wait for it; in the waiter's thread."""
        try:
            with range_of_wait(self._what):
                self._work.wait(PATIENCE)
        except RuntimeError:
            self.failed = True
        self.over.set()


def gradients() -> str:
    """What a rank waits for that waits for a sum."""
    what = "the exchange of gradients"
    return what if subject.of is None else f"{what} ({subject.with_line(where())})"


def patient(options: Any) -> Any:
    """Options of a collective that waits for `PATIENCE`."""
    options.timeout = PATIENCE
    return options


def bytes_of(tensor: Tensor) -> Tensor:
    """View a contiguous tensor as bytes: Gloo does not know every dtype, and moving data needs none."""
    return tensor.reshape(-1).view(torch.uint8)


_alive: weakref.WeakSet[Across] = weakref.WeakSet()


def _close_in_child() -> None:
    """A loader worker must not keep the connections of a rank that has died."""
    for one in [*_alive]:
        one.close_in_child()
    _alive.clear()


os.register_at_fork(after_in_child=_close_in_child)


LOOK_MS = 50
"""Between two looks."""
NODE_LOST = "Another node is lost. Its launcher has ended, or it cannot be reached."
CLOSER_LOOK_S = 0.002
"""Before the next look, while something that was sent before a connection ended is unread."""


class Watch:
    """Looks until it is stopped, or something is wrong.

    Args:
        across: the connections, if there are any.
        local: what can be looked at: the groups of this rank's node.
        give_up: called once, with what is wrong, in the thread.
        is_reported: whether the launcher has reported a loss that connections do not show.
    """

    def __init__(
        self,
        across: Across | None,
        local: Sequence[Transport],
        give_up: Callable[[PeerLost], object],
        is_reported: Callable[[], bool],
    ) -> None:
        self._stop = os.eventfd(0)
        self._owner = os.getpid()
        args = (across, tuple(local), give_up, is_reported, self._stop)
        self._thread = threading.Thread(target=_look, args=args, name="samebits watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        if self._stop < 0 or self._owner != os.getpid():
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._stop = -1


def _look(
    across: Across | None,
    local: Sequence[Transport],
    give_up: Callable[[PeerLost], object],
    is_reported: Callable[[], bool],
    stop: int,
) -> None:
    name_own_thread("watch")
    # Copies of the descriptors: Gloo may close its own, and the number would belong to another file.
    watched = {os.dup(one.descriptor): peer for one, peer in across.connections()} if across is not None else {}
    lost = None
    try:
        lost = _first_loss(across, local, watched, is_reported, stop)
    finally:
        for descriptor in watched:
            os.close(descriptor)
    if lost is not None:
        give_up(lost)


def _first_loss(
    across: Across | None,
    local: Sequence[Transport],
    watched: dict[int, int],
    is_reported: Callable[[], bool],
    stop: int,
) -> PeerLost | None:
    poller = select.poll()
    poller.register(stop, select.POLLIN)
    for descriptor in watched:
        poller.register(descriptor, select.POLLRDHUP)
    while True:
        closed = [descriptor for descriptor, _ in poller.poll(LOOK_MS)]
        if stop in closed:
            return None
        for descriptor in closed:
            peer = watched[descriptor]
            assert across is not None
            is_over = across.is_over(descriptor, peer)
            if is_over:
                return across.lost(peer)
            if is_over is None:
                time.sleep(CLOSER_LOOK_S)
            else:
                poller.unregister(descriptor)
        if is_reported():
            return PeerLost(NODE_LOST, is_dead=True)
        if (lost := _loss_in_node(local)) is not None:
            return lost


def _loss_in_node(local: Sequence[Transport]) -> PeerLost | None:
    try:
        for group in local:
            group.look()
    except PeerLost as error:
        return error
    except SamebitsError as error:
        return PeerLost(str(error))
    return None
