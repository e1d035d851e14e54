"""How a launcher joins the other nodes of its run: it publishes who it is, and begins its side of the star."""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.choices import Verbosity
from samebits.launcher.nodes.address import Choice
from samebits.launcher.nodes.cluster import Cluster
from samebits.launcher.nodes.interfaces import PortTaken, choose_here, listen
from samebits.launcher.nodes.key import RunKey, seal
from samebits.launcher.nodes.node_star import begin_star
from samebits.launcher.nodes.place import JOIN_S, NodePlace
from samebits.launcher.nodes.roster import NodeRecord
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.request import LaunchRequest
from samebits.launcher.supervise.alike import alike_on_all, same_on_all
from samebits.launcher.terminal.failure_block import HELP, stall_block
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import Console
from samebits.protocol.case import Case
from samebits.protocol.layout.mesh import choose_mesh
from samebits.protocol.run_folder import RunFolder

SAME_NODE_S = 4.0
"""How long a second node 0 tries to inform the first one that there are two."""
ALWAYS_PRINTED = frozenset({"stalled", HELP})
"""What other nodes say that is printed although this one is to be quiet."""


def join_nodes(request: LaunchRequest, nursery: NurseryHandle, console: Console) -> Cluster:
    """Begin to join; `Cluster.meet` waits for the others.

    Args:
        request: the run; its place has several nodes.
        nursery: of this run.
        console: where lines go.

    Raises:
        UsageError: when this node's address or port cannot be used.
    """
    place = request.nodes.place
    patience_s = reach_s = place.join_s if place.join_s is not None else JOIN_S
    chosen, is_host = choose_here(place)
    listener, found = _begin(request, chosen, is_host=is_host, console=console)
    # Another node of this run on this machine has the port, or another program.
    if listener is None and is_host:
        is_host, reach_s = False, SAME_NODE_S if place.number == 0 else patience_s
    nursery.await_ready()
    node = secrets.token_hex(8)
    star = begin_star(node, chosen, listener, found.key, job=found.job, patience_s=reach_s)

    def say(label: str, text: str) -> None:
        if request.output.verbosity is not Verbosity.QUIET:
            console.line(Line(label, text))

    def on_notice(notice: dict[str, Any]) -> None:
        if notice["finding"]:
            Case(notice["finding"], f"{notice['label']} {notice['text']}", tuple(notice["ranks"])).add_to(cases)
        if request.output.verbosity is not Verbosity.QUIET or notice["label"] in ALWAYS_PRINTED:
            if notice["label"] == "stalled":
                console.block(stall_block(notice["text"]).text)
            else:
                console.line(Line(notice["label"], notice["text"]))

    cases = RunFolder(request.output.run_folder).findings
    record = record_of(request, node, is_host=is_host)
    total = partial(check_total, request)
    own = chosen.own
    cluster = Cluster(record, star, own.name, patience_s, say, on_notice, place.hosts, total, own=own.address)
    cluster.liveness.nursery = nursery.process
    return cluster


def check_total(request: LaunchRequest, ranks: Sequence[int], lanes: int | None) -> None:
    """Raise `UsageError` where the command line, or this node, rules out so many ranks on all nodes together.

    Args:
        request: the run.
        ranks: of each node, this one's first.
        lanes: those that the run has had so far; None before its first round.
    """
    total = sum(ranks)
    lanes = lanes or request.computation.lanes
    try:
        mesh = choose_mesh(request.computation.form, total)
        mesh.check_device(request.placement.device)
        if lanes is not None:
            mesh.check_lanes(lanes)
    except UsageError as error:
        raise UsageError(
            f"On all nodes together: {error.problem}", "Change -n on the nodes, or what does not fit."
        ) from None
    if lanes is not None and lanes < total:
        raise UsageError(
            f"`lanes` must be at least the number of ranks, but is {lanes} with {total} ranks on all nodes.",
            f"Give --lanes {total} or more on all nodes, or a smaller -n.",
        )


def may_be_first(place: NodePlace) -> bool:
    """Whether this may be the run's first node; of those without a number, only who joins learns it for certain.

    Raises:
        UsageError: when the endpoint's host cannot be found.
    """
    if place.number is not None:
        return place.number == 0
    chosen, is_host = choose_here(place)
    if is_host:
        try:
            listen(chosen.gate).close()
        except PortTaken:
            return False
    return is_host


def node_name(place: NodePlace) -> str:
    """`node2`, or the host's name where nobody numbered the nodes."""
    return f"node{place.number}" if place.number is not None else platform.node() or "unnamed"


def _begin(
    request: LaunchRequest, chosen: Choice, *, is_host: bool, console: Console
) -> tuple[socket.socket | None, RunKey]:
    """The listening socket on the run's first node, and the key.

    No socket there: another process has the port, which may be another node of this run; it has the key then.
    """
    listener = taken = None
    if is_host:
        try:
            listener = listen(chosen.gate)
        except PortTaken as error:
            taken = error
    try:
        return listener, _key(request, chosen, is_host=listener is not None, console=console)
    except BaseException as error:
        if listener is not None:
            listener.close()
        if taken is not None and isinstance(error, UsageError):
            raise taken from None
        raise


def _key(request: LaunchRequest, chosen: Choice, *, is_host: bool, console: Console) -> RunKey:
    """The run's key; a new one is shown.

    Raises:
        UsageError: when this node cannot know it.
        EnvironmentFailure: when munge cannot seal it.
    """
    found = request.nodes.key.find(is_first=is_host, can_show=sys.stderr.isatty())
    if found.job and found.key is not None:
        # Where munge cannot seal, nobody need request it.
        seal(found.key, found.job)
    if found.is_new and found.key is not None:
        console.line(Line("nodes", "start each of the others with this line; whoever has it can join"))
        # Unbroken, so that it can be copied.
        console.plain(found.key.line_for_others(_command(request, chosen)))
    return found


def _command(request: LaunchRequest, chosen: Choice) -> str:
    """The line for the other nodes, without its key."""
    place = request.nodes.place
    nodes = str(place.most) if place.least == place.most else f"{place.least}:{place.most}"
    program = ["python", "-m", "samebits"] if Path(sys.argv[0]).name == "__main__.py" else ["samebits"]
    where = ["--nnodes", nodes, "--rdzv-endpoint", str(chosen.gate)]
    return shlex.join(
        [*program, "run", *where, *words_for_others(request.nodes.words), request.title, *request.entry.args]
    )


OWN_WORDS = ("nnodes", "node-rank", "rdzv-endpoint", "master-addr", "master-port", "local-addr", "key-file")
"""Options that say where this node is."""


def words_for_others(words: Sequence[str]) -> list[str]:
    """The command's own words without those that are about this node."""
    names = {f"--{name.replace('-', between)}" for name in OWN_WORDS for between in "-_"}
    kept, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word.partition("=")[0] not in names:
            kept.append(word)
        elif "=" not in word and rest:
            rest.pop(0)
    return kept


def record_of(request: LaunchRequest, node: str, *, is_host: bool) -> NodeRecord:
    """What this node publishes about itself."""
    place = request.nodes.place
    return NodeRecord(
        node=node,
        host=platform.node() or "unnamed",
        number=place.number,
        is_host=is_host,
        least=place.least,
        most=place.most,
        ranks=request.placement.ranks,
        threads=request.placement.threads,
        launcher=os.getpid(),
        same=same_on_all(request),
        alike=alike_on_all(request),
        cores=request.placement.cores,
    )
