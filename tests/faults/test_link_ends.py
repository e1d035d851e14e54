"""Gate and tunnel in processes of their own, forked as the link is: a dead end is told at once, a cut link is not an end."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.hosts import network, why_not
from tests.support.launching import within

pytestmark = pytest.mark.ranks

PROGRAM = """
import json, os, signal, socket, sys, threading, time
from lockstep.machine.processes import die_with_parent
from lockstep.nodes.address import Place
from lockstep.nodes.door import Door
from lockstep.nodes.gate import Gate
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.tunnel import Tunnel

KEY = Key(b"the key of a test, which is long enough")
role, address, port, is_real = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "store"
if is_real:
    import datetime
    import torch.distributed as dist
    LIMIT = datetime.timedelta(seconds=60)

class Echo:
    # in place of a store where only the link matters: torch takes seconds to import
    def __init__(self, port):
        self.end = socket.create_connection(("127.0.0.1", port))

    def set(self, name, text):
        self.end.sendall(text.encode() + b"\\n")

    def get(self, name):
        return self.end.makefile("rb").readline().strip()

def echo(listener):
    while True:
        end, _ = listener.accept()
        threading.Thread(target=lambda end=end: [end.sendall(piece) for piece in iter(lambda: end.recv(1024), b"")]).start()

def say(*words):
    os.write(1, (json.dumps([str(word) for word in words]) + "\\n").encode())

def event(event):
    say(type(event).__name__, event.node if hasattr(event, "node") else event.reason)

parent = os.getpid()
if os.fork():
    signal.pause()
die_with_parent(parent)
if role == "gate":
    behind = listen(Place("127.0.0.1", 0))
    kept, store_port = behind.dup(), behind.getsockname()[1]
    if is_real:
        store = dist.TCPStore("127.0.0.1", store_port, 1, True, LIMIT, wait_for_workers=False, master_listen_fd=behind.detach())
    else:
        threading.Thread(target=echo, args=(behind,), daemon=True).start()
    listener = listen(Place(address, port))
    gate = Gate(listener, store_port, KEY, event, door=Door(kept))
    say("port", listener.getsockname()[1])
    gate.start()
    for line in sys.stdin:
        say("heard", *(f"{time.monotonic() - one.heard_at:.1f}" for one in gate.nodes().values()))
else:
    tunnel = Tunnel(Place(address, port), KEY, {"node": role}, event).start(patience_s=30)
    def connect():
        return dist.TCPStore("127.0.0.1", tunnel.port, 1, False, LIMIT) if is_real else Echo(tunnel.port)

    client = connect()
    say("connected", os.getpid())
    for line in sys.stdin:
        if line == "once more\\n":
            client = connect()
        client.set("said", line.strip())
        say("got", client.get("said").decode(), f"{time.monotonic() - tunnel.heard_at:.1f}")
"""


class Process:
    """A process that says one JSON list a line."""

    def __init__(self, arguments, *, before=()):
        command = [*before, sys.executable, "-c", PROGRAM, *map(str, arguments)]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(self):
        return json.loads(self.popen.stdout.readline())

    def tell(self, line):
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def asked(self, line=""):
        self.tell(line)
        return self.said()

    def end(self, number=signal.SIGKILL):
        self.popen.send_signal(number)
        self.popen.wait()
        self.popen.stdin.close()
        self.popen.stdout.close()


@contextmanager
def started(*arguments, before=()):
    process = Process(arguments, before=before)
    try:
        yield process
    finally:
        process.end()


def test_whoever_dies_is_told_at_once_on_the_other_side():
    with started("gate", "127.0.0.1", 0, "echo") as gate:
        port = int(gate.said()[1])
        with started("1", "127.0.0.1", port, "echo") as one, started("2", "127.0.0.1", port, "echo") as two:
            came = sorted([gate.said(), gate.said()])
            assert came == [["NodeCame", "1"], ["NodeCame", "2"]]
            one.said(), two.said()
            assert one.asked("hello")[:2] == two.asked("hello")[:2] == ["got", "hello"]
            one.end()
            assert gate.said() == ["NodeGone", "1"]
            assert two.asked("still here")[:2] == ["got", "still here"]
            gate.end()
            assert two.said()[0] == "GateLost"


def test_a_link_that_ends_properly_leaves_nothing(tmp_path):
    program = """
import gc, os, socket, sys, threading, time
from lockstep.nodes.address import Place
from lockstep.nodes.gate import Gate
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.tunnel import Tunnel

def open_files():
    return sorted(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))

before, key = open_files(), Key.made()
with listen(Place("127.0.0.1", 0)) as behind:
    front = listen(Place("127.0.0.1", 0))
    place = Place("127.0.0.1", front.getsockname()[1])
    gate = Gate(front, behind.getsockname()[1], key, print).start()
    tunnel = Tunnel(place, key, {"node": "0"}, print).start()
    with socket.create_connection(("127.0.0.1", tunnel.port)) as client, behind.accept()[0] as store:
        client.sendall(b"x")
        assert store.recv(1) == b"x"
        strangers = [socket.create_connection((place.address, place.port)) for _ in range(5)]
        for end in (tunnel, gate, tunnel, gate):
            end.close()
        assert client.recv(1) == store.recv(1) == b"", "told at once"
    for end in strangers:
        assert end.recv(1) == b""
        end.close()
assert threading.enumerate() == [threading.main_thread()]
gc.collect()
assert open_files() == before, open_files()
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "GateLost" not in done.stdout, "who closes a tunnel knows"
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_link_cut_for_5_seconds_ends_nothing_and_is_seen_on_both_sides(tmp_path):
    with network(2) as hosts, ExitStack() as processes:
        inside = [within(host.holder, tmp_path) for host in hosts]
        address = hosts[0].address
        gate = processes.enter_context(started("gate", address, 29500, "store", before=inside[0]))
        assert gate.said() == ["port", "29500"]
        node = processes.enter_context(started("1", address, 29500, "store", before=inside[1]))
        other = processes.enter_context(started("2", address, 29500, "store", before=inside[1]))
        assert sorted([gate.said(), gate.said()]) == [["NodeCame", "1"], ["NodeCame", "2"]]
        assert node.said()[0] == other.said()[0] == "connected"
        listening = subprocess.run(
            [*inside[0], "cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True
        ).stdout
        places = sorted(line.split()[1] for line in listening.splitlines() if " 0A " in line)
        assert [place.split(":")[0] for place in places] == ["0100007F", "01004D0A"], "one socket on one named address"

        hosts[0].link.cut()
        node.tell("over the cut")
        other.tell("once more")
        cut = subprocess.Popen(["sleep", "5"])
        cut.wait()
        assert min(map(float, gate.asked()[1:])) > 4.0, "silent for so long"
        hosts[0].link.restore()
        said = node.said()
        assert said[:2] == ["got", "over the cut"], "nothing ended"
        assert other.said()[:2] == ["got", "once more"], "what was opened meanwhile waited"
        assert node.asked("again")[:2] == ["got", "again"]
        assert max(map(float, gate.asked()[1:])) < 4.0
