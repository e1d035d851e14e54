"""A rank that keeps the others waiting in each step."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="straggler",
    title="A rank is slower than the others, step after step",
    seen=(
        "Over at least ten steps, twice in a row, one rank took more than 1.5 times as long as the others for a "
        "part of the step: data, forward and backward, optimizer, or the script around it."
    ),
    example="""\
slow      rank 1 takes 48 ms a step in forward and backward, the others 3 ms, and wait for it
""",
    why=(
        "Its cores are shared with another program, it is throttled, its data is farther away, or it does "
        "something that the others do not."
    ),
    what_to_do=(
        "See what else runs on its cores (`top`), and whether its control group throttles it (`cpu.stat`).",
        "In data: give its loader more workers, or put the samples on a local disk.",
        "In forward and backward, or in the script: look for what it does on this rank only.",
    ),
)
