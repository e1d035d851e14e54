"""A rank that never came to the others' meeting."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="missing-rank",
    title="A rank has not come to the others",
    seen=(
        "Ranks wait in `lockstep.init`, `init_process_group` or `new_group`, and another one has not called it. "
        "Its process is alive; the sentence has the line where it is."
    ),
    example="""\
stalled   5 s: rank 1 has not reached the meeting of a group with rank 1 (train.py:27); rank 0 waits for it;
          rank 1 is at train.py:12 and uses no processor time
""",
    why=(
        "All ranks of a group must come to its first meeting. One that reads a large file, downloads, asks a "
        "question or takes another branch before it keeps all others waiting."
    ),
    what_to_do=(
        (
            "Call `lockstep.init` or `init_process_group` on every rank, before anything that takes long or that only "
            "some ranks do."
        ),
        (
            "Do what only one rank may do afterwards, with `if run.is_main:`, or in `with run.main_first():` where all "
            "need the result."
        ),
        "`new_group` must be called by all ranks, also by those that are not in the group.",
    ),
)
