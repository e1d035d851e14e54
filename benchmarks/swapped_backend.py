"""An unchanged DDP step over Gloo and over the back end "lockstep", and small all_reduces through torch.distributed.

lockstep run -n 2 -m benchmarks.swapped_backend --workload mlp --rounds 40 [--json]

Every side makes a step in turn, in an order that rotates; the time of a step is that of its slowest rank. A step without
exchange (`no_sync`) is what no back end can beat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import lockstep.torch_backend  # noqa: F401 - registers the name
from benchmarks.workloads import WORKLOADS, Workload

WARM_UP = 3
SMALL_BYTES = (4, 1024, 4096)
CALLS = 200


def steps(workload: Workload, groups: dict[str, dist.ProcessGroup]) -> dict[str, Callable[[], None]]:
    """One step of each side: forward, backward with its exchange, update."""
    torch.manual_seed(1)
    inputs, targets = workload.data(workload.batch).tensors

    def side(group: dist.ProcessGroup, *, exchanges: bool) -> Callable[[], None]:
        torch.manual_seed(0)
        model = DistributedDataParallel(workload.model(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step() -> None:
            if exchanges:
                F.cross_entropy(model(inputs), targets).backward()
            else:
                with model.no_sync():
                    F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    found = {name: side(group, exchanges=True) for name, group in groups.items()}
    return found | {"no_sync": side(dist.group.WORLD, exchanges=False)}


def small_calls(groups: dict[str, dist.ProcessGroup]) -> dict[str, Callable[[], None]]:
    """CALLS all_reduces of each size and back end."""
    found: dict[str, Callable[[], None]] = {}
    for size in SMALL_BYTES:
        tensor = torch.ones(size // 4)
        for name, group in groups.items():

            def call(tensor: torch.Tensor = tensor, group: dist.ProcessGroup = group) -> None:
                for _ in range(CALLS):
                    dist.all_reduce(tensor, group=group)

            found[f"{name} {size} B"] = call
    return found


def measure(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every turn of each side, of the slowest rank."""
    names, times = list(sides), {name: [] for name in sides}
    for number in range(WARM_UP + rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            dist.barrier()
            started = time.perf_counter()
            sides[name]()
            times[name].append(time.perf_counter() - started)
    table = torch.tensor([values[WARM_UP:] for values in times.values()], dtype=torch.float64)
    dist.all_reduce(table, dist.ReduceOp.MAX)
    return dict(zip(names, table.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=[*WORKLOADS, "small"], required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("lockstep")
    groups = {"lockstep": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    is_small = options.workload == "small"
    sides = small_calls(groups) if is_small else steps(WORKLOADS[options.workload], groups)
    times = measure(sides, options.rounds)
    said: dict[str, dict[str, float]] = {}
    for name, pick in (
        ("median", statistics.median),
        ("best quarter", lambda values: sorted(values)[len(values) // 4]),
    ):
        of = {side: pick(values) * 1e3 / (CALLS if is_small else 1) for side, values in times.items()}
        if is_small:
            of |= {f"ratio {size} B": of[f"gloo {size} B"] / of[f"lockstep {size} B"] for size in SMALL_BYTES}
        else:
            of["share removed"] = (of["gloo"] - of["lockstep"]) / (of["gloo"] - of["no_sync"])
        said[name] = of
    if dist.get_rank() == 0:
        told = {"workload": options.workload, "threads": torch.get_num_threads(), "milliseconds": said}
        print(json.dumps(told, indent=1) if options.json else told)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
