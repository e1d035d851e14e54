"""Ranks that wait for each other."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="crossed-groups",
    title="Ranks wait for each other",
    seen=(
        "Followed from rank to rank, the waits come back to where they began: rank 0 waits for rank 1 in one "
        "operation, and rank 1 for rank 0 in another one. Nothing can end that."
    ),
    example="""\
stalled   5 s: ranks wait for each other: rank 0 for rank 1 in all_reduce(sum) of 4 float32 (train.py:13);
          rank 1 for rank 0 in all_reduce(sum) of 4 float32 (train.py:15)
""",
    why=(
        "Two groups are used in a different order on different ranks, a rank calls `barrier` while another one "
        "trains, or two ranks `recv` from each other before they `send`."
    ),
    what_to_do=(
        "Make the same calls in the same order on all ranks, with every group: compare the lines in the sentence.",
        "Exchange between two ranks with `batch_isend_irecv`, or let one of them send first.",
    ),
)
