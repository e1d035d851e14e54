"""A plain script over torch.distributed in shared memory: meets, exchanges, makes groups, counts, and waits for a death.

    plain.py FOLDER STARTED_NS SECONDS

Rank 0 writes what it and the others found into FOLDER/measured.json. Then all exchange until somebody ends them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.growth.counting import counted, processor_s, shared_bytes
from lockstep.machine.leftovers import MARKER
from lockstep.node.shared_store import inherited_store

GROUPS, BLOCKS = 10, 5
LOOK_S = 2.0


def most(value: float) -> float:
    """Collective: the greatest over all ranks."""
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def each_ns(call: Callable[[], object], seconds: float) -> float:
    """Collective: what one call takes, the median of blocks, each of which takes about a fifth of `seconds`."""
    times, count = [], 1
    for _ in range(BLOCKS + 1):
        dist.barrier()
        began = time.perf_counter_ns()
        for _ in range(count):
            call()
        times.append(most((time.perf_counter_ns() - began) / count))
        count = max(1, min(20_000, int(seconds / BLOCKS * 1e9 / times[-1])))
    return statistics.median(times[1:])


def once_ns(call: Callable[[], object]) -> float:
    """Collective: what one call takes on the slowest rank."""
    dist.barrier()
    began = time.perf_counter_ns()
    call()
    return most(time.perf_counter_ns() - began)


def round_trip(rank: int, size: int) -> None:
    """A message to the next rank, and one from the one before."""
    mine, theirs = torch.full((16,), float(rank)), torch.empty(16)
    work = dist.isend(mine, (rank + 1) % size)
    dist.recv(theirs, (rank - 1) % size)
    assert work is not None
    work.wait()
    assert theirs[0].item() == (rank - 1) % size


def store_now() -> dict[str, float]:
    """The keys of the run's store, and how much of its memory has pages."""
    store = inherited_store()
    assert store is not None
    return {"keys": store.num_keys()}


def main() -> None:
    folder, started_ns, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    script_ns = time.monotonic_ns()
    keys = [store_now()["keys"]]
    dist.init_process_group("lockstep")
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.ones(1)
    dist.all_reduce(value)
    first_ns = time.monotonic_ns()
    assert value.item() == size
    found: dict[str, float] = {
        "to_script_s": most((script_ns - started_ns) / 1e9),
        "to_first_s": most((first_ns - started_ns) / 1e9),
    }
    if rank == 0:
        keys.append(store_now()["keys"])
    large = torch.ones(1 << 18)
    found["all_reduce_4B_s"] = each_ns(lambda: dist.all_reduce(value), seconds) / 1e9
    found["barrier_s"] = each_ns(dist.barrier, seconds) / 1e9
    found["all_reduce_1MiB_s"] = each_ns(lambda: dist.all_reduce(large), seconds) / 1e9
    if size > 1:
        found["ring_s"] = each_ns(lambda: round_trip(rank, size), seconds) / 1e9
    found |= {f"rank_{name}": most(number) for name, number in counted().items()}
    found |= {name: most(number) for name, number in shared_bytes().items()}
    found["new_group_s"] = once_ns(dist.new_group) / 1e9
    if rank == 0:
        keys.append(store_now()["keys"])
    found["more_groups_s"] = once_ns(lambda: [dist.new_group() for _ in range(GROUPS - 1)]) / 1e9
    ten = counted() | shared_bytes()
    found |= {"rank_files_10_groups": most(ten["files"]), "rank_pss_10_groups": most(ten["pss_bytes"])}
    found["touched_10_groups_bytes"] = most(ten["group_touched_bytes"])
    total = torch.tensor(counted()["pss_bytes"], dtype=torch.float64)
    dist.all_reduce(total)
    found["all_pss_bytes"] = total.item()
    if rank == 0:
        found |= {"keys_meeting": keys[1] - keys[0], "keys_new_group": keys[2] - keys[1]} | outside()
        (folder / "measured.json").write_text(json.dumps(found))
    dist.barrier()
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    while True:
        dist.all_reduce(value)
        time.sleep(0.01)


def outside() -> dict[str, float]:
    """What the launcher and the nursery hold, and the processor time that the launcher takes while ranks are quiet."""
    launcher, nursery = int(os.environ[MARKER].partition("-")[0]), os.getppid()
    before = processor_s(launcher), processor_s(nursery)
    time.sleep(LOOK_S)
    found = {"launcher_cores": (processor_s(launcher) - before[0]) / LOOK_S}
    found |= {f"launcher_{name}": number for name, number in counted(launcher).items()}
    return found | {f"nursery_{name}": number for name, number in counted(nursery).items()}


if __name__ == "__main__":
    main()
