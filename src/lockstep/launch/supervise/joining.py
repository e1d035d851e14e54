"""How a launcher joins the other nodes of its run: it says who it is, and has a link made."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import secrets
import shlex
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lockstep.handover.case import Case
from lockstep.handover.run_folder import RunFolder
from lockstep.launch.legacy_local_rank import source_of
from lockstep.launch.nursery.handle import NurseryHandle
from lockstep.launch.nursery.messages import StartLink
from lockstep.launch.request import LaunchRequest, Verbosity
from lockstep.launch.screen.report import Line
from lockstep.launch.screen.saying import Saying
from lockstep.nodes.address import Choice, Endpoint, choose
from lockstep.nodes.cluster import Cluster
from lockstep.nodes.endpoint import DEFAULT_PORT
from lockstep.nodes.interfaces import listen, look
from lockstep.nodes.key import Key, Source
from lockstep.nodes.link_order import LinkOrder
from lockstep.nodes.munge import has_munge
from lockstep.nodes.place import NodePlace
from lockstep.nodes.record import NodeRecord

ALWAYS_SAID = frozenset({"stalled", "help"})
"""What other nodes say that is printed although this one is to be quiet."""
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
    chosen, is_host = _where(place)
    key, job = _key(request, chosen, is_host=is_host, saying=saying)
    listener = listen(chosen.gate) if is_host else None
    nursery.await_ready()
    node, host = secrets.token_hex(8), platform.node() or "unnamed"
    gate, log = chosen.gate, str(RunFolder(request.run_folder).link_log)
    order = LinkOrder(is_host, gate.address, gate.port, gate.source, key, job, node, host, patience_s, os.getpid(), log)
    ours, theirs = socket.socketpair()
    nursery.send(StartLink(asdict(order)), (theirs.fileno(), *([listener.fileno()] if listener is not None else [])))
    theirs.close()
    if listener is not None:
        listener.close()

    def say(label: str, text: str) -> None:
        if request.verbosity is not Verbosity.QUIET:
            saying.line(Line(label, text))

    def hear(told: dict[str, Any]) -> None:
        if told["finding"]:
            Case(told["finding"], f"{told['label']} {told['text']}", tuple(told["ranks"])).add_to(cases)
        if request.verbosity is not Verbosity.QUIET or told["label"] in ALWAYS_SAID:
            saying.line(Line(told["label"], told["text"]))

    cases = RunFolder(request.run_folder).findings
    return Cluster(record_of(request, node, is_host=is_host), ours, chosen.own.name, patience_s, say, hear)


def _where(place: NodePlace) -> tuple[Choice, bool]:
    """The addresses that count for this node, and whether it is the run's first.

    Raises:
        UsageError: when no address of this machine can be right.
    """
    endpoint = Endpoint.parse(place.endpoint or f"{platform.node()}:{DEFAULT_PORT}")
    view = look(endpoint, place.local or None)
    own = {one.address for one in view.own}
    is_host = place.number == 0 if place.number is not None else bool(own & set(view.resolved))
    return choose(endpoint, view, local=place.local or None, is_first=is_host, are_elsewhere=None), is_host


def _key(request: LaunchRequest, chosen: Choice, *, is_host: bool, saying: Saying) -> tuple[str, str]:
    """The run's key, and the job of SLURM for which it is sealed, if it is; an empty key is asked for at the first node.

    Raises:
        UsageError: when this node cannot know it.
    """
    settings = request.key
    source = settings.source(is_first=is_host, has_munge=has_munge(), can_show=sys.stderr.isatty())
    match source:
        case Source.MUNGE:
            return (Key.made().secret.decode() if is_host else "", settings.job)
        case Source.MADE:
            key = Key.made()
            saying.line(Line("nodes", f"on each of the others:{key.line_for_others(_command(request, chosen))}"))
            return key.secret.decode(), ""
        case _:
            return settings.given(source).secret.decode(), ""


def _command(request: LaunchRequest, chosen: Choice) -> str:
    """The line for the other nodes, without its key."""
    place, script = request.place, ["-m", request.module] if request.module else [str(request.script)]
    nodes = str(place.most) if place.least == place.most else f"{place.least}:{place.most}"
    words = ["lockstep", "run", "--nnodes", nodes, "--rdzv-endpoint", str(chosen.gate), "-n", str(request.ranks)]
    return shlex.join([*words, *script, *request.args])


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
