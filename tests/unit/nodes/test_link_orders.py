"""What the launcher asks of its link, and what it is told when that fails."""

import json
import os
import socket

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
            link._take_orders()
            told = json.loads(launcher.recv(1 << 16))
    assert told["kind"] == "failed"
    assert "Nobody listens at" in told["why"]
