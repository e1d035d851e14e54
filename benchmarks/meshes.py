"""A training step of 2 x 2 ranks on two nodes under each mesh: what leaves a node, and the time.

    python -m benchmarks.meshes --workloads mlp,gpt,cnn --rate 1gbit

The nodes are network namespaces on a bridge, so it needs root. The bytes depend on nothing else; the times on what else runs here.
"""

from __future__ import annotations

import argparse
import os

from benchmarks.ending import ends_shortly
from benchmarks.over_nodes import measured

MESHES = ("ddp=4", "pipeline=2,ddp=2", "ddp=2,pipeline=2", "model_parallel=2,ddp=2", "ddp=2,model_parallel=2")


@ends_shortly
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="mlp,gpt,cnn")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc writes it; empty for no limit")
    parser.add_argument("--rounds", default="5", help="epochs of four steps")
    options = parser.parse_args()
    print("| model | mesh | MB out of a node in a step | ms | load |\n|---|---|---|---|---|")
    for workload in options.workloads.split(","):
        for mesh in MESHES:
            words = ("--workload", workload, "--mesh", mesh, "--rounds", options.rounds)
            found = measured([2, 2], options.rate, "mesh", *words)
            row = f"{found['bytes'] / 1e6:.2f} | {found['s'] * 1e3:.0f}"  # type: ignore[operator]
            print(f"| {workload} | {mesh} | {row} | {os.getloadavg()[0]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
