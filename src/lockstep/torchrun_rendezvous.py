"""The rendezvous for torchrun: `torchrun --rdzv-backend=lockstep --nnodes 1:4 --rdzv-endpoint HOST:PORT train.py`.

torchrun's own one opens a store without a password on all interfaces, reads pickle from it, forgets to renew the addresses
that ranks left there, and takes a minute to notice that a node is gone (docs/design/0027). This one is what `lockstep run`
uses between nodes: gate, tunnel, log and rounds. Every round has a store of its own, so that no rank finds what ranks of an
earlier one have left. The key comes from LOCKSTEP_KEY, LOCKSTEP_KEY_FILE or, in a job of SLURM, munge.
"""

from __future__ import annotations

import os
import platform
import secrets
import select
import socket
from collections.abc import Callable
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

from lockstep.errors import LockstepError, UsageError
from lockstep.nodes.address import Choice
from lockstep.nodes.cluster import Cluster
from lockstep.nodes.interfaces import PortTaken, choose_here, listen
from lockstep.nodes.key import Key, KeySettings, Source
from lockstep.nodes.link import FOREVER, run_link
from lockstep.nodes.link_order import LinkOrder
from lockstep.nodes.munge import has_munge
from lockstep.nodes.place import JOIN_S, NodePlace
from lockstep.nodes.record import NodeRecord
from lockstep.notices import say

NAME = "lockstep"


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
    except LockstepError as error:
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
        self._patience_s = float(params.get("join_timeout") or params.get("timeout") or JOIN_S)
        chosen, is_host = choose_here(NodePlace(number=None, endpoint=params.endpoint, local=params.local_addr or ""))
        listener = _listener(chosen) if is_host else None
        self._node = secrets.token_hex(8)
        try:
            order = self._order(chosen, is_host=listener is not None)
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        ours, theirs = socket.socketpair()
        _start_link(order, theirs, listener)
        self._cluster = Cluster(self._record(order), ours, chosen.own.name, self._patience_s, _say, _hear)
        self._never, self._end = socket.socketpair()
        """No person's signal comes this way: torchrun has its own handlers."""
        self._closed = False
        os.environ.setdefault("GLOO_SOCKET_IFNAME", chosen.own.name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", chosen.own.name)

    def _order(self, chosen: Choice, *, is_host: bool) -> LinkOrder:
        settings, gate = KeySettings.take(None, os.environ), chosen.gate
        source = settings.source(is_first=False, has_munge=has_munge(), can_show=False)
        key, job = ("", settings.job) if source is Source.MUNGE else (settings.given(source).secret.decode(), "")
        if is_host and source is Source.MUNGE:
            key = Key.made().secret.decode()
        host = platform.node() or "unnamed"
        return LinkOrder(
            is_host,
            gate.address,
            gate.port,
            gate.source,
            key,
            job,
            self._node,
            host,
            chosen.own.address,
            self._patience_s,
            os.getpid(),
            "",
        )

    def _record(self, order: LinkOrder) -> NodeRecord:
        params = self._params
        return NodeRecord(self._node, order.host, None, order.is_host, params.min_nodes, params.max_nodes, 1, 1)

    def get_backend(self) -> str:
        return NAME

    def get_run_id(self) -> str:
        return self._params.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        if self._closed:
            raise RendezvousConnectionError("this node has left the run")
        try:
            if self._cluster.is_host:
                self._cluster.serve_round()
            seat = self._cluster.meet(self._never)
            client = TCPStore("127.0.0.1", self._cluster.join_round(), None, False, FOREVER)
        except UsageError as error:
            raise RendezvousError(str(error)) from error
        except LockstepError as error:
            raise RendezvousTimeoutError(str(error)) from error
        where = RendezvousStoreInfo("127.0.0.1", client.port)
        return RendezvousInfo(PrefixStore("torchrun", client), seat.node, seat.num_nodes, where)

    def num_nodes_waiting(self) -> int:
        while select.select([self._cluster], [], [], 0)[0] and not self._cluster.cut:
            self._cluster.read()
        view = self._cluster.view
        again = [node for node in view.numbers() if node in view.asking]
        return len(again) + len(view.newcomers()) + len(view.lost_members())

    def is_closed(self) -> bool:
        return self._closed or bool(self._cluster.cut)

    def set_closed(self) -> None:
        self._closed = True

    def shutdown(self) -> bool:
        self._closed = True
        self._cluster.close()
        self._never.close()
        self._end.close()
        return True


def _listener(chosen: Choice) -> socket.socket | None:
    """The gate's socket; None where another node of the run, on this machine, has it already."""
    try:
        return listen(chosen.gate)
    except PortTaken:
        return None


def _say(_label: str, text: str) -> None:
    say(text)


def _hear(told: dict[str, Any]) -> None:
    say(str(told["text"]))


def _start_link(order: LinkOrder, theirs: socket.socket, listener: socket.socket | None) -> None:
    """Fork the link, which has torch then; it ends with this process, or when the cluster is closed."""
    parent = os.getpid()
    if os.fork() == 0:
        try:
            run_link(order, theirs.detach(), listener.detach() if listener is not None else -1, parent)
        finally:
            os._exit(1)
    theirs.close()
    if listener is not None:
        listener.close()
