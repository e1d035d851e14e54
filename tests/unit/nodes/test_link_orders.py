"""What the launcher asks of its link, and what it is told when that fails."""

import json
import os
import secrets
import socket
import threading

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
    with socket.create_server((here, 0)) as gate:
        port, running, launchers = gate.getsockname()[1], [], []
        for node in ("first", "second"):
            is_host = node == "first"
            launcher, end = socket.socketpair()
            launcher.settimeout(20.0)
            order = LinkOrder(is_host, here, port, here, key, "", node, "host", here, 10.0, os.getpid(), "")
            link = Link(order, end, gate if is_host else None, os.getpid())
            running.append(threading.Thread(target=link.run))
            launchers.append((launcher, end))
            running[-1].start()
            while is_host and not launcher.recv(1, socket.MSG_PEEK):
                pass
        second = launchers[1][0]
        lines = second.makefile("rb")
        heard = [json.loads(lines.readline())["kind"]]
        for number in range(4):  # the socket to a launcher takes a fraction of one of these
            second.sendall(json.dumps({"kind": f"word {number}", "text": text}).encode() + b"\n")
            heard.append(json.loads(lines.readline())["kind"])
        for launcher, _ in reversed(launchers):
            launcher.shutdown(socket.SHUT_RDWR)
        for thread in running:
            thread.join(20.0)
        lines.close()
        for launcher, end in launchers:
            launcher.close()
            end.close()
    assert heard == ["port", "word 0", "word 1", "word 2", "word 3"]
    assert not any(thread.is_alive() for thread in running)
