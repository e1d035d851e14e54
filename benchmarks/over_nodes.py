"""A training step over several nodes: lockstep beside DDP over Gloo with its best bucket size, and the bytes on the wire.

    python -m benchmarks.over_nodes                           2 x 2 ranks, links of 1 Gbit/s
    python -m benchmarks.over_nodes --nodes 2,2,2 --rate ""   3 nodes, links as fast as the machine

The nodes are network namespaces on a bridge, so it needs root, and all of them share this machine's cores. Sides take turns in the same
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.ending import ends_shortly
from benchmarks.network import LINK, nodes, ranks
from benchmarks.workloads import WORKLOADS

TIMEOUT_S = 1800


def measured(sizes: list[int], rate: str, module: str, *arguments: str) -> dict[str, object]:
    """What `benchmarks.in_rank.<module>` writes on ranks over these nodes.

    Raises:
        SystemExit: when a rank fails.
    """
    with tempfile.TemporaryDirectory() as folder, nodes(len(sizes), rate) as names:
        target = Path(folder) / "measured.json"
        command = [sys.executable, "-m", f"benchmarks.in_rank.{module}", *arguments, "--to", str(target)]
        started = ranks(names, sizes, command)
        try:
            codes = [one.wait(TIMEOUT_S) for one in started]
        finally:
            for one in started:
                one.kill()
                one.wait()
        if any(codes):
            raise SystemExit(f"benchmarks.in_rank.{module} failed: {codes}")
        found: dict[str, object] = json.loads(target.read_text())
        return found


@ends_shortly
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="2,2", help="ranks of each node")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc writes it; empty for no limit")
    parser.add_argument("--workload", default="mlp", choices=WORKLOADS)
    parser.add_argument("--rounds", default="12")
    options = parser.parse_args()
    sizes = [int(size) for size in options.nodes.split(",")]

    wire = measured(sizes, options.rate, "wire")
    found = measured(sizes, options.rate, "steps", "--workload", options.workload, "--rounds", options.rounds)
    times = {name: statistics.median(each) / 1e6 for name, each in found["times_ns"].items()}  # type: ignore[attr-defined]
    best = min(time for name, time in times.items() if name.startswith("DDP"))
    print(
        f"{options.workload} on {options.nodes} ranks, links {options.rate or 'unlimited'}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"bytes out of a node, of a ring's: {wire['of_a_ring']:.3f} ({LINK}, headers included)")
    for name, time in times.items():
        print(f"{name:16} {time:8.1f} ms")
    print(f"lockstep is {best / times['lockstep']:.2f} times as fast as the best DDP")


if __name__ == "__main__":
    main()
