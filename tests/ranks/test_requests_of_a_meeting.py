"""How often a rank asks the run's store when a Gloo group is made of the ranks of all nodes: as often, however many they are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lockstep.rank.transport.local.nodes_store import ONE_READ

pytestmark = pytest.mark.ranks

PROGRAM = """
import contextlib, datetime as dt, json, os, socket, sys, threading, time
import torch.distributed as dist
from lockstep.rank.transport.local.nodes_store import gloo_reads_at_once, told_by_all

LIMIT = dt.timedelta(seconds=30)
asked, adding = {"gloo": 0, "script": 0, "ours": 0, "alone": 0}, threading.Lock()
what = "gloo"

def pump(source, target, count):
    while data := source.recv(1 << 16):  # a client says nothing more before it has its answer, but behind what it sets
        with adding:
            asked[what] += count
        target.sendall(data)

def accept(listener, port):
    while True:
        client, store = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
        for end in (client, store):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=pump, args=(client, store, 1), daemon=True).start()
        threading.Thread(target=pump, args=(store, client, 0), daemon=True).start()

size = int(sys.argv[1])
served = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=accept, args=(listener, served.port), daemon=True).start()
port = listener.getsockname()[1]
stores = [dist.PrefixStore("all", dist.TCPStore("127.0.0.1", port, None, False, LIMIT)) for _ in range(size)]
asked[what], groups = 0, {}

def join(rank):
    groups[what, rank] = dist.ProcessGroupGloo(dist.PrefixStore(what, stores[rank]), rank, size, LIMIT)

def hear(rank):
    stores[rank].set(f"from {rank}", str(rank))
    assert told_by_all(stores[rank], [f"from {other}" for other in range(size)]) == [b"%d" % other for other in range(size)]

for what, task in (("gloo", join), ("script", join), ("ours", hear)):
    ranks = [threading.Thread(target=task, args=(rank,)) for rank in range(size)]
    with contextlib.ExitStack() as asking:
        for store in stores if what == "gloo" else ():
            asking.enter_context(gloo_reads_at_once(store, LIMIT / 2))
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    assert {store.timeout for store in stores} == {LIMIT}
assert len(groups) == 2 * size
what, begun = "alone", time.monotonic()
try:
    dist.ProcessGroupGloo(dist.PrefixStore("without the other", stores[0]), 0, 2, dt.timedelta(seconds=1))
except RuntimeError:
    asked["waited"] = size * (time.monotonic() - begun)
os.write(1, json.dumps({name: count / size for name, count in asked.items()}).encode())
os._exit(0)
"""


def requests_per_rank(size: int, *setting: str) -> dict[str, float]:
    command = ["env", "-u", ONE_READ, *setting, sys.executable, "-c", PROGRAM, str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.thorough
def test_a_rank_asks_as_often_in_a_large_group_as_in_a_small_one() -> None:
    for size in (2, 8):
        found = requests_per_rank(size)
        assert 2 <= found["gloo"] <= 4, found
        assert 2 <= found["ours"] <= 3, found
    assert found["script"] > 8, "a script's own group takes the way that keeps to its timeout"
    assert found["waited"] < 10, "and not the store's, which is 30 s"
    assert requests_per_rank(8, f"{ONE_READ}=0")["gloo"] > 8, "what the user has set"
