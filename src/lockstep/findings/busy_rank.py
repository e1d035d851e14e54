"""A rank that works on something while others wait for it."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="busy-rank",
    title="A rank takes its time while others wait",
    seen=(
        "Others wait for it, and it moves: it, its threads or its children use 1 % of a core or more, read or write. It "
        "is called slow, not stalled, and nothing is done about it."
    ),
    example="""\
slow      5 s: rank 1 has not reached the exchange of gradients of step 3 (train.py:32); rank 0 waits for it;
          rank 1 is at train.py:46 in evaluate (end of step 2, for 5 s) and uses 1.0 cores
""",
    why="Only this rank evaluates, compiles, saves or prepares data; or it is in a loop that never ends.",
    what_to_do=(
        "Share the work: `run.evaluate(loader)` spreads an evaluation over all ranks.",
        "If it will never end, `--stall-after SECONDS` sets a limit of your own.",
    ),
)
