"""A thousand strangers at the gate are closed one by one, while a node goes on using the store."""

import datetime as dt
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

from lockstep.nodes import gate as gate_module
from lockstep.nodes.address import Place
from lockstep.nodes.gate import MOST_OPENING, Gate
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.tunnel import Tunnel

KEY = Key.made()
LIMIT = dt.timedelta(seconds=60)

STRANGERS = """
import os, socket, ssl, sys
from lockstep.nodes.identity import identity
from lockstep.nodes.key import Key

port, each = int(sys.argv[1]), int(sys.argv[2])
wrong = identity(Key.made()).context(is_gate=False)
wrong.verify_mode = ssl.CERT_NONE
bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
try:
    bare.wrap_bio(incoming, outgoing).do_handshake()
except ssl.SSLWantReadError:
    first_words = outgoing.read()

def tls(end, context):
    end = context.wrap_socket(end)
    end.sendall(b'{"lockstep": 1, "node": "9", "purpose": "store"}\\n')
    return end

KINDS = {
    "random": lambda end: end.sendall(os.urandom(300)),
    "http": lambda end: end.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"),
    "store": lambda end: end.sendall(bytes.fromhex("00c0ffee") * 20),
    "wrong key": lambda end: tls(end, wrong),
    "no key": lambda end: tls(end, bare),
    "half": lambda end: end.sendall(first_words[: len(first_words) // 2]),
    "slow": lambda end: end.sendall(first_words[:1]),
    "silent": lambda end: None,
    "alert": lambda end: end.sendall(first_words + os.urandom(200)),
    "gone": lambda end: end.sendall(first_words) or end.shutdown(socket.SHUT_WR),
}
for _ in range(each // 10):
    ends, acts = [], [*KINDS.values()] * 10
    for act in acts:
        end = socket.create_connection(("127.0.0.1", port))
        end.settimeout(60)
        try:
            end = act(end) or end
        except OSError:  # closed before it had said all
            pass
        ends.append(end)
    for kind, end in zip([*KINDS] * 10, ends):
        try:
            while piece := end.recv(4096):
                assert b'"ok"' not in piece, kind
        except OSError as error:
            assert not isinstance(error, TimeoutError), kind
        end.close()
print(each * len(KINDS))
"""


@pytest.fixture
def at_gate(monkeypatch):
    """A store, its gate, and a client behind a tunnel."""
    monkeypatch.setattr(gate_module, "OPENING_S", 0.3)
    behind = listen(Place("127.0.0.1", 0))
    port = behind.getsockname()[1]
    server = dist.TCPStore("127.0.0.1", port, 1, True, LIMIT, wait_for_workers=False, master_listen_fd=behind.detach())
    listener = listen(Place("127.0.0.1", 0))
    gate = Gate(listener, port, KEY, print)
    place = Place("127.0.0.1", listener.getsockname()[1])
    gate.start()
    tunnel = Tunnel(place, KEY, {"node": "1"}, print).start(patience_s=30)
    client = dist.TCPStore("127.0.0.1", tunnel.port, 1, False, LIMIT)
    yield gate, place, client
    tunnel.close()
    gate.close()
    del server


@pytest.mark.ranks
@pytest.mark.parametrize("each", [10, pytest.param(100, marks=pytest.mark.thorough)])
def test_strangers_are_closed_and_nobody_is_disturbed(at_gate, each):
    gate, place, client = at_gate
    connections = dict(gate.nodes()["1"].connections)
    strangers = subprocess.Popen(
        [sys.executable, "-c", STRANGERS, str(place.port), str(each)], stdout=subprocess.PIPE, text=True
    )
    asked = 0
    while strangers.poll() is None:
        client.set("asked", str(asked))
        assert client.get("asked") == str(asked).encode()
        asked += 1
    assert strangers.communicate()[0] == f"{each * 10}\n", "each was closed, and was told nothing"
    assert gate.num_refused == each * 10
    assert asked > 10
    assert gate.nodes()["1"].connections == connections, "the client kept its connection"


def test_more_who_say_nothing_than_may_be_opening_keep_no_node_out(at_gate, monkeypatch):
    monkeypatch.setattr(gate_module, "OPENING_S", 60.0)
    gate, place, _ = at_gate
    silent = [socket.create_connection((place.address, place.port)) for _ in range(MOST_OPENING + 20)]
    for end in silent[:20]:
        end.settimeout(60)
        assert end.recv(1) == b"", "the oldest gives way"
    second = Tunnel(place, KEY, {"node": "2"}, print).start(patience_s=30)
    client = dist.TCPStore("127.0.0.1", second.port, 1, False, LIMIT)
    client.set("still", "1")
    assert gate.num_refused >= 20 and len(gate._opening) <= MOST_OPENING
    second.close()
    for end in silent:
        end.close()
