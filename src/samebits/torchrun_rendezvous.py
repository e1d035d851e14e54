"""The rendezvous for torchrun: `torchrun --rdzv-backend=samebits --nnodes 1:4 --rdzv-endpoint HOST:PORT train.py`.

torchrun's own one opens a store without a password on all interfaces, reads pickle from it, forgets to renew the addresses
that ranks left there, and takes a minute to notice that a node is gone (docs/design/start-and-nodes.md). This one is what `samebits run`
uses between nodes: the star and its rounds, served by a thread of the agent. Every round has a store of its own, so that no rank finds
what ranks of an earlier one have left; node 0 serves it on 127.0.0.1, locked for all but the star (`door`), and on every node a port
on 127.0.0.1 leads there. The key comes from SAMEBITS_KEY, SAMEBITS_KEY_FILE or, in a job of SLURM, munge.

Runs in: torchrun's agent; between rounds in a thread of it, named samebits-star.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch imports it there for everybody
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from samebits.errors import SamebitsError, UsageError
from samebits.launcher.nodes.address import Choice, ListenAddress
from samebits.launcher.nodes.cluster import Cluster
from samebits.launcher.nodes.door import Door
from samebits.launcher.nodes.interfaces import PortTaken, choose_here, listen
from samebits.launcher.nodes.key import KeySettings
from samebits.launcher.nodes.node_star import begin_star
from samebits.launcher.nodes.place import JOIN_S, NodePlace
from samebits.launcher.nodes.roster import NodeRecord
from samebits.launcher.nodes.star import HostStar, Star
from samebits.launcher.nodes.streams import Entrance, Exit
from samebits.machine.clocks import readable
from samebits.notices import say

NAME = "samebits"
FOREVER = dt.timedelta(days=7)
SERVE_S, CONNECT_S = 1.0, 5.0


def get_handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What torchrun finds under the entry points `torchrun.handlers`."""
    return create


def create(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler of one torchrun.

    Raises:
        RendezvousError: when this node cannot take part; the text says why.
    """
    try:
        return NodesRendezvous(params)
    except SamebitsError as error:
        raise RendezvousConnectionError(str(error)) from error


class NodesRendezvous(RendezvousHandler):
    """One node's part; see the base class for what each method promises.

    Args:
        params: torchrun's options.

    Raises:
        UsageError: when the endpoint, the key or an address cannot be used.
    """

    use_agent_store = True

    def __init__(self, params: RendezvousParameters) -> None:
        self._params = params
        patience_s = float(params.get("join_timeout") or params.get("timeout") or JOIN_S)
        chosen, is_host = choose_here(NodePlace(number=None, endpoint=params.endpoint, local=params.local_addr or ""))
        listener = _listener(chosen) if is_host else None
        node = secrets.token_hex(8)
        try:
            found = KeySettings.take(None, os.environ).find(is_first=listener is not None, can_show=False)
            star = begin_star(node, chosen, listener, found.key, job=found.job, patience_s=patience_s)
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        host, least, most = platform.node() or "unnamed", params.min_nodes, params.max_nodes
        record = NodeRecord(node, host, None, listener is not None, least, most, 1, 1)
        self._cluster = Cluster(record, star, chosen.own.name, patience_s, _say, _on_notice, own=chosen.own.address)
        self._stores = RoundStores(star)
        self._lock = threading.Lock()
        self._serving = threading.Thread(target=self._serve, name="samebits-star", daemon=True)
        self._never, self._end = socket.socketpair()
        """No user signal comes this way: torchrun has its own handlers."""
        self._closed = False
        os.environ.setdefault("GLOO_SOCKET_IFNAME", chosen.own.name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", chosen.own.name)

    def _serve(self) -> None:
        """Serve the star while the agent does something else: agent and ranks talk to their store through it."""
        while not self._closed:
            readable([self._cluster], SERVE_S)
            with self._lock:
                if not self._closed:
                    self._cluster.read()

    def get_backend(self) -> str:
        return NAME

    def get_run_id(self) -> str:
        return self._params.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        if self._closed:
            raise RendezvousConnectionError("this node has left the run")
        try:
            with self._lock:
                self._stores.serve(self._cluster.view.round + 1)
                seat = self._cluster.meet(self._never)
                port = self._stores.join(seat.round)
        except UsageError as error:
            raise RendezvousError(str(error)) from error
        except SamebitsError as error:
            raise RendezvousTimeoutError(str(error)) from error
        if not self._serving.is_alive():
            self._serving.start()
        client = TCPStore("127.0.0.1", port, None, False, FOREVER)
        where = RendezvousStoreInfo("127.0.0.1", client.port)
        return RendezvousInfo(PrefixStore("torchrun", client), seat.node, seat.num_nodes, where)

    def num_nodes_waiting(self) -> int:
        with self._lock:
            if not self._cluster.cut:
                self._cluster.read()
            view = self._cluster.view
            again = [node for node in view.numbers() if node in view.asking]
            return len(again) + len(view.newcomers()) + len(view.lost_members())

    def is_closed(self) -> bool:
        return self._closed or bool(self._cluster.cut)

    def set_closed(self) -> None:
        with self._lock:
            self._closed = True

    def shutdown(self) -> bool:
        self.set_closed()
        if self._serving.is_alive():
            self._serving.join()
        self._stores.close()
        self._cluster.close()
        self._never.close()
        self._end.close()
        return True


class RoundStores:
    """A store for each round, which node 0 has and every node reaches at a port on its 127.0.0.1.

    Args:
        star: this node's.
    """

    def __init__(self, star: Star) -> None:
        self._star = star
        self._served: dict[int, tuple[TCPStore, Door]] = {}
        """On node 0, of the newest rounds."""
        self._joined: tuple[socket.socket, Entrance] | None = None
        self._exit = Exit(star, self._connected) if isinstance(star, HostStar) else None

    def serve(self, number: int) -> None:
        """Hold the store of a round, on node 0, before it begins."""
        if not isinstance(self._star, HostStar):
            return
        own = listen(ListenAddress("127.0.0.1", 0))
        served = own.dup().detach()
        port = own.getsockname()[1]
        store = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=served)
        self._served[number] = store, Door(own)
        own.close()
        for old in [one for one in self._served if one < number - 1]:
            self._served.pop(old)[1].close()

    def join(self, number: int) -> int:
        """The port on this node for a round that has begun."""
        self._leave()
        listener = listen(ListenAddress("127.0.0.1", 0))
        self._joined = listener, Entrance(self._star, listener, str(number))
        return int(listener.getsockname()[1])

    def close(self) -> None:
        """End all."""
        self._leave()
        if self._exit is not None:
            self._exit.close()
        for _, door in self._served.values():
            door.close()
        self._served.clear()

    def _leave(self) -> None:
        if self._joined is not None:
            listener, entrance = self._joined
            entrance.close()
            listener.close()
            self._joined = None

    def _connected(self, number: str) -> socket.socket | None:
        """Through the door of a round's store."""
        if int(number) not in self._served:
            return None
        store, door = self._served[int(number)]
        end = _Through(door)
        try:
            end.settimeout(CONNECT_S)
            end.connect(("127.0.0.1", store.port))
        except OSError:
            end.close()
            return None
        return end


class _Through(socket.socket):
    """A socket from which a door admits connections as long as it is open: the kernel may ask once more after `connect`."""

    def __init__(self, door: Door) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.bind(("127.0.0.1", 0))
        self._door, self._port = door, int(self.getsockname()[1])
        door.let_in(self._port)

    def close(self) -> None:
        """Let in nobody from its port, and free it."""
        # The door may be closed already.
        with suppress(OSError):
            self._door.forget(self._port)
        super().close()


def _listener(chosen: Choice) -> socket.socket | None:
    """The gate's socket; None where another node of the run, on this machine, has it already."""
    try:
        return listen(chosen.gate)
    except PortTaken:
        return None


def _say(_label: str, text: str) -> None:
    say(text)


def _on_notice(notice: dict[str, Any]) -> None:
    say(str(notice["text"]))
