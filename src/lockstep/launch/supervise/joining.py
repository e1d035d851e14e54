"""How a launcher joins the other nodes of its run: it says who it is, and has a link made."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import secrets
import socket
import time
from dataclasses import asdict
from pathlib import Path

from lockstep.handover.run_folder import RunFolder
from lockstep.launch.legacy_local_rank import source_of
from lockstep.launch.nursery.handle import NurseryHandle
from lockstep.launch.nursery.messages import StartLink
from lockstep.launch.request import LaunchRequest, Verbosity
from lockstep.launch.screen.report import Line
from lockstep.launch.screen.saying import Saying
from lockstep.nodes.cluster import Cluster
from lockstep.nodes.link import LinkOrder
from lockstep.nodes.record import NodeRecord

JOIN_S = 600.0
"""How long missing nodes are waited for, unless --rdzv-conf join_timeout says otherwise; torchrun's number."""


def join_nodes(request: LaunchRequest, nursery: NurseryHandle, saying: Saying) -> Cluster:
    """Begin to join; `Cluster.meet` waits for the others.

    Args:
        request: the run; its place has several nodes.
        nursery: of this run.
        saying: where lines go.

    Raises:
        UsageError: when this node's address or port cannot be used.
    """
    place = request.place
    patience_s = place.join_s if place.join_s is not None else JOIN_S
    nursery.await_ready()
    host, _, port = place.endpoint.rpartition(":")
    is_host = place.number == 0
    listener = None
    if is_host:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(128)
    node = secrets.token_hex(8)
    order = LinkOrder(is_host, host, int(port), "key", node, patience_s, str(RunFolder(request.run_folder).link_log))
    ours, theirs = socket.socketpair()
    nursery.send(StartLink(asdict(order)), (theirs.fileno(), *([listener.fileno()] if listener is not None else [])))
    theirs.close()
    if listener is not None:
        listener.close()

    def say(label: str, text: str) -> None:
        if request.verbosity is not Verbosity.QUIET:
            saying.line(Line(label, text))

    return Cluster(record_of(request, node, is_host=is_host), ours, "", patience_s, say)


def record_of(request: LaunchRequest, node: str, *, is_host: bool) -> NodeRecord:
    """What this node says about itself."""
    place = request.place
    return NodeRecord(
        node=node,
        host=platform.node() or "unnamed",
        number=place.number,
        is_host=is_host,
        least=place.least,
        most=place.most,
        ranks=request.ranks,
        threads=request.threads,
        same=_same(request),
        time_s=time.time(),
    )


def _same(request: LaunchRequest) -> dict[str, str]:
    """What the results depend on, by the names that people know."""
    source = source_of(request.title, request.module is not None)
    digest = hashlib.sha256((source or "").encode()).hexdigest()[:12]
    form, arithmetic = request.form, request.arithmetic
    return {
        "their version of lockstep": importlib.metadata.version("lockstep-train"),
        "their version of torch": importlib.metadata.version("torch"),
        "their version of Python": ".".join(platform.python_version_tuple()[:2]),
        "the script": f"{Path(request.title).name} (sha256 {digest})",
        "the script's arguments": " ".join(request.args) or "none",
        "--lanes": str(request.lanes or "the script's"),
        "--device": request.device,
        "strategy and mesh": f"{form.strategy or 'the script' + chr(39) + 's'} {form.mesh or ''}".strip(),
        "precision and numerics": f"{arithmetic.precision or ''} {arithmetic.numerics or ''}".strip() or "the script's",
    }
