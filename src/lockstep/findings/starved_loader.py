"""Ranks that wait for samples for much of each step."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="starved-loader",
    title="The ranks wait for samples",
    seen="At the end of the run the parts of a step are compared: waiting for samples took a fifth of it or more.",
    example="""\
speed     430 samples/s; a step of 18.6 ms = data 12.9 + forward and backward 0.8 + exchange 4.6 + optimizer 0.3
advice    data 70%: more loader workers (num_workers=) would fetch while ranks compute
""",
    why="Reading and augmenting takes longer than computing, and happens before each step instead of beside it.",
    what_to_do=(
        "Let workers fetch while the ranks compute: `DataLoader(num_workers=2)`; the bits stay the same.",
        "Store what is decoded each time (`.npy`, a memory map), or make images smaller once.",
        "If cores are few, fewer ranks with one worker each may be faster.",
    ),
)
