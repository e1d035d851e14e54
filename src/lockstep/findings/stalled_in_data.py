"""A rank that waits for samples while others wait for it."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="stalled-in-data",
    title="A rank is stuck in its data",
    seen=(
        "Others wait for a rank whose last word was that it fetches samples. It does not compute and reads "
        "nothing; where a loader worker is to blame, the line is the worker's."
    ),
    example="""\
stalled   5 s: rank 1 has not reached the exchange of gradients of step 1 (train.py:32); rank 0 waits for it;
          rank 1 is at train.py:23 in Data.__getitem__ (waiting for samples of step 1, for 5 s) and uses no
          processor time
""",
    why=(
        "A loader worker waits for a lock that nobody gives back, for a server that does not answer, or for a "
        "file system that has gone. A lock held by another thread at the time of the fork is a common one."
    ),
    what_to_do=(
        (
            "Look at the line in the sentence; give what waits there a time limit (`DataLoader(timeout=60)`, "
            "`timeout=` of a request)."
        ),
        "Start with `--on-stall replace` to end the rank: all ranks start again from their step, with the same bits.",
        ("If the line is in a lock of a library: open files, connections and threads inside the worker, not before."),
    ),
)
