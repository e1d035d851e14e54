"""A rank that stands still in the script while others wait for it."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="stalled-in-script",
    title="A rank is stuck in the script",
    seen=(
        "Others have waited for it for longer than 5 s and 8 times its usual time. With all its threads and children "
        "it uses less than 1 % of a core, and neither reads nor writes."
    ),
    example="""\
stalled   5 s: rank 1 has not reached the exchange of gradients of step 3 (train.py:32); rank 0 waits for it;
          rank 1 is at train.py:40 (end of step 2, for 5 s) and uses no processor time
""",
    why=(
        "It sleeps, waits for input, for a lock, for a child or for the network; or it calls a collective that "
        "the others do not call, or skips one that they do, as in `if run.is_main: model(x)`."
    ),
    what_to_do=(
        "Look at the line in the sentence, and find what the rank waits for there.",
        "Call what exchanges (models in training, collectives, `barrier`, `save_state`) on all ranks or on none.",
        (
            "Start with `--on-stall replace` to end it, so that all ranks start again from their step, with the same bits, or with `--on-stall stop` "
            "to end the run."
        ),
    ),
)
