"""What `samebits run` tells the other nodes of a run when it ends before it has joined them: they would wait for this one.

The command line may be what is wrong, so it is read once more, and patiently. What can still be known of the endpoint and the key
is enough; where they cannot be known, nobody is told.
"""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click

from samebits.cli.torchrun_options import place_from
from samebits.errors import UsageError
from samebits.launcher.nodes.address import Choice, Endpoint, ListenAddress, is_loopback
from samebits.launcher.nodes.interfaces import PortTaken, choose_here, look
from samebits.launcher.nodes.key import KeySettings, RunKey
from samebits.launcher.nodes.place import MOST_NODES, NodePlace
from samebits.launcher.nodes.roster import Refused, withdrawal

ENDPOINT = ("rdzv_endpoint", "master_addr", "master_port")
FAREWELL = "samebits.launcher.nodes.node_star"
"""Imported when there is another node to notify."""


def tell_others(
    command: click.Command, words: Sequence[str], environ: MutableMapping[str, str], why: Exception
) -> None:
    """Tell them, if this was one of several nodes; takes seconds at most, and raises nothing.

    Args:
        command: `samebits run`.
        words: of its command line.
        environ: the environment with which it was started; the key is taken out of it.
        why: it ends; already said here.
    """
    options = _read(command, words)
    place = next(_places(options, environ), NodePlace())
    known_to = getattr(why, "known_to", 1)
    others = place.most - known_to
    if place.is_one_node or others <= 0:
        return
    problem, fix = (why.problem, why.fix) if isinstance(why, UsageError) else (_text(why), "")
    withdrawn = withdrawal(place.number, platform.node() or "unnamed", problem, fix)
    refused = Refused((), problem, fix) if known_to > 1 else withdrawn
    settings = KeySettings.take(options.get("key_file"), environ)
    farewell = importlib.import_module(FAREWELL)

    def tell() -> None:
        chosen, is_first = _chosen(place)
        if not settings.is_given:
            return
        try:
            found = settings.find(is_first=is_first, can_show=False)
        except UsageError:
            # That may be why it ends; only node 0 can still say so.
            if not is_first:
                return
            found = RunKey(None)
        try:
            if is_first:
                farewell.refuse_all(chosen, found.key, found.job, refused, others)
        except PortTaken:
            # By the first node, if it is one of this run on this machine.
            is_first = False
            found = RunKey(None, found.job) if found.job else found
        if not is_first:
            farewell.withdraw(chosen.gate, found.key, found.job, withdrawn)

    farewell.in_time(tell)


def _text(why: Exception) -> str:
    if isinstance(why, click.ClickException):
        return why.format_message()
    if isinstance(why, OSError):
        return f"{why.strerror}: {why.filename}." if why.filename else f"{why.strerror}."
    return str(why)


def _read(command: click.Command, words: Sequence[str]) -> dict[str, Any]:
    """The options, as far as they can be read."""
    how: dict[str, Any] = dict.fromkeys(
        ("resilient_parsing", "ignore_unknown_options", "allow_interspersed_args"), True
    )
    with suppress(click.ClickException):
        return command.make_context(command.name, list(words), **how).params
    return {}


def _places(options: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[NodePlace]:
    """Where this node is, by all that was said; else by what says where node 0 is, whatever is wrong with the rest."""
    script = str(options.get("script") or "SCRIPT")
    some, any_number = {name: options.get(name) for name in ENDPOINT}, f"1:{MOST_NODES}"
    numbered = {**some, "node_rank": options.get("node_rank")}
    for nnodes, given in (
        (options.get("nnodes"), options),
        (options.get("nnodes"), numbered),
        (any_number, numbered),
        (any_number, some),
    ):
        with suppress(UsageError):
            place = place_from(nnodes, given, environ, script)
            if place.endpoint or given is options:
                yield place


def _chosen(place: NodePlace) -> tuple[Choice, bool]:
    """As `choose_here`, but an address of this node that cannot be does not matter.

    Where node 0's own name is 127.0.1.1 to itself, the others mean another address of it.
    """
    try:
        return choose_here(place)
    except UsageError as refusal:
        why = refusal
    if place.local:
        return _chosen(replace(place, local=""))
    endpoint = Endpoint.parse(place.endpoint)
    view = look(endpoint, None)
    own = next((one for one in view.own if not is_loopback(one.address)), None)
    if place.number != 0 or own is None or not all(map(is_loopback, view.resolved)):
        raise why
    return Choice(own, ListenAddress(own.address, endpoint.port)), True
