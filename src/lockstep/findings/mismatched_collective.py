"""Ranks that call different collectives."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="mismatched-collective",
    title="Ranks call different collectives",
    seen=(
        "Each call of a collective is described in shared memory: operation, shape, dtype, reduction, root. Two "
        "ranks described different ones; the sentence has both lines."
    ),
    example="""\
error: The default group: The ranks call different operations. rank 0: all_reduce(sum) of 2 float32 at
       train.py:10; rank 1: all_reduce(maximum) of 2 float32 at train.py:10.
help: Make the same calls in the same order on every rank.
""",
    why=(
        "A branch of the script depends on the rank, on its data or on time; or ranks have tensors of different shapes."
    ),
    what_to_do=(
        "Make the same calls in the same order on every rank: compare the lines in the sentence.",
        "Where shapes differ, pad them, or exchange the sizes first.",
        (
            'Over Gloo alone the same script may give a wrong number without a word; `backend="lockstep"` checks '
            "every call."
        ),
    ),
)
