"""What the guarded way to the store costs: `python -m benchmarks.gate` asks a bare TCPStore and one behind tunnel and gate, in turn.

Store and gate are in one process, the tunnel in another, the client in a third, all on this machine. Then strangers knock, one after the
other, and the gate's processor time for each is told.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import signal
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed

from benchmarks.ending import ends_shortly
from lockstep.machine.processes import die_with_parent
from lockstep.nodes.address import Place
from lockstep.nodes.door import Door
from lockstep.nodes.gate import Gate
from lockstep.nodes.identity import identity
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.tunnel import Tunnel

TCPStore: Any = vars(torch.distributed)["TCPStore"]  # torch.distributed does not export it to type checkers
HERE, LIMIT, BIG = "127.0.0.1", dt.timedelta(seconds=60), 8 << 20


@contextlib.contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """A process that does `work` and then waits."""
    parent, child = os.getpid(), os.fork()
    if child == 0:
        die_with_parent(parent)
        kept = work()
        while kept is not None:
            signal.pause()
        os._exit(1)
    yield child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def asked(client: Any, rounds: int) -> tuple[list[float], float]:
    """Seconds of each get of 100 bytes, and of 8 MiB set and got."""
    client.set("small", "x" * 100)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        client.get("small")
        times.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    client.set("big", b"x" * (BIG - 64))
    client.get("big")
    return times, time.perf_counter() - begin


def cpu_s(process: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def knock(place: Place, rounds: int) -> dict[str, float]:
    """Milliseconds from connecting to being closed, for each kind of stranger."""
    wrong = identity(Key.made()).context(is_gate=False)
    wrong.verify_mode = ssl.CERT_NONE
    took = {}
    for kind in ("random bytes", "HTTP", "TLS with another key"):
        times = []
        for _ in range(rounds):
            begin = time.perf_counter()
            with contextlib.suppress(OSError), socket.create_connection((place.address, place.port)) as bare:
                end = bare
                if kind == "TLS with another key":
                    end = wrong.wrap_socket(bare)
                else:
                    end.sendall(os.urandom(200) if kind == "random bytes" else b"GET / HTTP/1.1\r\n\r\n")
                while end.recv(4096):
                    pass
            times.append(time.perf_counter() - begin)
        took[kind] = statistics.median(times) * 1e3
    return took


@ends_shortly
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often both are asked in turn")
    parser.add_argument("--gets", type=int, default=2000, help="gets in each round")
    parser.add_argument("--strangers", type=int, default=300, help="strangers of each kind")
    options = parser.parse_args()
    key, behind, front = Key.made(), listen(Place(HERE, 0)), listen(Place(HERE, 0))
    bare_port, store_port, place = 0, behind.getsockname()[1], Place(HERE, front.getsockname()[1])
    said, say = os.pipe()

    def store_and_gate() -> object:
        bare = listen(Place(HERE, 0))
        os.write(say, b"%d\n" % bare.getsockname()[1])
        port = bare.getsockname()[1]
        stores = []
        kept = behind.dup()
        for at, descriptor in ((port, bare.detach()), (store_port, behind.detach())):
            stores.append(TCPStore(HERE, at, 1, True, LIMIT, wait_for_workers=False, master_listen_fd=descriptor))
        return stores, Gate(front, store_port, key, lambda _event: None, door=Door(kept)).start()

    def tunnel() -> object:
        dug = Tunnel(place, key, {"node": "0"}, lambda _event: None).start(30)
        os.write(say, b"%d\n" % dug.port)
        return dug

    with forked(store_and_gate) as gate, os.fdopen(said) as ports:
        bare_port = int(ports.readline())
        front.close()
        with forked(tunnel):
            clients = {"bare": bare_port, "through tunnel and gate": int(ports.readline())}
            results: dict[str, list[tuple[list[float], float]]] = {name: [] for name in clients}
            for _ in range(options.rounds):
                for name, port in clients.items():
                    results[name].append(asked(TCPStore(HERE, port, 1, False, LIMIT), options.gets))
            for name, found in results.items():
                times = sorted(one for some, _ in found for one in some)
                middle, late = (times[len(times) * part // 100] * 1e6 for part in (50, 95))
                big = statistics.median(one for _, one in found)
                print(f"{name:24} get {middle:4.0f} us, p95 {late:4.0f} us; 8 MiB set and got in {big * 1e3:3.0f} ms")
            before = cpu_s(gate)
            for kind, milliseconds in knock(place, options.strangers).items():
                print(f"{kind:24} closed after {milliseconds:.2f} ms")
            each = (cpu_s(gate) - before) / options.strangers / 3
            print(f"{'the gate':24} took {each * 1e3:.2f} ms of a core for each stranger")


if __name__ == "__main__":
    main()
