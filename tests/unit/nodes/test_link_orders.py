"""What the launcher asks of its link, and what it is told when that fails."""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import subprocess
import sys

from lockstep.nodes.key import Key
from lockstep.nodes.link import Link
from lockstep.nodes.link_order import LinkOrder


def test_the_launcher_is_told_why_its_link_cannot_open_a_port_for_a_round():
    with socket.socket() as silent:  # bound, so nobody else listens there
        silent.bind(("127.0.0.1", 0))
        port, here = silent.getsockname()[1], "127.0.0.1"
        order = LinkOrder(False, here, port, here, "", "", "a", "host", here, 1.0, os.getpid(), "")
        launcher, end = socket.socketpair()
        with launcher, end:
            link = Link(order, end, None, os.getpid())
            link._key = Key(b"0123456789abcdef" * 2)
            launcher.sendall(b'{"join": 1}\n')
            launcher.shutdown(socket.SHUT_WR)
            with link._telling:
                link._take_orders()
            told = json.loads(launcher.recv(1 << 16))
    assert told["kind"] == "failed"
    assert "Nobody listens at" in told["why"]


def test_the_nodes_hear_each_other_while_the_first_ones_launcher_does_not_read():
    key, here, text = secrets.token_hex(16), "127.0.0.1", "x" * 900_000
    with socket.create_server((here, 0)) as gate, contextlib.ExitStack() as open_ones:
        port, links, launchers = gate.getsockname()[1], [], []
        for node in ("first", "second"):
            is_host = node == "first"
            launcher, end = socket.socketpair()
            launcher.settimeout(60.0)
            launchers.append(open_ones.enter_context(launcher))
            order = LinkOrder(is_host, here, port, here, key, "", node, "host", here, 60.0, os.getpid(), "")
            with end:
                links.append(link_process(order, end, gate if is_host else None))
        second = launchers[1]
        lines = open_ones.enter_context(second.makefile("rb"))
        heard = []
        while "port" not in heard:  # before, it may say that the first one cannot be reached yet
            heard = [json.loads(lines.readline())["kind"]]
        for number in range(4):  # the socket to a launcher takes a fraction of one of these
            second.sendall(json.dumps({"kind": f"word {number}", "text": text}).encode() + b"\n")
            heard.append(json.loads(lines.readline())["kind"])
        for launcher in reversed(launchers):
            launcher.shutdown(socket.SHUT_RDWR)
        assert [link.wait(60.0) for link in links] == [0, 0]
    assert heard == ["port", "word 0", "word 1", "word 2", "word 3"]


def link_process(order, end, gate):
    """A link in a process of its own, as a nursery starts it: its threads end with it."""
    sockets = [end.fileno(), -1 if gate is None else gate.fileno()]
    code = (
        "import json, sys; from lockstep.nodes.link import run_link; from lockstep.nodes.link_order import LinkOrder; "
    )
    code += "order, *numbers = json.loads(sys.argv[1]); run_link(LinkOrder(**order), *numbers)"
    given = json.dumps([dataclasses.asdict(order), *sockets, os.getpid()])
    return subprocess.Popen([sys.executable, "-c", code, given], pass_fds=[number for number in sockets if number >= 0])
