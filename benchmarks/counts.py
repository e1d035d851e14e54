"""What a run costs by the code's own counts, from 2 to 10,000 nodes: `python -m benchmarks.counts [--json] [--ranks 8]`.

Nothing is measured, and nothing started: `lockstep.nodes.scale` computes, and tests hold it against the code. What grows with the
ranks of one node is measured by the other benchmarks.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.ending import ends_shortly
from benchmarks.markdown import markdown_table
from lockstep.nodes.scale import Limits, Shape, breaks, control, sent_for_a_sum, tried

NODES = (2, 3, 8, 32, 128, 1000, 10_000)
LIMITS = Limits(requests_per_s=11_500)
"""The first node's link takes 87 us of a core for a request through gate and TLS (docs/design/0028)."""
HEADINGS = (
    "nodes",
    "log: added",
    "log: read",
    "batches",
    "log: sent",
    "tried",
    "meeting",
    "meeting: sent",
    "roster",
    "beats",
    "files",
    "on a link",
)


def size(num_bytes: float) -> str:
    """`1.4 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.2g} {unit}" if num_bytes < 10 else f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.0f} TB"


def row(nodes: int, ranks: int) -> tuple[str, ...]:
    """One line of the table, as the design page has it."""
    costs = control(Shape(nodes, ranks))
    return (
        f"{nodes:,}",
        f"{costs.added:,}",
        f"{costs.read_by_all:,}",
        f"{costs.batches:,}",
        size(costs.sent_bytes),
        f"{tried(nodes):,}",
        f"{costs.met:,}",
        size(costs.met_bytes),
        size(costs.roster_bytes),
        f"{costs.beats_per_s:,.0f} /s",
        f"{costs.files:,}",
        f"{sent_for_a_sum(nodes, 1.0):.2f}",
    )


def as_json(ranks: int) -> dict[str, Any]:
    """Everything, for programs."""
    counts = {nodes: {**vars(control(Shape(nodes, ranks))), "tried": tried(nodes)} for nodes in NODES}
    return {"ranks": ranks, "counts": counts, "breaks": [vars(one) for one in breaks(LIMITS, ranks)]}


@ends_shortly
def main() -> None:
    """Print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.counts",
        description="What a run costs by the code's own counts, from 2 to 10,000 nodes.",
    )
    parser.add_argument("--ranks", type=int, default=8, help="of each node")
    parser.add_argument("--json", action="store_true", help="all counts, for programs")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks must be 1 or more, but is {options.ranks}. Give how many ranks a node has.")
    if options.json:
        print(json.dumps(as_json(options.ranks), indent=2))
        return
    print(markdown_table([HEADINGS, *(row(nodes, options.ranks) for nodes in NODES)]))
    for one in breaks(LIMITS, options.ranks):
        print(f"from {one.nodes:,} nodes: {one.what}")


if __name__ == "__main__":
    main()
